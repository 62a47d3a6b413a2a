"""The pages with graphs: of all groups, of the manifests in one group, and of the neighbours of one manifest."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.admin.utils import unquote
from django.core.exceptions import PermissionDenied
from django.db.models import Q
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.template.response import TemplateResponse
from django.urls import path

from chainsched.admin.charts.graph_picture import (
    MAX_NODES,
    Graph,
    Vertex,
    group_vertex,
    picture,
    vertex_of,
    vertices_of,
)
from chainsched.admin.kit import display
from chainsched.admin.kit.page import ReadOnlyPage
from chainsched.admin.kit.sections import Picture
from chainsched.db.id_in import id_in
from chainsched.graph.collapse import Collapsed, Fan, Unit, collapse, collapse_neighbours, connect, node_of
from chainsched.graph.load import MAX_GROUPS, Around, GraphLoader, Member, look_around
from chainsched.models import Manifest, ManifestGroup

MAX_ON_PAGE = 30
MAX_OTHER_GROUPS = 50
# Up to this many neighbours of a manifest are drawn one by one, even similar ones; of more, similar ones are one node.
MAX_ONE_BY_ONE = 60
MAX_PLACE = 80
MORE_EDGES = "Some edges to joins were not read and are not drawn."


class Graphs(ReadOnlyPage):
    """Draws the manifests that the user may see, on the pages of any model."""

    def vertices(self, units: Iterable[Unit], members: Sequence[Member]) -> list[Vertex]:
        """The nodes, with links to the pages of manifests and, for a collapsed node, to their list."""
        return vertices_of(units, members, address_of=self.page_of, address_of_fan=self._list_of)

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
        """The manifests of a group, and the other groups that they depend on: at most six queries."""
        forest = GraphLoader(self.visible(request, Manifest))
        fans, is_cut = forest.fans(Q(group=group.pk))
        others = [parent for parent, _ in forest.between_groups(Q(child__group=group.pk))]
        names = self.find(request, ManifestGroup, others[: min(MAX_OTHER_GROUPS, room // 2)])
        groups: dict[int, Hashable] = {pk: ("group", pk) for pk in names}
        anchors: dict[int | None, Hashable] = {
            fan.key.parent: groups[fan.above.group] for fan in fans if fan.above and fan.above.group in groups
        }
        collapsed = collapse(fans, anchors=anchors, room=room - len(names))
        members = forest.members(opened(collapsed), limit=room)
        links, is_more = forest.links(Q(child__group=group.pk), opened=single(collapsed, members))
        graph = Graph(self.vertices(collapsed.units, members), connect(collapsed.units, links, groups=groups))
        for pk, other in names.items():
            vertex = Vertex(groups[pk], other.name, {}, kind="another group", url=self.members_of(pk), is_outside=True)
            graph.vertices.append(vertex)
        if collapsed.left_out:
            graph.notes.append(f"And {collapsed.left_out:,} more manifests, which are not drawn.")
        if is_cut:
            rest = forest.count(Q(group=group.pk)) - sum(fan.size for fan in fans)
            graph.notes.append(f"And {rest:,} more manifests, which were not read.")
        if is_more:
            graph.notes.append(MORE_EDGES)
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


@dataclass(frozen=True, slots=True)
class Place:
    """The graph around a manifest, and the names of the manifests that were read for it one by one."""

    picture: Picture
    names: Mapping[int, str]


class ManifestGraphs(Graphs):
    """Draws the graph around a manifest: all that it comes after, and its dependents down to the second level."""

    def place(self, request: HttpRequest, manifest: Any) -> Place:
        """The neighbours above and below a manifest: three queries, four if there are many."""
        seen = self.visible(request, Manifest)
        around = look_around(manifest.pk, seen=None if self.sees_all(request, Manifest) else seen)
        forest = GraphLoader(seen, retired=[*around.above, around.here])
        collapsed, alone, is_cut = Collapsed(()), Q(id_in(pk=around.ids)), False
        if len(around.ids) > MAX_ONE_BY_ONE:
            fans, is_cut = forest.fans(alone & ~Q(pk=around.here))
            collapsed = collapse(fans, anchors={around.here: node_of(around.here)}, room=MAX_PLACE)
            alone = Q(pk=around.here)
        members = forest.members(opened(collapsed), others=alone & forest.is_drawn, limit=MAX_PLACE + 1)
        between = Q(id_in(child=around.ids), id_in(parent=around.ids))
        links, is_more = forest.links(between, opened=single(collapsed, members))
        graph = Graph(self._in_order(around, collapsed, members), connect(collapsed.units, links, groups={}))
        if collapsed.left_out:
            graph.notes.append(f"And {collapsed.left_out:,} more manifests, which are not drawn.")
        if is_cut or around.is_cut:
            graph.notes.append("Some of its neighbours were not read; the numbers are too small.")
        if is_more:
            graph.notes.append(MORE_EDGES)
        if _has_join(around, collapsed, members):
            graph.notes.append("Joins below it may wait for other manifests too, which are not drawn here.")
        return Place(picture("Place in the graph", graph), {member.pk: member.name for member in members})

    def _in_order(self, around: Around, collapsed: Collapsed, members: Sequence[Member]) -> list[Vertex]:
        """The nodes from the top to the bottom: those above, the manifest itself, those below."""
        parts = [
            (around.side_of(unit.fans[0].pk), unit.depth, self.vertices([unit], members)) for unit in collapsed.units
        ]
        parts += [
            (
                around.side_of(member.pk),
                member.depth,
                [vertex_of(member, url=self.page_of(member.pk), is_here=member.pk == around.here)],
            )
            for member in members
            if not collapsed.units or member.pk == around.here
        ]
        parts.sort(key=lambda part: part[:2])
        return [vertex for _, _, vertices in parts for vertex in vertices]


def _has_join(around: Around, collapsed: Collapsed, members: Iterable[Member]) -> bool:
    """Whether a join is below the manifest."""
    fans = [(fan.pk, fan.key) for unit in collapsed.units for fan in unit.fans]
    found = [*fans, *((member.pk, member.fan) for member in members)]
    return any(fan.level and pk in around.below for pk, fan in found)


def opened(collapsed: Collapsed) -> list[Fan]:
    """The fans with members that are drawn one by one and have to be read for that."""
    return [fan for unit in collapsed.units if unit.is_open for fan in unit.fans if fan.size > 1]


def single(collapsed: Collapsed, members: Iterable[Member]) -> set[int]:
    """The manifests that are drawn one by one; the member of a fan of one is known from its count."""
    alone = {fan.pk for unit in collapsed.units if unit.is_open for fan in unit.fans if fan.size == 1}
    return alone | {member.pk for member in members}


def _left_out(number: int, *, is_cut: bool) -> str:
    if is_cut:
        return f"Only the first {MAX_GROUPS:,} groups by name were read; some are not drawn."
    return f"And {number:,} more groups, which are not drawn."
