"""The graphs on the pages: what they show to whom, and at what cost."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.test import Client

from chainsched.admin import ManifestAdmin, ManifestGroupAdmin
from chainsched.admin.charts.graph_picture import TIMES
from chainsched.admin.pages import graphs
from chainsched.db import bulk
from chainsched.domain.states import ExecutionState
from chainsched.flow.schedule.edges import Edge, write_edges
from chainsched.graph import layout, load
from chainsched.graph.load import GraphLoader
from chainsched.models import Dependency, GraphRun, JoinState, Manifest, ManifestGroup, NamedLock
from chainsched.models.named_lock import GRAPH as GRAPH_LOCK
from tests.admin.test_pages import MAX_QUERIES, queries, text_of
from tests.admin.world import client_of, list_of, url_of
from tests.factories import NOW, make_dependent, make_execution, make_group, make_letter, make_manifest, make_queue_row
from tests.tidying import gather_statistics, tidy

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]
GRAPH = "/admin/chainsched/manifestgroup/graph/"


@pytest.fixture(autouse=True)
def _time_for_layouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is a dot program it is given up after some seconds, which a slow machine needs."""
    monkeypatch.setattr(layout, "LAYOUT_SECONDS", 60)


def members_of(group: ManifestGroup) -> str:
    return url_of(ManifestGroup, "members", group.pk)


def drawn(client: Client, url: str) -> dict[str, str]:
    """The nodes of the picture on a page: what each says, and the class that colours it."""
    page = client.get(url).content.decode()
    nodes = re.findall(r'<g class="chainsched-node (\S+?)(?: chainsched-here)?"><title>(.*?)</title>', page)
    return {words: css_class for css_class, words in nodes}


def curves(client: Client, url: str) -> int:
    return client.get(url).content.decode().count('class="chainsched-edge"')


def make_slices(parent: Manifest, number: int) -> None:
    columns = {"group": parent.group, "workflow": "testapp.ping", "schedule_type": "dependent", "run_condition": 1}
    names = (f"slice-{at:05}" for at in range(number))
    slices = Manifest.objects.bulk_create(
        Manifest(external_id=name, depends_on=parent, depth=parent.depth + 1, **columns) for name in names
    )
    Dependency.objects.bulk_create(Dependency(child=child, parent=parent, condition=1) for child in slices)
    # As seeding does after many new rows; without it plans rest on what other tests left behind.
    bulk.analyze(Manifest, Dependency)


def make_join(name: str, *parents: Manifest, **columns: Any) -> Manifest:
    """A join of several parents."""
    shape = {"schedule_type": "dependent", "run_condition": 1, "is_join": True, "state": {}}
    place = {"group": parents[0].group, "depth": 1 + max(parent.depth for parent in parents)}
    join = make_manifest(name, **{**shape, **place, **columns})
    NamedLock.objects.hold(GRAPH_LOCK, now=NOW)
    write_edges({join.pk: {parent.pk: Edge(1, is_gate=False, is_derived=False) for parent in parents}})
    return join


def edges(client: Client, url: str) -> set[tuple[str, str]]:
    """The edges of the picture on a page, by the names of their nodes, as its table tells them."""
    page = client.get(url).content.decode()
    tables = re.findall(r"<table.*?</table>", page, re.DOTALL)
    table = next(table for table in tables if "Depends on</th>" in table)
    found = set()
    for row in re.findall(r"<tr>(<td>.*?)</tr>", table, re.DOTALL):
        cells = [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", row, re.DOTALL)]
        found |= {(parent, cells[0]) for parent in cells[-1].split(", ") if parent}
    return found


@pytest.fixture
def chain(db: None) -> Manifest:
    """extract -> load in two groups, and a third group that depends on nothing."""
    root = make_manifest("root", group=make_group("extract"), state={"last_successful_run": NOW})
    make_dependent(root, "leaf", group=make_group("load"), state={"consecutive_failures": 1})
    make_manifest("lonely", group=make_group("other"))
    return root


class TestTheGraphOfGroups:
    def test_a_node_says_how_many_members_it_has_and_how_they_are(self, viewer: Client, chain: Manifest) -> None:
        make_letter(make_dependent(chain, "second", group=ManifestGroup.objects.get(name="load")))
        assert drawn(viewer, GRAPH) == {
            "extract (group): 1 succeeded": "chainsched-node-succeeded",
            "load (group): 1 dead letter, 1 failing": "chainsched-node-dead-letter",
            "other (group): 1 idle": "chainsched-node-idle",
        }
        assert "✖ 2 manifests · 1 dead letter · 1 failing" in text_of(viewer, GRAPH)

    def test_an_edge_is_where_a_manifest_of_one_depends_on_one_of_another(
        self, viewer: Client, chain: Manifest
    ) -> None:
        make_dependent(chain, "inside", group=chain.group)
        assert curves(viewer, GRAPH) == 1

    def test_it_is_linked_from_the_list_and_leads_to_the_groups(self, viewer: Client, chain: Manifest) -> None:
        assert f'<a href="{GRAPH}">' in viewer.get(list_of(ManifestGroup)).content.decode()
        assert f'<a href="{url_of(ManifestGroup, "change", chain.group_id)}"' in viewer.get(GRAPH).content.decode()

    def test_the_table_says_the_same(self, viewer: Client, chain: Manifest) -> None:
        page = viewer.get(GRAPH).content.decode()
        row = re.search(r"<tr><td><a [^>]+>load</a></td>(.*?)</tr>", page)
        assert row
        assert re.sub(r"<[^>]+>", "|", row[1]).strip("|").split("|")[-1] == "extract"

    def test_more_groups_than_there_is_room_for_fold_by_their_neighbours(
        self, viewer: Client, chain: Manifest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(graphs, "MAX_NODES", 4)
        for number in range(3):
            make_manifest(group=make_group(f"other-{number}"))
        assert [words.partition(" (")[0] for words in drawn(viewer, GRAPH)] == ["extract", "load", f"other… {TIMES}4"]

    def test_what_is_left_out_is_said(self, viewer: Client, chain: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(graphs, "MAX_NODES", 1)
        assert "And 2 more groups, which are not drawn." in text_of(viewer, GRAPH)
        monkeypatch.setattr(graphs, "MAX_GROUPS", 2)
        assert "Only the first 2 groups by name were read" in text_of(viewer, GRAPH)

    @pytest.mark.slow
    def test_a_complete_graph_of_three_hundred_groups_is_drawn_in_part(self, viewer: Client) -> None:
        tidy("chainsched_manifest", "chainsched_manifestgroup", "chainsched_dependency")
        groups = ManifestGroup.objects.bulk_create(ManifestGroup(name=f"g{number:03}") for number in range(300))
        common = {"workflow": "testapp.ping"}
        roots = Manifest.objects.bulk_create(
            Manifest(external_id=f"root-{group.pk}", group=group, **common) for group in groups
        )
        dependent = {"schedule_type": "dependent", "run_condition": 1, "depth": 1, **common}
        children = Manifest.objects.bulk_create(
            Manifest(external_id=f"{one}-{other}", group=groups[other], depends_on=roots[one], **dependent)
            for one in range(300)
            for other in range(one + 1, 300)
        )
        Dependency.objects.bulk_create(
            Dependency(child=child, parent=child.depends_on, condition=1) for child in children
        )
        gather_statistics("chainsched_manifest", "chainsched_manifestgroup", "chainsched_dependency")
        page = text_of(viewer, GRAPH)
        assert "more edges, which are not drawn" in page
        assert len(drawn(viewer, GRAPH)) == 300
        assert 299 <= curves(viewer, GRAPH) <= 1000


class TestTheGraphOfAGroup:
    @pytest.mark.parametrize(
        ("prepare", "state"),
        [
            (lambda manifest: None, "idle"),
            (make_queue_row, "queued"),
            (make_execution, "queued"),
            (lambda manifest: make_execution(manifest, state=ExecutionState.IN_PROGRESS), "running"),
            (make_letter, "dead letter"),
        ],
    )
    def test_a_node_says_its_state_by_colour_mark_and_word(self, viewer: Client, prepare: Any, state: str) -> None:
        manifest = make_manifest("job", state={})
        prepare(manifest)
        url = members_of(manifest.group)
        assert drawn(viewer, url) == {f"job (manifest): {state}": f"chainsched-node-{state.replace(' ', '-')}"}
        page = viewer.get(url).content.decode()
        assert re.search(rf"<text[^>]*>\S {state}</text>", page)
        assert re.search(rf'<span class="chainsched-swatch [^>]*>\S+</span> {state}</li>', page)

    def test_the_groups_that_it_depends_on_are_drawn_and_linked(self, viewer: Client, chain: Manifest) -> None:
        load = ManifestGroup.objects.get(name="load")
        assert sorted(drawn(viewer, members_of(load))) == [
            "extract (another group)",
            "leaf (manifest): failing",
        ]
        assert curves(viewer, members_of(load)) == 1
        assert members_of(chain.group) in viewer.get(members_of(load)).content.decode()

    def test_a_small_one_is_on_the_page_of_the_group_and_a_large_one_linked(
        self, viewer: Client, chain: Manifest
    ) -> None:
        url = url_of(ManifestGroup, "change", chain.group_id)
        assert "root (manifest): succeeded" in drawn(viewer, url)
        assert members_of(chain.group) in viewer.get(url).content.decode()
        make_slices(chain, graphs.MAX_ON_PAGE)
        assert drawn(viewer, url) == {}
        assert members_of(chain.group) in viewer.get(url).content.decode()

    def test_ten_thousand_slices_are_one_node(self, viewer: Client, chain: Manifest) -> None:
        make_slices(chain, 10_000)
        make_letter(Manifest.objects.get(external_id="slice-00007"))
        url = members_of(chain.group)
        assert drawn(viewer, url) == {
            "root (manifest): succeeded": "chainsched-node-succeeded",
            f"slice-… {TIMES}10,000 (dependent manifests): 1 dead letter, 9,999 idle": "chainsched-node-dead-letter",
        }
        assert "?by_group=extract&amp;schedule_type__exact=dependent" in viewer.get(url).content.decode()

    def test_what_was_not_read_is_said(self, viewer: Client, chain: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
        make_slices(chain, 5)
        monkeypatch.setattr(load, "MAX_ROWS", 1)
        assert "And 5 more manifests, which were not read." in text_of(viewer, members_of(chain.group))

    def test_a_group_that_is_gone_leads_back(self, viewer: Client) -> None:
        assert viewer.get(url_of(ManifestGroup, "members", 12345)).status_code == 302

    def test_one_without_manifests_says_so(self, viewer: Client) -> None:
        assert "There is nothing to draw." in text_of(viewer, members_of(make_group()))

    def test_retired_manifests_are_not_drawn(self, viewer: Client, chain: Manifest) -> None:
        make_dependent(chain, "gone", group=chain.group, retired_at=NOW)
        assert len(drawn(viewer, members_of(chain.group))) == 1


class TestThePlaceOfAManifest:
    def test_it_shows_the_line_to_the_root_itself_and_two_generations(self, viewer: Client, chain: Manifest) -> None:
        leaf = Manifest.objects.get(external_id="leaf")
        child = make_dependent(leaf, "child")
        grandchild = make_dependent(child, "grandchild")
        make_dependent(grandchild, "too far")
        make_dependent(chain, "sibling")
        url = url_of(Manifest, "change", leaf.pk)
        assert [words.partition(" ")[0] for words in drawn(viewer, url)] == ["root", "leaf", "child", "grandchild"]
        assert curves(viewer, url) == 3
        assert 'chainsched-here"><title>leaf' in viewer.get(url).content.decode()

    def test_many_children_are_one_node(self, viewer: Client, chain: Manifest) -> None:
        make_slices(chain, 100)
        nodes = drawn(viewer, url_of(Manifest, "change", chain.pk))
        assert any(words.startswith(f"slice-… {TIMES}100") for words in nodes)

    def test_what_is_far_above_is_left_out_and_said(
        self, viewer: Client, chain: Manifest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(load, "MAX_LEVELS", 2)
        low = chain
        for number in range(4):
            low = make_dependent(low, f"step-{number}")
        url = url_of(Manifest, "change", low.pk)
        assert edges(viewer, url) == {("step-1", "step-2"), ("step-2", "step-3")}
        assert "Some of its neighbours were not read" in text_of(viewer, url)

    def test_a_circle_made_by_hand_ends(self, viewer: Client, chain: Manifest) -> None:
        leaf = Manifest.objects.get(external_id="leaf")
        columns = {"depends_on": leaf, "schedule_type": "dependent", "run_condition": 1, "interval_seconds": None}
        Manifest.objects.filter(pk=chain.pk).update(**columns)
        Dependency.objects.create(child=chain, parent=leaf, condition=1)
        assert len(drawn(viewer, url_of(Manifest, "change", leaf.pk))) == 2


class TestJoins:
    @pytest.fixture
    def diamond(self) -> Manifest:
        """extract -> a, b -> join -> after, all in one group."""
        root = make_manifest("extract", group=make_group("etl"))
        a, b = (make_dependent(root, name, group=root.group) for name in "ab")
        join = make_join("join", a, b)
        make_dependent(join, "after", group=root.group)
        return join

    def test_one_of_several_parents_has_an_edge_from_each(self, viewer: Client, diamond: Manifest) -> None:
        expected = {("extract", "a"), ("extract", "b"), ("a", "join"), ("b", "join"), ("join", "after")}
        for url in (members_of(diamond.group), url_of(Manifest, "change", diamond.pk)):
            assert edges(viewer, url) == expected
            assert curves(viewer, url) == 5

    def test_one_is_below_each_of_its_parents(self, viewer: Client, diamond: Manifest) -> None:
        for name in "ab":
            url = url_of(Manifest, "change", Manifest.objects.get(external_id=name).pk)
            assert edges(viewer, url) == {("extract", name), (name, "join"), ("join", "after")}
            assert "may wait for other manifests too" in text_of(viewer, url)

    def test_a_fan_in_has_edges_from_its_gate_and_its_members(self, viewer: Client) -> None:
        root = make_manifest("extract", group=make_group("etl"))
        for name in "ab":
            make_dependent(root, name, group=root.group)
        fan_in = make_dependent(root, "fan-in", group=root.group, fan_in="siblings")
        expected = {("extract", name) for name in ("a", "b", "fan-in")} | {("a", "fan-in"), ("b", "fan-in")}
        assert edges(viewer, members_of(root.group)) == expected
        assert edges(viewer, url_of(Manifest, "change", fan_in.pk)) == expected

    @pytest.mark.parametrize("fan_in", ["siblings", "tree"])
    def test_a_fan_in_over_many_has_one_edge_from_their_fold(self, viewer: Client, fan_in: str) -> None:
        root = make_manifest("extract", group=make_group("etl"))
        make_slices(root, 400)
        join = make_dependent(root, "fan-in", group=root.group, fan_in=fan_in)
        fold = f"slice-… {TIMES}400"
        expected = {("extract", fold), ("extract", "fan-in"), (fold, "fan-in")}
        for url in (members_of(root.group), url_of(Manifest, "change", join.pk)):
            assert edges(viewer, url) == expected
            assert "not drawn" not in text_of(viewer, url)

    def test_joins_of_folded_parents_fold_apart_from_them(self, viewer: Client) -> None:
        root = make_manifest("extract", group=make_group("etl"))
        make_slices(root, 400)
        slices = list(Manifest.objects.filter(depends_on=root).order_by("pk"))
        shape = {
            "workflow": "testapp.ping",
            "schedule_type": "dependent",
            "run_condition": 1,
            "is_join": True,
            "depth": 2,
        }
        joins = Manifest.objects.bulk_create(
            Manifest(external_id=f"join-{at}", group=root.group, **shape) for at in range(400)
        )
        Dependency.objects.bulk_create(
            Dependency(child=join, parent=slices[(at + step) % 400], condition=1)
            for at, join in enumerate(joins)
            for step in range(2)
        )
        fold, joined = f"slice-… {TIMES}400", f"join-… {TIMES}400"
        assert edges(viewer, members_of(root.group)) == {("extract", fold), (fold, joined)}
        assert f"{joined} (joins): 400 idle" in drawn(viewer, members_of(root.group))

    def test_groups_are_connected_by_every_parent_of_a_join(self, viewer: Client) -> None:
        root = make_manifest("extract", group=make_group("etl"))
        others = [make_dependent(root, name, group=make_group(name)) for name in ("left", "right")]
        report = make_join("report", *others, group=make_group("reports"))
        assert edges(viewer, GRAPH) == {("etl", "left"), ("etl", "right"), ("left", "reports"), ("right", "reports")}
        assert edges(viewer, members_of(report.group)) == {("left", "report"), ("right", "report")}

    def test_a_parent_that_is_hidden_is_no_parent(
        self, superuser: Client, diamond: Manifest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = ManifestAdmin.get_queryset
        monkeypatch.setattr(
            ManifestAdmin, "get_queryset", lambda page, request: seen(page, request).exclude(external_id="b")
        )
        for url in (members_of(diamond.group), url_of(Manifest, "change", diamond.pk)):
            assert edges(superuser, url) == {("extract", "a"), ("a", "join"), ("join", "after")}

    def test_what_was_not_read_of_their_edges_is_said(
        self, viewer: Client, diamond: Manifest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(load, "MAX_LINKS", 3)
        url = members_of(diamond.group)
        assert edges(viewer, url) == {("extract", "a"), ("extract", "b"), ("join", "after")}
        assert "Some edges to joins were not read" in text_of(viewer, url)


class TestWhatAJoinSays:
    """The words of its page, and of the list."""

    @pytest.fixture
    def parents(self) -> list[Manifest]:
        root = make_manifest("extract", group=make_group("etl"))
        return [make_dependent(root, name, group=root.group) for name in "abc"]

    @pytest.mark.parametrize(
        ("columns", "words"),
        [
            ({}, "after all of 3 manifests"),
            ({"at_least": 2}, "after at least 2 of 3 manifests"),
            ({"at_least_percent": 80}, "after at least 80 % of 3 manifests"),
        ],
    )
    def test_a_join_of_several_parents(
        self, viewer: Client, parents: list[Manifest], columns: dict[str, Any], words: str
    ) -> None:
        join = make_join("join", *parents, **columns)
        page = text_of(viewer, url_of(Manifest, "change", join.pk))
        assert f"Runs {words}" in page
        assert "Deadline none" in page
        for parent in parents:
            assert url_of(Manifest, "change", parent.pk) in linked(viewer, join)
        assert words.replace("3 manifests", "its parents") in text_of(viewer, list_of(Manifest))

    @pytest.mark.parametrize(
        ("columns", "words"),
        [
            ({"fan_in": "siblings"}, "fan-in over the other children of extract"),
            ({"fan_in": "tree"}, "fan-in over all that ends below extract"),
            ({"fan_in": "tree", "at_least": 2}, "all that ends below extract, if at least 2 of them arrive"),
        ],
    )
    def test_a_fan_in(self, viewer: Client, parents: list[Manifest], columns: dict[str, Any], words: str) -> None:
        fan_in = make_dependent(parents[0].depends_on, "fan-in", group=parents[0].group, **columns)
        page = text_of(viewer, url_of(Manifest, "change", fan_in.pk))
        assert words in page
        assert "Only after success of its parent" in page
        assert "Waits for a b c 3 that you may see." in page

    def test_its_options(self, viewer: Client, parents: list[Manifest]) -> None:
        options = {"deadline_seconds": 5400, "is_eager": True, "runs_again_on_late": True}
        page = text_of(viewer, url_of(Manifest, "change", make_join("join", *parents, **options).pk))
        assert "Deadline 1 h 30 min after the run began" in page
        assert "Eager yes" in page
        assert "Again on late yes" in page

    def test_of_many_parents_the_first_are_listed(self, viewer: Client, parents: list[Manifest]) -> None:
        make_slices(parents[0].depends_on, 47)
        fan_in = make_dependent(parents[0].depends_on, "fan-in", group=parents[0].group, fan_in="siblings")
        assert "slice-00016 and 30 more 50 that you may see." in text_of(viewer, url_of(Manifest, "change", fan_in.pk))

    def test_what_is_hidden_is_neither_named_nor_counted(
        self, superuser: Client, parents: list[Manifest], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        seen = ManifestAdmin.get_queryset
        join = make_join("join", *parents)
        run = GraphRun.objects.create(scheduled_for=NOW, created_at=NOW, version=10**6)
        JoinState.objects.create(run=run, join_id=join.pk, open=1)
        url = url_of(Manifest, "change", join.pk)
        assert "missing: a (not reached), b (not reached)" in text_of(superuser, url)
        monkeypatch.setattr(
            ManifestAdmin, "get_queryset", lambda page, request: seen(page, request).exclude(external_id="b")
        )
        page = text_of(superuser, url)
        assert "after all of 2 manifests" in page
        assert "b (not reached)" not in page
        assert "It waits until all that leads to it in a run has ended." in page


def linked(client: Client, manifest: Manifest) -> list[str]:
    """The addresses that the facts of a manifest's page lead to."""
    page = client.get(url_of(Manifest, "change", manifest.pk)).content.decode()
    facts = "".join(re.findall(r'<table class="chainsched-facts".*?</table>', page, re.DOTALL))
    return re.findall(r'href="([^"]+)"', facts)


class TestWithoutALayout:
    @pytest.fixture(autouse=True)
    def _nothing_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        monkeypatch.setitem(__import__("sys").modules, "pygraphviz", None)

    def test_the_page_says_what_to_install_and_shows_the_table(self, viewer: Client, chain: Manifest) -> None:
        for url in (GRAPH, members_of(chain.group), url_of(Manifest, "change", chain.pk)):
            page = viewer.get(url).content.decode()
            assert "install Graphviz&#x27; dot program or chainsched[graph]" in page
            assert "<details open>" in page
            assert 'class="chainsched-graph"' not in page


def test_a_program_that_takes_too_long_is_given_up(
    viewer: Client, chain: Manifest, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    program = tmp_path / "dot"
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(layout, "LAYOUT_SECONDS", 0.2)
    assert "Laying it out took longer" in text_of(viewer, GRAPH)


class TestCost:
    def test_the_number_of_queries_does_not_grow(self, viewer: Client, chain: Manifest) -> None:
        urls = [GRAPH, members_of(chain.group), url_of(Manifest, "change", chain.pk)]
        few = [queries(viewer, url) for url in urls]
        for number in range(5):
            make_dependent(chain, f"child-{number}", group=make_group(f"group-{number}x"))
            make_dependent(chain, f"inside-{number}", group=chain.group)
        make_slices(chain, 500)
        many = [queries(viewer, url) for url in urls]
        # One more for the members of fans that were opened, and one for the names of other groups.
        assert all(after <= before + 2 for before, after in zip(few, many, strict=True))
        assert max(many) <= MAX_QUERIES

    def test_rows_are_counted_by_the_database(self, chain: Manifest, django_assert_num_queries: Any) -> None:
        make_slices(chain, 1000)
        with django_assert_num_queries(1):
            fans, _ = GraphLoader(Manifest.objects.all()).fans(load.IS_NOT_RETIRED)
        assert sorted(fan.size for fan in fans) == [1, 1, 1, 1000]


class TestWhatAProjectHides:
    @pytest.fixture(autouse=True)
    def _hide(self, monkeypatch: pytest.MonkeyPatch) -> None:
        manifests, groups = ManifestAdmin.get_queryset, ManifestGroupAdmin.get_queryset
        monkeypatch.setattr(
            ManifestAdmin, "get_queryset", lambda page, request: manifests(page, request).exclude(external_id="root")
        )
        monkeypatch.setattr(
            ManifestGroupAdmin, "get_queryset", lambda page, request: groups(page, request).exclude(name="other")
        )

    def test_is_on_no_graph_and_in_no_count(self, superuser: Client, chain: Manifest) -> None:
        assert sorted(drawn(superuser, GRAPH)) == ["extract (group): no manifests", "load (group): 1 failing"]
        assert curves(superuser, GRAPH) == 0
        leaf = Manifest.objects.get(external_id="leaf")
        for url in (members_of(leaf.group), url_of(Manifest, "change", leaf.pk)):
            assert list(drawn(superuser, url)) == ["leaf (manifest): failing"]
            assert ">root<" not in superuser.get(url).content.decode()

    def test_a_group_that_is_hidden_has_no_graph(self, superuser: Client, chain: Manifest) -> None:
        hidden = ManifestGroup.objects.get(name="other")
        assert superuser.get(members_of(hidden)).status_code == 302

    def test_between_two_that_are_seen_a_hidden_one_breaks_the_line(self, superuser: Client) -> None:
        top = make_manifest("top")
        hidden = make_dependent(top, "root", group=top.group)
        bottom = make_dependent(hidden, "bottom", group=top.group)
        assert list(drawn(superuser, url_of(Manifest, "change", bottom.pk))) == ["bottom (manifest): idle"]
        assert curves(superuser, members_of(top.group)) == 0


def test_who_may_see_groups_but_no_manifests_sees_no_manifests(chain: Manifest) -> None:
    client = client_of("clerk")
    permission = Permission.objects.get(codename="view_manifestgroup")
    User.objects.get(username="clerk").user_permissions.add(permission)
    assert set(drawn(client, GRAPH)) == {
        "extract (group): no manifests",
        "load (group): no manifests",
        "other (group): no manifests",
    }
    assert "There is nothing to draw." in text_of(client, members_of(chain.group))
