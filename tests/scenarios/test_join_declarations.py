"""Joins in declarations and at run time: their edges come and go with the code, and a mistake says what to write."""

from typing import Any

import pytest
from django.core.management.color import no_style

from chainsched import Every, ManifestItem, RunCondition
from chainsched.exceptions import CycleError, DeclarationError
from chainsched.flow.run.fold_notes import settle
from chainsched.flow.schedule.plan import Change, plan
from chainsched.management.verbs.plan import lines
from chainsched.models import Dependency, Manifest
from tests.drive import manifest
from tests.scenarios.graphs import GROUP, check_all_closed, end, end_all, start
from tests.testapp.workflows import ping

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]

OPTIONS: dict[str, Any] = {"at_least": 2, "deadline": 600, "eager": True, "again_on_late": True}


def declare(bench, *members, **join):
    """A head with these members, and a join with these options; what was declared before is forgotten."""
    bench.schedules.clear()
    chain = bench.schedules.schedule(ping, "head", None, Every.hours(1), **GROUP)
    for name in members:
        chain = chain.include(ping, name, **GROUP)
    return chain.include(ping, "join", **join, **GROUP) if join else chain


def edges(child="join"):
    """The parents of a manifest, with a mark for those that are gates or follow from a fan-in."""
    found = Dependency.objects.filter(child__external_id=child).order_by("parent__external_id")
    kinds = {(False, False): "", (True, False): " (gate)", (False, True): " (member)"}
    rows = found.values_list("parent__external_id", "is_gate", "is_derived")
    return [f"{parent}{kinds[is_gate, is_derived]}" for parent, is_gate, is_derived in rows]


def by_include(bench, **options):
    declare(bench, "a", "b", "c").include(ping, "join", **options)
    bench.seed()


def by_then_include(bench, **options):
    chain = declare(bench, "a", "b", "c")
    chain.then_include(ping, "join", **{**options, "depends_on": options.get("depends_on", "head")})
    bench.seed()


def by_a_batch(bench, **options):
    item = ManifestItem("join", depends_on=options.pop("depends_on", "head"), **options)
    declare(bench, "a", "b", "c").include_many(ping, None, [item])
    bench.seed()


def by_a_call(bench, **options):
    declare(bench, "a", "b", "c")
    bench.seed()
    depends_on = options.pop("depends_on", "head")
    Manifest.objects.schedule_dependent(ping, "join", None, depends_on=depends_on, **options)


def by_a_call_for_a_batch(bench, **options):
    declare(bench, "a", "b", "c")
    bench.seed()
    item = ManifestItem("join", depends_on=options.pop("depends_on", "head"), **options)
    Manifest.objects.schedule_many_dependent(ping, None, [item])


WAYS = [by_include, by_then_include, by_a_batch, by_a_call, by_a_call_for_a_batch]


@pytest.mark.parametrize("way", WAYS, ids=[way.__name__.replace("_", " ") for way in WAYS])
class TestEveryWayToDeclare:
    @pytest.mark.parametrize(
        ("options", "parents"),
        [
            ({"depends_on": ["a", "b"]}, ["a", "b"]),
            ({"depends_on": ("c", "a", "b")}, ["a", "b", "c"]),
            ({"depends_on": ["head", "b"]}, ["b", "head"]),
            ({"fan_in": True}, ["a (member)", "b (member)", "c (member)", "head (gate)"]),
            ({"fan_in": "tree"}, ["a (member)", "b (member)", "c (member)", "head (gate)"]),
        ],
        ids=["two parents", "three parents", "the head too", "siblings", "tree"],
    )
    def test_a_join_has_the_edges_that_it_asks_for(self, bench, way, options, parents):
        way(bench, **options, **GROUP)
        assert edges() == parents
        assert manifest("join").is_join
        assert end_all(bench)[-1] == "join"
        check_all_closed(bench)

    def test_it_has_the_options_that_it_asks_for(self, bench, way):
        way(bench, depends_on=["a", "b", "c"], run_condition=RunCondition.COMPLETION, **OPTIONS, **GROUP)
        join = manifest("join")
        assert (join.at_least, join.at_least_percent, join.deadline_seconds) == (2, None, 600)
        assert (join.is_eager, join.runs_again_on_late, join.fan_in) == (True, True, "")
        assert {edge.condition for edge in Dependency.objects.filter(child=join)} == {RunCondition.COMPLETION}

    def test_a_percentage_is_kept_as_one(self, bench, way):
        way(bench, fan_in=True, at_least="80%", **GROUP)
        assert (manifest("join").at_least, manifest("join").at_least_percent) == (None, 80)


class TestRedeclaring:
    def test_a_join_that_is_due_runs_although_its_parents_change(self, bench):
        declare(bench, "a", "b", "c", depends_on=["a", "b"])
        bench.seed()
        bench.turn()
        bench.turn()
        settle(now=bench.now)
        assert manifest("join").state.due_run is not None
        declare(bench, "a", "b", "c", depends_on=["a", "b", "c"])
        bench.seed()
        assert bench.drain() == ["join"]
        check_all_closed(bench)

    def test_the_order_of_parents_changes_nothing(self, bench):
        declare(bench, "a", "b", depends_on=["a", "b"])
        bench.seed()
        declare(bench, "a", "b", depends_on=["b", "a"])
        assert plan(bench.schedules).is_empty

    def test_options_that_are_no_longer_stated_are_taken_back(self, bench):
        declare(bench, "a", "b", depends_on=["a", "b"], **OPTIONS)
        bench.seed()
        declare(bench, "a", "b", depends_on=["a", "b"])
        bench.seed()
        join = manifest("join")
        assert (join.at_least, join.deadline_seconds, join.is_eager, join.runs_again_on_late) == (
            None,
            None,
            False,
            False,
        )

    @pytest.mark.parametrize(
        ("before", "after", "parents"),
        [
            ({"depends_on": ["a", "b"]}, {"depends_on": ["b", "c"]}, ["b", "c"]),
            ({"depends_on": ["a", "b"]}, {"depends_on": "b"}, ["b"]),
            ({"depends_on": "b"}, {"depends_on": ["a", "b"]}, ["a", "b"]),
            ({"fan_in": True}, {"depends_on": ["a", "b"]}, ["a", "b"]),
            (
                {"depends_on": ["a", "b"]},
                {"fan_in": True},
                ["a (member)", "b (member)", "c (member)", "head (gate)"],
            ),
            ({"fan_in": True}, {"depends_on": "head"}, ["head"]),
        ],
        ids=["others", "one", "several", "named", "siblings", "plain"],
    )
    def test_other_parents_replace_the_edges(self, bench, before, after, parents):
        declare(bench, "a", "b", "c", **before)
        bench.seed()
        declare(bench, "a", "b", "c", **after)
        assert plan(bench.schedules).edged == ["join"]
        bench.seed()
        assert edges() == parents
        assert plan(bench.schedules).is_empty
        assert end_all(bench).count("join") == 1
        check_all_closed(bench)

    @pytest.mark.parametrize("fan_in", [True, "tree"])
    def test_a_child_of_run_time_stays_a_member_when_the_code_is_seeded_again(self, bench, fan_in):
        declare(bench, "a", "b", fan_in=fan_in)
        bench.seed()
        Manifest.objects.schedule_child(ping, "extra", None, parent="head", **GROUP)
        declare(bench, "a", "c", fan_in=fan_in)
        bench.seed()
        members = [f"{name} (member)" for name in ("a", "b", "c", "extra")]
        assert edges() == [*members, "head (gate)"], "b is retired, and keeps its edge"
        start(bench)
        end(bench, "head")
        end(bench, "a", "c")
        assert end_all(bench) == ["extra", "join"]
        check_all_closed(bench)

    def test_a_join_of_run_time_keeps_its_edges_when_the_code_is_seeded_again(self, bench):
        declare(bench, "a", "b", "c")
        bench.seed()
        Manifest.objects.schedule_dependent(ping, "join", None, depends_on=["a", "b"], **GROUP)
        declare(bench, "a", "b", "c", "d")
        bench.seed()
        assert edges() == ["a", "b"]

    def test_members_of_a_fan_in_come_and_go_with_its_siblings(self, bench):
        declare(bench, "a", fan_in=True)
        bench.seed()
        Manifest.objects.schedule_dependent(ping, "late", None, depends_on="head", **GROUP)
        assert edges() == ["a (member)", "head (gate)", "late (member)"]
        Manifest.objects.schedule_dependent(ping, "late", None, depends_on="a", **GROUP)
        assert edges() == ["a (member)", "head (gate)"]
        manifest("a").delete()
        assert edges() == ["head (gate)"]

    def test_members_over_a_tree_are_its_leaves(self, bench):
        declare(bench, "a", "b", fan_in="tree")
        bench.seed()
        Manifest.objects.schedule_dependent(ping, "leaf", None, depends_on="a", **GROUP)
        assert edges() == ["b (member)", "head (gate)", "leaf (member)"]
        Manifest.objects.schedule_dependent(ping, "report", None, depends_on="join", **GROUP)
        assert edges() == ["b (member)", "head (gate)", "leaf (member)"]
        manifest("leaf").delete()
        assert edges() == ["a (member)", "b (member)", "head (gate)"]


class TestPlan:
    def test_it_names_the_parents_of_a_new_join(self, bench):
        declare(bench, "a", "b", depends_on=["a", "b"])
        assert any("+ join" in line and "after a, b" in line for line in lines(plan(bench.schedules), style=no_style()))
        assert not Manifest.objects.exists()

    def test_it_shows_edges_that_come_and_go(self, bench):
        declare(bench, "a", "b", "c", depends_on=["a", "b"])
        bench.seed()
        declare(bench, "a", "b", "c", depends_on=["b", "c"])
        made = plan(bench.schedules)
        assert made.changed == {"join": {"parents": Change(("a", "b"), ("b", "c"))}}
        text = "\n".join(lines(made, style=no_style()))
        assert "~ join" in text
        assert "+ edge from c" in text
        assert "- edge from a" in text
        assert edges() == ["a", "b"], "nothing is written"

    def test_it_shows_options_that_change(self, bench):
        declare(bench, "a", "b", depends_on=["a", "b"])
        bench.seed()
        declare(bench, "a", "b", depends_on=["a", "b"], at_least=1, deadline=60)
        assert plan(bench.schedules).changed == {
            "join": {"at_least": Change(None, 1), "deadline_seconds": Change(None, 60)}
        }


MISUSES = [
    ({"depends_on": ["a", "b"], "at_least": 3}, "at_least=3 can never be reached with 2 parents; give at most as many"),
    ({"depends_on": "a", "deadline": 60}, r"deadline is for joins. Name several parents with depends_on=\[…\], or say"),
    ({"depends_on": "a", "at_least": 1, "eager": True}, "at_least, eager is for joins"),
    ({"depends_on": ["a", "b"], "fan_in": True}, "Drop fan_in, or name one parent"),
    ({"depends_on": ["a", "b"], "fan_in": "tree"}, "Drop fan_in, or name one parent"),
    ({"depends_on": []}, "name at least one parent"),
    (
        {"depends_on": None},
        r"nothing would ever run it. Name its parent or its parents, or declare",
    ),
    ({"depends_on": ["a", "a"]}, "names a parent twice: a, a; name each once"),
    ({"depends_on": ["a", 7]}, "one external id or a list of them"),
    ({"depends_on": 7}, "one external id or a list of them"),
    ({"depends_on": ["a", "b"], "at_least": "\N{FULLWIDTH DIGIT EIGHT}0%"}, "whole number from 1 on, or a percentage"),
    ({"depends_on": ["a", "b"], "at_least": 0}, "whole number from 1 on, or a percentage"),
    ({"depends_on": ["a", "b"], "at_least": 0.5}, 'a percentage such as "80%"'),
    ({"depends_on": ["a", "b"], "at_least": True}, "whole number from 1 on"),
    ({"depends_on": ["a", "b"], "at_least": "2"}, "whole number from 1 on"),
    ({"depends_on": ["a", "b"], "at_least": "0%"}, "a percentage such as"),
    ({"depends_on": ["a", "b"], "at_least": "101%"}, "a percentage such as"),
    ({"depends_on": ["a", "b"], "at_least": "33.3%"}, "a percentage such as"),
    ({"depends_on": ["a", "b"], "deadline": 0}, "deadline must be a timedelta or a whole number of seconds from 1"),
    ({"depends_on": ["a", "b"], "eager": "yes"}, "eager must be True or False"),
    ({"depends_on": ["a", "b"], "again_on_late": 1}, "again_on_late must be True or False"),
    ({"depends_on": "a", "fan_in": "leaves"}, "fan_in must be True, False or 'tree'"),
    ({"depends_on": ["a", "b"], "dormant": True}, "drop all parents but one"),
    ({"depends_on": "a", "fan_in": "tree", "dormant": True}, "drop fan_in"),
]


class TestMisuse:
    @pytest.fixture
    def known(self, bench):
        declare(bench, "a", "b")
        bench.seed()
        return bench

    @pytest.mark.parametrize(("options", "words"), MISUSES, ids=[str(options) for options, _ in MISUSES])
    def test_a_declaration_that_cannot_be_says_what_to_write(self, bench, options, words):
        chain = declare(bench, "a", "b")
        with pytest.raises(DeclarationError, match=words) as caught:
            chain.include(ping, "join", **options)
        assert caught.value.external_id == "join"
        assert "'join'" in str(caught.value)

    @pytest.mark.parametrize(("options", "words"), MISUSES, ids=[str(options) for options, _ in MISUSES])
    def test_a_call_that_cannot_be_says_what_to_write_and_writes_nothing(self, known, options, words):
        with pytest.raises(DeclarationError, match=words):
            Manifest.objects.schedule_dependent(ping, "join", None, **options)
        assert Manifest.objects.count() == 3

    @pytest.mark.parametrize(
        "options", [{"parent": ["a", "b"]}, {"parent": None}, {"parent": "a", "depends_on": "b"}], ids=str
    )
    def test_a_child_that_runs_once_has_one_parent(self, known, options):
        with pytest.raises(DeclarationError, match=r"has one parent.*with schedule_dependent\(\)"):
            Manifest.objects.schedule_child(ping, "extra", None, **options)
        assert Manifest.objects.count() == 3

    @pytest.mark.parametrize("option", [{"at_least": 1}, {"deadline": 5}, {"fan_in": True}, {"depends_on": ["a", "b"]}])
    def test_a_manifest_with_a_schedule_has_no_options_of_a_join(self, known, option):
        with pytest.raises(DeclarationError, match=r"for dependents; declare it with include\(\) or then_include\(\)"):
            known.schedules.schedule(ping, "join", None, Every.hours(1), **option)

    def test_parents_without_a_common_ancestor_are_refused_with_the_remedy(self, bench):
        bench.schedules.schedule(ping, "first", None, Every.hours(1), **GROUP)
        chain = bench.schedules.schedule(ping, "second", None, Every.hours(1), **GROUP)
        chain.include(ping, "join", depends_on=["first", "second"], **GROUP)
        with pytest.raises(
            DeclarationError, match=r"'join' depends on 'first', 'second'.*Let them all descend from one"
        ):
            bench.seed()
        assert not Manifest.objects.exists()

    def test_stored_parents_without_a_common_ancestor_are_refused_too(self, bench):
        for name in ("first", "second"):
            Manifest.objects.schedule(ping, name, None, Every.hours(1), **GROUP)
            Manifest.objects.schedule_dependent(ping, f"below-{name}", None, depends_on=name, **GROUP)
        for parents in (["first", "second"], ["below-first", "below-second"], ["first", "below-second"]):
            with pytest.raises(DeclarationError, match="Let them all descend from one manifest"):
                Manifest.objects.schedule_dependent(ping, "join", None, depends_on=parents, **GROUP)
        assert Manifest.objects.count() == 4

    def test_a_move_that_takes_the_common_ancestor_away_is_refused(self, known):
        Manifest.objects.schedule(ping, "other", None, Every.hours(1), **GROUP)
        for name in ("left", "right"):
            Manifest.objects.schedule_dependent(ping, name, None, depends_on="head", **GROUP)
        Manifest.objects.schedule_dependent(ping, "join", None, depends_on=["left", "right"], **GROUP)
        with pytest.raises(DeclarationError, match="Let them all descend from one manifest"):
            Manifest.objects.schedule_dependent(ping, "right", None, depends_on="other", **GROUP)
        assert edges("right") == ["head"]

    def test_an_unknown_parent_among_several_is_named(self, known):
        with pytest.raises(DeclarationError, match="'join' depends on 'nobody', which is neither declared nor stored"):
            Manifest.objects.schedule_dependent(ping, "join", None, depends_on=["a", "nobody"], **GROUP)
        assert Manifest.objects.count() == 3


class TestCircles:
    def test_a_circle_through_a_join_is_refused(self, bench):
        chain = declare(bench, "a")
        items = [ManifestItem("x", depends_on=["a", "y"]), ManifestItem("y", depends_on=["a", "x"])]
        chain.include_many(ping, None, items, **GROUP)
        with pytest.raises(CycleError) as caught:
            bench.seed()
        assert {"x", "y"} <= set(caught.value.members)
        assert not Manifest.objects.exists()

    def test_a_circle_of_several_manifests_at_run_time_is_refused(self, bench):
        declare(bench, "a", "b")
        bench.seed()
        items = [
            ManifestItem(name, depends_on=parents) for name, parents in (("x", "z"), ("y", ["a", "x"]), ("z", "y"))
        ]
        with pytest.raises(CycleError) as caught:
            Manifest.objects.schedule_many_dependent(ping, None, items, **GROUP)
        assert set(caught.value.members) == {"x", "y", "z"}
        assert Manifest.objects.count() == 3

    def test_a_circle_through_stored_edges_is_refused(self, bench):
        declare(bench, "a", "b")
        bench.seed()
        Manifest.objects.schedule_dependent(ping, "x", None, depends_on=["a", "b"], **GROUP)
        Manifest.objects.schedule_dependent(ping, "y", None, depends_on="x", **GROUP)
        with pytest.raises(CycleError) as caught:
            Manifest.objects.schedule_dependent(ping, "x", None, depends_on=["a", "y"], **GROUP)
        assert {"x", "y"} <= set(caught.value.members)
        assert edges("x") == ["a", "b"]

    @pytest.mark.parametrize("fan_in", [True, "tree"])
    def test_a_fan_in_with_a_sibling_that_runs_after_it_is_refused(self, bench, fan_in):
        declare(bench, "a", fan_in=fan_in).include(ping, "after", depends_on=["head", "join"], **GROUP)
        with pytest.raises(CycleError, match=r"The fan-in 'join' waits for 'after'.*Name the parents of 'join' with"):
            bench.seed()
        assert not Manifest.objects.exists()

    def test_a_fan_in_over_a_tree_with_a_leaf_that_runs_after_it_is_refused(self, bench):
        declare(bench, "a", fan_in="tree").include(ping, "after", depends_on=["a", "join"], **GROUP)
        with pytest.raises(CycleError, match="The fan-in 'join' waits for 'after'"):
            bench.seed()
        assert not Manifest.objects.exists()

    @pytest.mark.parametrize(
        ("fan_in", "parents"), [(True, ["head", "join"]), ("tree", ["head", "join"]), ("tree", ["a", "join"])]
    )
    def test_the_same_at_run_time_through_stored_rows(self, bench, fan_in, parents):
        declare(bench, "a", fan_in=fan_in)
        bench.seed()
        before = edges()
        with pytest.raises(CycleError, match="The fan-in 'join' waits for 'after'"):
            Manifest.objects.schedule_dependent(ping, "after", None, depends_on=parents, **GROUP)
        assert not Manifest.objects.filter(external_id="after").exists()
        assert edges() == before

    def test_a_manifest_that_becomes_a_fan_in_over_what_runs_after_it_is_refused(self, bench):
        declare(bench, "a", "b")
        bench.seed()
        Manifest.objects.schedule_dependent(ping, "x", None, depends_on="head", **GROUP)
        Manifest.objects.schedule_dependent(ping, "after", None, depends_on=["head", "x"], **GROUP)
        with pytest.raises(CycleError, match="The fan-in 'x' waits for 'after'"):
            Manifest.objects.schedule_dependent(ping, "x", None, depends_on="head", fan_in=True, **GROUP)
        assert edges("x") == ["head"]

    def test_what_runs_after_a_fan_in_alone_is_fine(self, bench):
        declare(bench, "a", fan_in="tree").then_include(ping, "after", **GROUP).then_include(ping, "last", **GROUP)
        bench.seed()
        assert end_all(bench) == ["head", "a", "join", "after", "last"]
