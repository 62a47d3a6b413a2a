"""The pages with graphs: of all groups, of the manifests in one group, and of the neighbours of one manifest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import path

from chainsched.admin.charts.graph_picture import MAX_NODES, Graph, Vertex, assemble, group_vertex, picture
from chainsched.admin.kit import display
from chainsched.admin.kit.page import ReadOnlyPage
from chainsched.admin.kit.sections import Picture
from chainsched.graph.collapse import Collapsed, Fan, collapse, collapse_neighbours, node_of
from chainsched.graph.load import MAX_GROUPS, GraphLoader, Member
from chainsched.models import Manifest, ManifestGroup

MAX_ON_PAGE = 30
MAX_OTHER_GROUPS = 50
MAX_ABOVE = 50
MAX_BELOW = 60


@dataclass(frozen=True, slots=True)
class Place:
    """The graph around a manifest, and its parent, if the user may see it."""

    picture: Picture
    parent: Member | None


class Graphs(ReadOnlyPage):
    """Draws the manifests that the user may see, on the pages of any model."""

    def draw_fans(
        self, forest: GraphLoader, fans: Sequence[Fan], *, anchors: Mapping[int | None, Hashable], room: int
    ) -> Graph:
        """The manifests of these fans, collapsed into at most ``room`` nodes: one query."""
        collapsed = collapse(fans, anchors=anchors, room=room)
        return self.assemble(collapsed, forest.members(opened(collapsed), limit=room))

    def assemble(self, collapsed: Collapsed, members: Sequence[Member]) -> Graph:
        """The nodes, with links to the pages of manifests and, for a collapsed node, to their list."""
        return assemble(collapsed, members, address_of=self.page_of, address_of_fan=self._list_of)

    def page_of(self, pk: int) -> str:
        """The address of the page of a manifest."""
        return display.address(self.admin_site, Manifest, "change", pk)

    def _list_of(self, fan: Fan) -> str:
        """The address of the list of manifests, narrowed to a fan as far as its filters allow."""
        query = {"by_group": fan.group_name, "schedule_type__exact": fan.key.kind}
        return display.address(self.admin_site, Manifest, "changelist", **query)


class GroupGraphs(Graphs):
    """Adds the graph of all groups and that of each group's manifests to the pages of groups."""

    def get_urls(self) -> list[Any]:
        """The addresses of the graphs, before Django's own."""
        wrap = self.admin_site.admin_view
        name = f"{self.opts.app_label}_{self.opts.model_name}"
        return [
            path("graph/", wrap(self.graph_view), name=f"{name}_graph"),
            path("<path:object_id>/members/", wrap(self.members_view), name=f"{name}_members"),
            *super().get_urls(),
        ]

    def changelist_view(self, request: HttpRequest, extra_context: Any = None) -> HttpResponse:
        """The list, with a link to the graph."""
        link = {"url": display.address(self.admin_site, self.model, "graph"), "words": "Graph"}
        return super().changelist_view(request, {"page_links": [link], **(extra_context or {})})

    def graph_view(self, request: HttpRequest) -> HttpResponse:
        """The page with the graph of all groups."""
        if not self.has_view_permission(request):
            raise PermissionDenied
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        return self._page(request, None, self.groups_picture(request))

    def members_view(self, request: HttpRequest, object_id: str) -> HttpResponse:
        """The page with the graph of one group's manifests."""
        group = self.get_object(request, unquote(object_id))
        if not self.has_view_permission(request, group):
            raise PermissionDenied
        if request.method not in ("GET", "HEAD"):
            return HttpResponseNotAllowed(["GET", "HEAD"])
        if group is None:
            return self._get_obj_does_not_exist_redirect(request, self.opts, object_id)  # type: ignore[attr-defined,no-any-return]
        return self._page(request, group, self.members_picture(request, group))

    def groups_picture(self, request: HttpRequest) -> Picture:
        """The groups and their dependencies on each other: three queries."""
        found = list(self.visible(request, ManifestGroup).order_by("name")[: MAX_GROUPS + 1])
        names = {group.pk: group.name for group in found[:MAX_GROUPS]}
        forest = GraphLoader(self.visible(request, Manifest))
        edges = {edge: n for edge, n in forest.between_groups().items() if names.keys() >= set(edge)}
        counted = forest.by_group(list(names))
        # Groups with dependencies come first, so that the limit leaves out groups without any.
        linked = {pk for edge in edges for pk in edge}
        alike = sorted(
            collapse_neighbours(list(names), edges, room=MAX_NODES),
            key=lambda pks: (pks[0] not in linked, names[pks[0]]),
        )
        graph = Graph()
        for pks in alike[:MAX_NODES]:
            url = display.address(self.admin_site, ManifestGroup, "change", pks[0]) if len(pks) == 1 else ""
            graph.vertices.append(group_vertex(pks, names, counted, url=url))
        node_of_group = {pk: ("groups", pks[0]) for pks in alike for pk in pks}
        for (parent, child), number in edges.items():
            edge = (node_of_group[parent], node_of_group[child])
            graph.edges[edge] = graph.edges.get(edge, 0) + number
        left_out = sum(len(pks) for pks in alike[MAX_NODES:])
        if left_out or len(found) > MAX_GROUPS:
            graph.notes.append(_left_out(left_out, is_cut=len(found) > MAX_GROUPS))
        return picture("Groups", graph)

    def members_picture(self, request: HttpRequest, group: Any, *, room: int = MAX_NODES) -> Picture:
        """The manifests of a group, and the other groups that they depend on: at most four queries."""
        forest = GraphLoader(self.visible(request, Manifest))
        fans, is_cut = forest.fans(Q(group=group.pk))
        others = Counter(fan.above.group for fan in fans if fan.above is not None and fan.above.group != group.pk)
        shown = [pk for pk, _ in others.most_common(min(MAX_OTHER_GROUPS, room // 2))]
        names = {pk: found.name for pk, found in self.find(request, ManifestGroup, shown).items()}
        anchors: dict[int | None, Hashable] = {
            fan.key.parent: ("group", fan.above.group) for fan in fans if fan.above and fan.above.group in names
        }
        graph = self.draw_fans(forest, fans, anchors=anchors, room=room - len(names))
        for pk, name in names.items():
            vertex = Vertex(("group", pk), name, {}, kind="another group", url=self.members_of(pk), is_outside=True)
            graph.vertices.append(vertex)
        if is_cut:
            rest = forest.count(Q(group=group.pk)) - sum(fan.size for fan in fans)
            graph.notes.append(f"And {rest:,} more manifests, which were not read.")
        return picture("Graph", graph)

    def has_small_graph(self, request: HttpRequest, group: Any) -> bool:
        """Whether its graph fits on the page of the group."""
        members = self.visible(request, Manifest).filter(group=group.pk, retired_at__isnull=True)
        return bool(members.order_by()[: MAX_ON_PAGE + 1].count() <= MAX_ON_PAGE)

    def members_of(self, pk: Any) -> str:
        """The address of the graph of a group's manifests."""
        return display.address(self.admin_site, ManifestGroup, "members", pk)

    def _page(self, request: HttpRequest, group: Any, drawn: Picture) -> HttpResponse:
        context = {
            **self.admin_site.each_context(request),
            "title": "Graph of the groups" if group is None else "Graph of the group",
            "subtitle": None if group is None else str(group),
            "opts": self.opts,
            "original": group,
            "sections": [drawn],
        }
        request.current_app = self.admin_site.name
        return TemplateResponse(request, "chainsched/admin/graph.html", context)


class ManifestGraphs(Graphs):
    """Draws the graph around a manifest: its ancestors up to the root, and its dependents down to the second level."""

    def place(self, request: HttpRequest, manifest: Any) -> Place:
        """The ancestors and the dependents of a manifest: two queries."""
        line = _line_of(manifest)
        forest = GraphLoader(self.visible(request, Manifest), parents=line | Q(depends_on=manifest.pk))
        nearest = Manifest.objects.filter(Q(pk=manifest.pk) | Q(depends_on=manifest.pk)).order_by()
        fans, is_cut = forest.fans(Q(depends_on__in=nearest.values("pk")))
        collapsed = collapse(fans, anchors={manifest.pk: node_of(manifest.pk)}, room=MAX_BELOW)
        members = forest.members(opened(collapsed), others=line, limit=MAX_BELOW + MAX_ABOVE)
        upwards = list(_upwards(manifest.pk, {member.pk: member for member in members}))
        graph = Graph()
        for member in reversed(upwards):
            vertex = Vertex(node_of(member.pk), member.name, {member.state: 1}, url=self.page_of(member.pk))
            graph.vertices.append(replace(vertex, is_here=member.pk == manifest.pk))
        for child, parent in pairwise(upwards):
            graph.edges[node_of(parent.pk), node_of(child.pk)] = 1
        graph.add(self.assemble(collapsed, members))
        if is_cut:
            graph.notes.append("Some of its dependents were not read; the numbers are too small.")
        return Place(picture("Place in the graph", graph), parent=upwards[1] if len(upwards) > 1 else None)


def opened(collapsed: Collapsed) -> list[Fan]:
    """The fans with members that are drawn one by one and have to be read for that."""
    return [fan for unit in collapsed.units if unit.is_open for fan in unit.fans if fan.size > 1]


def _line_of(manifest: Manifest) -> Q:
    """The condition for a manifest and all its ancestors; for a root, the root alone."""
    if manifest.depends_on_id is None:
        return Q(pk=manifest.pk)
    return Q(pk__in=Manifest.objects.ancestors_of(manifest.pk, limit=MAX_ABOVE).order_by().values("pk"))


def _upwards(pk: int | None, known: dict[int, Member]) -> Iterator[Member]:
    """A manifest, its parent and so on, up to the first one that the user may not see, or that would close a cycle."""
    while pk in known:
        member = known.pop(pk)
        yield member
        pk = member.fan.parent


def _left_out(number: int, *, is_cut: bool) -> str:
    if is_cut:
        return f"Only the first {MAX_GROUPS:,} groups by name were read; some are not drawn."
    return f"And {number:,} more groups, which are not drawn."
