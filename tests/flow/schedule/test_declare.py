"""The builder: root and cursor in every combination that the seed document shows, and each misuse."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from chainsched import Cron, Every, ManifestItem, Once, RunCondition
from chainsched.domain.declarations import Declaration
from chainsched.exceptions import DeclarationError, UnknownWorkflow
from chainsched.flow.schedule.batches import MAX_UNNAMED_ITEMS
from chainsched.flow.schedule.declare import Chain, Schedules
from tests.testapp.workflows import Slice, copy, ping

HOURLY = Every.hours(1)


def unregistered() -> None: ...


def items(*ids: str, after: str = "") -> list[ManifestItem]:
    """Items of ping, each after its counterpart in another batch if one is named."""
    return [ManifestItem(item_id, depends_on=f"{after}-{item_id}" if after else None) for item_id in ids]


def edges(schedules: Schedules) -> dict[str, str | None]:
    return {found.external_id: found.depends_on for found in schedules.expand()}


def by_id(schedules: Schedules) -> dict[str, Declaration]:
    return {found.external_id: found for found in schedules.expand()}


@pytest.fixture
def schedules() -> Schedules:
    return Schedules()


def chain_of_three(start: Schedules) -> None:
    start.schedule(ping, "extract", None, HOURLY).then_include(ping, "transform").then_include(ping, "load")


def fan_out(start: Schedules) -> None:
    start.schedule(ping, "extract", None, HOURLY).include(ping, "transform").include(ping, "validate")


def mixed(start: Schedules) -> None:
    (
        start.schedule(ping, "extract", None, HOURLY)
        .include(ping, "transform")
        .then_include(ping, "load")
        .include(ping, "validate")
    )


def include_then_chain_further(start: Schedules) -> None:
    start.schedule(ping, "a", None, HOURLY).then_include(ping, "b").include(ping, "c").then_include(ping, "d")


def batch_after_batch(start: Schedules) -> None:
    start.schedule_many(ping, "extract", items("0", "1"), HOURLY).include_many(
        ping, "transform", items("0", "1", after="extract")
    )


def batches_three_deep(start: Schedules) -> None:
    (
        start.schedule_many(ping, "extract", items("0", "1"), HOURLY)
        .include_many(ping, "transform", items("0", "1", after="extract"))
        .then_include_many(ping, "load", items("0", "1", after="transform"))
    )


def batch_below_a_root(start: Schedules) -> None:
    start.schedule(ping, "extract-all", None, HOURLY).include_many(ping, None, items("load-0", "load-1"))


def batch_with_own_and_root_parents(start: Schedules) -> None:
    own = ManifestItem("b", depends_on="elsewhere")
    start.schedule(ping, "root", None, HOURLY).include_many(ping, "load", [ManifestItem("a"), own])


def batch_falls_back_to_the_root_not_the_cursor(start: Schedules) -> None:
    start.schedule(ping, "root", None, HOURLY).then_include(ping, "cursor").include_many(ping, "load", items("a"))


def include_after_a_batch_goes_back_to_the_root(start: Schedules) -> None:
    start.schedule(ping, "root", None, HOURLY).include_many(ping, "load", items("a")).include(ping, "audit")


def a_second_schedule_begins_anew(start: Schedules) -> None:
    (
        start.schedule(ping, "one", None, HOURLY)
        .include(ping, "one-b")
        .schedule(ping, "two", None, HOURLY)
        .include(ping, "two-b")
        .then_include(ping, "two-c")
    )


def a_schedule_after_a_batch_has_a_root_again(start: Schedules) -> None:
    start.schedule_many(ping, "sync", items("a"), HOURLY).schedule(ping, "one", None, HOURLY).include(ping, "two")


@pytest.mark.parametrize(
    ("declare", "expected"),
    [
        (chain_of_three, {"extract": None, "transform": "extract", "load": "transform"}),
        (fan_out, {"extract": None, "transform": "extract", "validate": "extract"}),
        (mixed, {"extract": None, "transform": "extract", "load": "transform", "validate": "extract"}),
        (include_then_chain_further, {"a": None, "b": "a", "c": "a", "d": "c"}),
        (
            batch_after_batch,
            {"extract-0": None, "extract-1": None, "transform-0": "extract-0", "transform-1": "extract-1"},
        ),
        (
            batches_three_deep,
            {
                "extract-0": None,
                "extract-1": None,
                "transform-0": "extract-0",
                "transform-1": "extract-1",
                "load-0": "transform-0",
                "load-1": "transform-1",
            },
        ),
        (batch_below_a_root, {"extract-all": None, "load-0": "extract-all", "load-1": "extract-all"}),
        (batch_with_own_and_root_parents, {"root": None, "load-a": "root", "load-b": "elsewhere"}),
        (batch_falls_back_to_the_root_not_the_cursor, {"root": None, "cursor": "root", "load-a": "root"}),
        (include_after_a_batch_goes_back_to_the_root, {"root": None, "load-a": "root", "audit": "root"}),
        (
            a_second_schedule_begins_anew,
            {"one": None, "one-b": "one", "two": None, "two-b": "two", "two-c": "two-b"},
        ),
        (a_schedule_after_a_batch_has_a_root_again, {"sync-a": None, "one": None, "two": "one"}),
    ],
    ids=lambda value: value.__name__ if callable(value) else "",
)
def test_the_builder_links_as_the_seed_document_shows(
    declare: Callable[[Schedules], None], expected: dict[str, str | None], schedules: Schedules
):
    declare(schedules)
    assert edges(schedules) == expected


@pytest.mark.parametrize(
    ("step", "root", "cursor"),
    [
        pytest.param(lambda chain: chain, "root", "root", id="schedule sets both"),
        pytest.param(lambda chain: chain.include(ping, "b"), "root", "b", id="include moves the cursor"),
        pytest.param(lambda chain: chain.then_include(ping, "b"), "root", "b", id="then_include moves the cursor"),
        pytest.param(
            lambda chain: chain.include_many(ping, "b", items("1")), "root", None, id="include_many keeps the root"
        ),
        pytest.param(
            lambda chain: chain.then_include_many(ping, "b", items("1", after="x")),
            "root",
            None,
            id="then_include_many keeps the root",
        ),
        pytest.param(
            lambda chain: chain.schedule_many(ping, "b", items("1"), HOURLY), None, None, id="schedule_many clears both"
        ),
        pytest.param(lambda chain: chain.schedule(ping, "b", None, HOURLY), "b", "b", id="schedule begins anew"),
    ],
)
def test_each_call_leaves_root_and_cursor_as_the_rules_say(step, root, cursor, schedules):
    chain: Chain = step(schedules.schedule(ping, "root", None, HOURLY))
    assert (chain.root, chain.cursor) == (root, cursor)


def test_a_chain_can_be_kept_and_branched_from(schedules):
    trunk = schedules.schedule(ping, "root", None, HOURLY)
    trunk.then_include(ping, "left")
    trunk.then_include(ping, "right")
    assert edges(schedules) == {"root": None, "left": "root", "right": "root"}


@pytest.mark.parametrize(
    ("misuse", "call"),
    [
        pytest.param(lambda chain: chain.include(ping, "x"), r"include\(\)", id="include after schedule_many"),
        pytest.param(
            lambda chain: chain.then_include(ping, "x"), r"then_include\(\)", id="then_include after schedule_many"
        ),
        pytest.param(
            lambda chain: (
                chain.schedule(ping, "r", None, HOURLY).include_many(ping, "b", items("1")).then_include(ping, "x")
            ),
            r"then_include\(\)",
            id="then_include after include_many",
        ),
        pytest.param(
            lambda chain: (
                chain.schedule(ping, "r", None, HOURLY)
                .then_include_many(ping, "b", items("1", after="y"))
                .then_include(ping, "x")
            ),
            r"then_include\(\)",
            id="then_include after then_include_many",
        ),
    ],
)
def test_a_dependent_of_nothing_raises_and_says_what_to_call_first(misuse, call, schedules):
    chain = schedules.schedule_many(ping, "sync", items("a"), HOURLY)
    with pytest.raises(DeclarationError, match=call + r".*call schedule\(\) first"):
        misuse(chain)


def test_nothing_can_be_included_before_something_is_scheduled(schedules):
    for call in ("include", "then_include", "include_many", "then_include_many"):
        assert not hasattr(schedules, call)


@pytest.mark.parametrize(
    "declare",
    [
        pytest.param(
            lambda chain: chain.schedule_many(ping, "s", items("x"), HOURLY).include_many(ping, "load", items("a")),
            id="include_many without a root",
        ),
        pytest.param(
            lambda chain: chain.then_include_many(ping, "load", items("a")),
            id="then_include_many although there is a root",
        ),
    ],
)
def test_a_batch_item_without_a_parent_is_named(declare, schedules):
    declare(schedules.schedule(ping, "root", None, HOURLY))
    with pytest.raises(DeclarationError, match="depends_on") as caught:
        schedules.expand()
    assert caught.value.external_id == "load-a"
    assert "'load-a'" in str(caught.value)


def test_a_declaration_holds_workflow_input_group_and_what_is_stated(schedules):
    schedules.schedule(
        copy, "sync", Slice("users"), Cron.daily(2), group="etl", group_priority=3, priority=5, timezone="Europe/Berlin"
    )
    (found,) = schedules.expand()
    assert (found.workflow, found.input, found.batch) == ("testapp.copy", {"table": "users", "size": 500}, "")
    assert (found.group.name, found.group.stated) == ("etl", {"priority": 3})
    assert (found.stated["schedule_type"], found.stated["cron_expression"]) == ("cron", "0 2 * * *")
    assert (found.stated["priority"], found.stated["timezone"]) == (5, "Europe/Berlin")
    assert "is_enabled" not in found.stated


def test_a_workflow_may_be_named_by_its_text(schedules):
    schedules.schedule("testapp.copy", "sync", {"table": "users"}, Once(datetime(2030, 1, 1, tzinfo=UTC)))
    assert by_id(schedules)["sync"].workflow == "testapp.copy"


def test_a_manifest_without_a_group_has_its_own(schedules):
    schedules.schedule(ping, "sync", None, HOURLY).include(ping, "after")
    assert {name: found.group.name for name, found in by_id(schedules).items()} == {"sync": "sync", "after": "after"}


@pytest.mark.parametrize(
    ("options", "schedule_type", "condition"),
    [
        ({}, "dependent", 1),
        ({"run_condition": RunCondition.FAILURE}, "dependent", 2),
        ({"run_condition": RunCondition.COMPLETION}, "dependent", 3),
        ({"dormant": True}, "dormant_dependent", 1),
    ],
)
def test_a_dependent_says_when_it_runs(options, schedule_type, condition, schedules):
    schedules.schedule(ping, "root", None, HOURLY).include(ping, "child", None, **options)
    child = by_id(schedules)["child"]
    assert (child.stated["schedule_type"], child.stated["run_condition"]) == (schedule_type, condition)


@pytest.mark.parametrize("call", ["include", "then_include"])
@pytest.mark.parametrize("depends_on", [["b", "a"], ("a", "b"), {"a", "b"}], ids=["list", "tuple", "set"])
def test_a_join_names_its_parents_in_place_of_root_and_cursor(call, depends_on, schedules):
    chain = schedules.schedule(ping, "root", None, HOURLY).include(ping, "a").include(ping, "b")
    chain = getattr(chain, call)(ping, "join", depends_on=depends_on)
    assert by_id(schedules)["join"].parents == ("a", "b")
    assert (chain.root, chain.cursor) == ("root", "join")


def test_a_single_name_takes_the_place_of_root_and_cursor_too(schedules):
    schedules.schedule(ping, "root", None, HOURLY).include(ping, "a").include(ping, "b", depends_on="a")
    assert edges(schedules) == {"root": None, "a": "root", "b": "a"}


def test_a_list_of_one_is_a_plain_dependent(schedules):
    schedules.schedule(ping, "root", None, HOURLY).include(ping, "a").include(ping, "b", depends_on=["a"])
    found = by_id(schedules)["b"]
    assert (found.depends_on, found.stated["is_join"]) == ("a", False)


def test_an_item_of_a_batch_may_be_a_join(schedules):
    chain = schedules.schedule(ping, "root", None, HOURLY).include_many(ping, "load", items("1", "2"))
    chain.include_many(ping, "publish", [ManifestItem("all", depends_on=["load-1", "load-2"], at_least="50%")])
    found = by_id(schedules)["publish-all"]
    assert (found.parents, found.stated["at_least_percent"]) == (("load-1", "load-2"), 50)


def test_a_named_batch_derives_group_and_external_ids_from_its_name(schedules):
    schedules.schedule_many(copy, "sync", [ManifestItem("a", Slice("a")), ManifestItem("b", Slice("b"))], HOURLY)
    found = by_id(schedules)
    assert sorted(found) == ["sync-a", "sync-b"]
    assert {(each.group.name, each.batch) for each in found.values()} == {("sync", "sync")}


def test_the_options_of_a_batch_hold_for_all_and_those_of_an_item_win(schedules):
    members = [ManifestItem("a"), ManifestItem("b", priority=9, enabled=False)]
    schedules.schedule_many(ping, "sync", members, HOURLY, priority=3, group="other")
    found = by_id(schedules)
    assert [found[name].stated["priority"] for name in ("sync-a", "sync-b")] == [3, 9]
    assert "is_enabled" not in found["sync-a"].stated
    assert found["sync-b"].stated["is_enabled"] is False
    assert found["sync-a"].group.name == "other"


def test_an_unnamed_batch_takes_ids_as_they_are_and_each_has_its_group(schedules):
    schedules.schedule_many(ping, None, items("a", "b"), HOURLY)
    assert {name: found.group.name for name, found in by_id(schedules).items()} == {"a": "a", "b": "b"}


@pytest.mark.parametrize(
    ("count", "options", "is_refused"),
    [
        (MAX_UNNAMED_ITEMS, {}, False),
        (MAX_UNNAMED_ITEMS + 1, {}, True),
        (MAX_UNNAMED_ITEMS + 1, {"group": "all"}, False),
    ],
)
def test_a_large_unnamed_batch_needs_a_group(count, options, is_refused, schedules):
    schedules.schedule_many(ping, None, items(*map(str, range(count))), HOURLY, **options)
    if is_refused:
        with pytest.raises(DeclarationError, match="name or a group"):
            schedules.expand()
    else:
        assert len(schedules.expand()) == count


def test_a_named_batch_may_be_large(schedules):
    schedules.schedule_many(ping, "sync", items(*map(str, range(5000))), HOURLY)
    assert len(schedules.expand()) == 5000


def test_a_generator_is_kept_so_that_seeding_twice_sees_the_same(schedules):
    def generate() -> Iterator[ManifestItem]:
        yield from items("a", "b")

    schedules.schedule_many(ping, "sync", generate(), HOURLY).include_many(
        ping, "load", (ManifestItem(name, depends_on=f"sync-{name}") for name in "ab")
    )
    assert edges(schedules) == edges(schedules)
    assert len(schedules.expand()) == 4


def test_a_callable_is_called_when_expanding_and_never_before(schedules):
    calls = []

    def slices() -> list[ManifestItem]:
        calls.append(1)
        return items(*"abc"[: len(calls)])

    chain = schedules.schedule_many(ping, "sync", slices, HOURLY)
    chain.include_many(ping, "load", slices)
    assert calls == []
    assert schedules.expand_static() == ([], [])
    assert calls == []
    schedules.clear()
    schedules.schedule_many(ping, "sync", slices, HOURLY)
    assert [len(schedules.expand()), len(schedules.expand())] == [1, 2]


def test_static_expansion_leaves_out_only_callables(schedules):
    schedules.schedule(ping, "one", None, HOURLY)
    schedules.schedule_many(ping, "sync", lambda: items("a"), HOURLY)
    schedules.schedule_many(ping, "load", items("a"), HOURLY)
    found, problems = schedules.expand_static()
    assert [declared.external_id for declared in found] == ["one", "load-a"]
    assert problems == []


def test_clearing_forgets_everything(schedules):
    assert schedules.is_empty
    schedules.schedule(ping, "one", None, HOURLY)
    assert not schedules.is_empty
    schedules.clear()
    assert schedules.is_empty
    assert schedules.expand() == []


NAMED_MISTAKES: list[Any] = [
    pytest.param((copy, {"tabel": "x"}, {}), "tabel", id="an unknown field"),
    pytest.param((copy, {"table": 5}, {}), "table", id="a wrong type"),
    pytest.param((copy, None, {}), "input", id="no input"),
    pytest.param((ping, "surplus", {}), "None", id="an input for a workflow that takes none"),
    pytest.param((ping, None, {"priority": 32}), "priority", id="priority 32"),
    pytest.param((ping, None, {"priority": -1}), "priority", id="priority -1"),
    pytest.param((ping, None, {"prioritty": 1}), "prioritty", id="an unknown option"),
    pytest.param((ping, None, {"timezone": "Mars/Base"}), "Mars/Base", id="a bad zone"),
    pytest.param((ping, None, {"group_max_active_jobs": 0}), "group_max_active_jobs", id="a group limit of 0"),
    pytest.param(
        (unregistered, None, {}),
        "unregistered",
        id="an unregistered workflow",
    ),
]


@pytest.mark.parametrize(("mistake", "word"), NAMED_MISTAKES)
@pytest.mark.parametrize("call", ["schedule", "include", "then_include", "schedule_many", "include_many"])
def test_a_mistake_is_refused_naming_the_item(call, mistake, word, schedules):
    workflow, value, options = mistake
    chain = schedules.schedule(ping, "root", None, HOURLY)

    def declare() -> None:
        if call == "schedule":
            schedules.schedule(workflow, "sync-7", value, HOURLY, **options)
        elif call == "schedule_many":
            schedules.schedule_many(workflow, "sync", [ManifestItem("7", value, **options)], HOURLY)
        elif call == "include_many":
            chain.include_many(workflow, "sync", [ManifestItem("7", value, **options)])
        else:
            getattr(chain, call)(workflow, "sync-7", value, **options)
        schedules.expand()

    with pytest.raises((DeclarationError, UnknownWorkflow), match="sync-7") as caught:
        declare()
    assert word in str(caught.value)
    assert getattr(caught.value, "external_id", None) == "sync-7"


@pytest.mark.parametrize("workflow", [unregistered, "testapp.unheard_of"])
def test_an_unregistered_workflow_is_refused(workflow, schedules):
    with pytest.raises(DeclarationError) as caught:
        schedules.schedule(workflow, "sync", None, HOURLY)
    assert isinstance(caught.value.__cause__, UnknownWorkflow)
    assert schedules.is_empty


@pytest.mark.parametrize("external_id", ["", " a", "x" * 201, None, 5])
def test_a_bad_external_id_is_refused(external_id, schedules):
    with pytest.raises(DeclarationError, match="must be"):
        schedules.schedule(ping, external_id, None, HOURLY)


@pytest.mark.parametrize("schedule", ["*/5 * * * *", 300])
def test_what_is_no_schedule_is_refused_naming_the_item(schedule, schedules):
    with pytest.raises(DeclarationError, match=r"'sync'.*Every\.minutes"):
        schedules.schedule(ping, "sync", None, schedule)


@pytest.mark.parametrize("member", ["a", ("a", None), {"id": "a"}])
def test_a_batch_of_something_else_is_refused(member, schedules):
    schedules.schedule_many(ping, "sync", [member], HOURLY)
    with pytest.raises(DeclarationError, match="ManifestItem"):
        schedules.expand()


@pytest.mark.parametrize("call", ["schedule", "schedule_many"])
@pytest.mark.parametrize(
    "option", [{"dormant": True}, {"run_condition": RunCondition.FAILURE}, {"fan_in": True}, {"at_least": 1}]
)
def test_an_option_of_dependents_is_refused_on_what_has_a_schedule(call, option, schedules):
    def declare() -> None:
        if call == "schedule":
            schedules.schedule(ping, "sync", None, HOURLY, **option)
        else:
            schedules.schedule_many(ping, "sync", items("a"), HOURLY, **option)
        schedules.expand()

    with pytest.raises(DeclarationError):
        declare()


def test_a_scheduled_item_that_names_a_parent_is_refused(schedules):
    schedules.schedule_many(ping, "sync", [ManifestItem("a", depends_on="root")], HOURLY)
    with pytest.raises(DeclarationError, match="sync-a"):
        schedules.expand()


def test_a_refused_declaration_leaves_nothing_behind(schedules):
    chain = schedules.schedule(ping, "root", None, HOURLY)
    with pytest.raises(DeclarationError):
        schedules.schedule(copy, "x", None, HOURLY)
    with pytest.raises(DeclarationError):
        chain.include(copy, "y", None)
    assert list(edges(schedules)) == ["root"]


def test_the_builder_is_not_confused_by_options_changed_later(schedules):
    options: dict[str, Any] = {"priority": 3}
    schedules.schedule_many(ping, "sync", items("a"), HOURLY, **options)
    options["priority"] = 99
    assert by_id(schedules)["sync-a"].stated["priority"] == 3
