"""What code declares, as columns: each option at its limits and beyond."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from chainsched.domain.declarations import (
    Declaration,
    GroupDeclaration,
    ManifestItem,
    check_name,
    group_of,
    merge_groups,
    option_columns,
    parents_of,
    schedule_columns,
)
from chainsched.domain.exclusions import Exclude
from chainsched.domain.schedules import Cron, Every, Once
from chainsched.domain.states import MisfirePolicy, RunCondition
from chainsched.exceptions import DeclarationError, InvalidSchedule

AT = datetime(2026, 12, 24, 18, tzinfo=UTC)
EMPTY = {
    "cron_expression": "",
    "interval_seconds": None,
    "once_at": None,
    "run_condition": RunCondition.NONE,
    "is_join": False,
    "fan_in": "",
    "at_least": None,
    "at_least_percent": None,
    "deadline_seconds": None,
    "is_eager": False,
    "runs_again_on_late": False,
}
ON_SUCCESS = {"schedule_type": "dependent", "run_condition": 1}
JOIN = ON_SUCCESS | {"is_join": True}
SIBLINGS = JOIN | {"fan_in": "siblings"}


@pytest.mark.parametrize(
    ("schedule", "parents", "options", "expected"),
    [
        pytest.param(None, [], {}, {"schedule_type": "on_demand"}, id="no schedule"),
        pytest.param(Every.minutes(5), [], {}, {"schedule_type": "interval", "interval_seconds": 300}, id="interval"),
        pytest.param(Cron.daily(2), [], {}, {"schedule_type": "cron", "cron_expression": "0 2 * * *"}, id="cron"),
        pytest.param(Once(AT), [], {}, {"schedule_type": "once", "once_at": AT}, id="once"),
        pytest.param(None, ["p"], {}, ON_SUCCESS, id="dependent: on success"),
        pytest.param(
            None,
            ["p"],
            {"run_condition": RunCondition.COMPLETION},
            {"schedule_type": "dependent", "run_condition": 3},
            id="dependent: on completion",
        ),
        pytest.param(
            None, ["p"], {"dormant": True}, {"schedule_type": "dormant_dependent", "run_condition": 1}, id="dormant"
        ),
        pytest.param(None, ["p"], {"dormant": False}, ON_SUCCESS, id="not dormant"),
        pytest.param(None, ["p"], {"fan_in": False}, ON_SUCCESS, id="no fan-in"),
        pytest.param(None, ["p"], {"fan_in": True}, SIBLINGS, id="a fan-in over siblings"),
        pytest.param(None, ["p"], {"fan_in": "siblings"}, SIBLINGS, id="the same by its name"),
        pytest.param(None, ["p"], {"fan_in": "tree"}, JOIN | {"fan_in": "tree"}, id="a fan-in over a tree"),
        pytest.param(None, ["p", "q"], {}, JOIN, id="a join of all its parents"),
        pytest.param(None, ["p", "q"], {"at_least": None, "deadline": None}, JOIN, id="a join with no number"),
        pytest.param(None, ["p", "q"], {"at_least": 1}, JOIN | {"at_least": 1}, id="at least one of two"),
        pytest.param(None, ["p", "q"], {"at_least": 2}, JOIN | {"at_least": 2}, id="at least two of two"),
        pytest.param(
            None, ["p"], {"fan_in": True, "at_least": 9}, SIBLINGS | {"at_least": 9}, id="at least 9 siblings"
        ),
        pytest.param(None, ["p", "q"], {"at_least": "1%"}, JOIN | {"at_least_percent": 1}, id="one percent"),
        pytest.param(None, ["p", "q"], {"at_least": "100%"}, JOIN | {"at_least_percent": 100}, id="all, in percent"),
        pytest.param(
            None,
            ["p", "q"],
            {"deadline": timedelta(minutes=5), "eager": True, "again_on_late": True},
            JOIN | {"deadline_seconds": 300, "is_eager": True, "runs_again_on_late": True},
            id="eager, with a deadline, again on late",
        ),
        pytest.param(None, ["p", "q"], {"deadline": 1}, JOIN | {"deadline_seconds": 1}, id="a deadline of a second"),
    ],
)
def test_a_schedule_fills_its_own_columns_and_empties_the_others(schedule, parents, options, expected):
    assert schedule_columns(schedule, parents=parents, options=options) == EMPTY | expected


BAD_JOINS: list[Any] = [
    pytest.param(["p", "q"], {"fan_in": True}, "Drop fan_in, or name one parent", id="fan_in and several parents"),
    pytest.param(["p", "q"], {"fan_in": "tree"}, "Drop fan_in, or name one parent", id="a tree and several parents"),
    pytest.param(["p", "q"], {"at_least": 3}, "can never be reached with 2 parents", id="more than there are parents"),
    *(
        pytest.param(
            ["p", "q"], {"at_least": value}, 'at_least must be a whole number .* "80%"', id=f"at_least={value!r}"
        )
        for value in (0, -1, 1.0, 0.5, True, False, "0%", "101%", "-1%", "1.5%", "%", "2", "half", [1])
    ),
    *(
        pytest.param(
            ["p"], {option: value}, rf"{option} is for joins\. .*depends_on=\[…\], or say fan_in=True", id=option
        )
        for option, value in (("at_least", 1), ("deadline", 60), ("eager", True), ("again_on_late", True))
    ),
    *(
        pytest.param(["p", "q"], {"deadline": value}, "deadline must be", id=f"deadline={value!r}")
        for value in (0, -1, 0.5, "60", True)
    ),
    pytest.param(["p", "q"], {"eager": 1}, "eager must be", id="eager=1"),
    pytest.param(["p", "q"], {"again_on_late": None}, "again_on_late must be", id="again_on_late=None"),
    *(
        pytest.param(["p"], {"fan_in": value}, "fan_in must be True, False or 'tree'", id=f"fan_in={value!r}")
        for value in (1, 0, None, "", "all")
    ),
    pytest.param(["p"], {"dormant": True, "fan_in": True}, "drop fan_in", id="a dormant fan-in"),
    pytest.param(["p", "q"], {"dormant": True}, "drop all parents but one", id="a dormant join"),
    *(
        pytest.param([], {option: value}, f"{option} is for dependents", id=f"{option} without a parent")
        for option, value in (("at_least", 1), ("deadline", 60), ("eager", True), ("again_on_late", True))
    ),
]


@pytest.mark.parametrize(("parents", "options", "message"), BAD_JOINS)
def test_a_join_that_cannot_be_is_refused_with_what_to_write_instead(parents, options, message):
    with pytest.raises(ValueError, match=message):
        schedule_columns(None, parents=parents, options=options)


@pytest.mark.parametrize(
    ("depends_on", "parents"),
    [
        (None, ()),
        ("a", ("a",)),
        (["a"], ("a",)),
        (["b", "a"], ("a", "b")),
        (("b", "a"), ("a", "b")),
        ({"b", "a"}, ("a", "b")),
    ],
)
def test_parents_are_one_name_or_several_in_any_order(depends_on, parents):
    assert parents_of(depends_on) == parents


@pytest.mark.parametrize(
    ("depends_on", "message"),
    [
        ([], "an empty list; name at least one parent, or give it a schedule"),
        (set(), "an empty list"),
        (["a", "b", "a"], "names a parent twice: a, a, b; name each once"),
        (5, "one external id or a list of them, not 5"),
        (["a", None], "one external id or a list of them"),
        (["a", 5], "one external id or a list of them"),
        ({"a": "b"}, "one external id or a list of them"),
        (b"a", "one external id or a list of them"),
    ],
)
def test_what_names_no_parents_is_refused(depends_on, message):
    with pytest.raises(ValueError, match=message):
        parents_of(depends_on)


@pytest.mark.parametrize(("parents", "only"), [((), None), (("a",), "a"), (("a", "b"), None)])
def test_a_declaration_names_its_parent_if_it_has_only_one(parents, only):
    found = Declaration("x", "shop.copy", None, GroupDeclaration("etl"), {}, parents=parents)
    assert found.depends_on == only


@pytest.mark.parametrize("schedule", ["*/5 * * * *", 300, timedelta(minutes=5), Every])
def test_what_is_no_schedule_is_refused_with_examples(schedule):
    with pytest.raises(InvalidSchedule, match=r"Every\.minutes"):
        schedule_columns(schedule, parents=[], options={})


def test_a_dependent_without_a_condition_is_refused():
    with pytest.raises(ValueError, match="run_condition"):
        schedule_columns(None, parents=["p"], options={"run_condition": RunCondition.NONE})


FINE: list[tuple[str, Any, str, Any]] = [
    ("priority", 0, "priority", 0),
    ("priority", 31, "priority", 31),
    ("priority", None, "priority", None),
    ("enabled", False, "is_enabled", False),
    ("max_retries", 0, "max_retries", 0),
    ("max_retries", None, "max_retries", None),
    ("retry_delay", 0, "retry_delay_seconds", 0),
    ("retry_delay", timedelta(minutes=2), "retry_delay_seconds", 120),
    ("retry_multiplier", 1, "retry_multiplier", 1.0),
    ("max_retry_delay", 60.0, "max_retry_delay_seconds", 60),
    ("timeout", 1, "timeout_seconds", 1),
    ("timeout", None, "timeout_seconds", None),
    ("timezone", "Europe/Berlin", "timezone", "Europe/Berlin"),
    ("jitter", timedelta(0), "jitter_seconds", 0),
    ("exclusions", [], "exclusions", []),
    ("exclusions", [Exclude.weekdays("sat")], "exclusions", [{"kind": "weekdays", "days": [6]}]),
    ("misfire", "skip", "misfire_policy", MisfirePolicy.SKIP),
    ("misfire", MisfirePolicy.RUN_ONCE, "misfire_policy", MisfirePolicy.RUN_ONCE),
    ("misfire_threshold", 0, "misfire_threshold_seconds", 0),
]


@pytest.mark.parametrize(("option", "value", "column", "stored"), FINE)
def test_an_option_becomes_its_column(option, value, column, stored):
    assert option_columns({option: value}, external_id="sync") == {column: stored}


BAD: list[tuple[str, Any]] = [
    ("priority", -1),
    ("priority", 32),
    ("priority", 1.5),
    ("priority", True),
    ("priority", "high"),
    ("enabled", 1),
    ("enabled", None),
    ("max_retries", -1),
    ("max_retries", True),
    ("retry_delay", -1),
    ("retry_delay", 0.5),
    ("retry_delay", "5"),
    ("retry_multiplier", 0.9),
    ("retry_multiplier", float("inf")),
    ("retry_multiplier", float("nan")),
    ("max_retry_delay", timedelta(seconds=-1)),
    ("timeout", 0),
    ("timeout", True),
    ("timeout", float("nan")),
    ("timezone", "Mars/Base"),
    ("timezone", ""),
    ("timezone", None),
    ("timezone", "../etc/passwd"),
    ("jitter", -1),
    ("jitter", None),
    ("misfire", "later"),
    ("misfire", None),
    ("misfire_threshold", 1.5),
]
BAD_RAW: list[tuple[str, Any]] = [
    ("timeout", float("inf")),
    ("exclusions", ["sat"]),
    ("exclusions", Exclude.weekdays("sat")),
    ("exclusions", None),
]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *BAD,
        *(
            pytest.param(
                *case,
            )
            for case in BAD_RAW
        ),
    ],
)
def test_a_bad_option_is_refused_naming_manifest_option_and_value(option, value):
    with pytest.raises(DeclarationError, match=option) as caught:
        option_columns({option: value}, external_id="sync")
    assert caught.value.external_id == "sync"
    assert "'sync'" in str(caught.value)


def test_an_unknown_option_is_refused_naming_those_there_are():
    with pytest.raises(DeclarationError, match="'prioritty'") as caught:
        option_columns({"prioritty": 5}, external_id="sync")
    assert caught.value.external_id == "sync"
    for known in ("priority", "group", "group_enabled", "run_condition", "dormant", "exclusions"):
        assert known in str(caught.value)


def test_only_what_is_stated_becomes_a_column():
    options = {"group": "etl", "group_priority": 3, "dormant": True, "run_condition": RunCondition.FAILURE}
    assert option_columns(options, external_id="sync") == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, GroupDeclaration("sync")),
        ({"group": "etl"}, GroupDeclaration("etl")),
        (
            {"group": "etl", "group_max_active_jobs": 1, "group_priority": 31, "group_enabled": False},
            GroupDeclaration("etl", {"max_active_jobs": 1, "priority": 31, "is_enabled": False}),
        ),
        ({"group_max_active_jobs": None}, GroupDeclaration("sync", {"max_active_jobs": None})),
    ],
)
def test_a_group_holds_what_is_stated_about_it(options, expected):
    assert group_of(options, default="sync", external_id="sync") == expected


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("group", ""),
        ("group", " etl"),
        ("group", "x" * 201),
        ("group", None),
        ("group_max_active_jobs", 0),
        ("group_max_active_jobs", True),
        ("group_priority", 32),
        ("group_priority", None),
        ("group_enabled", "yes"),
    ],
)
def test_a_bad_group_option_is_refused_naming_manifest_and_option(option, value):
    with pytest.raises(DeclarationError, match=option) as caught:
        group_of({option: value}, default="sync", external_id="sync")
    assert caught.value.external_id == "sync"


def member(external_id: str, **stated: Any) -> Declaration:
    return Declaration(external_id, "shop.copy", None, GroupDeclaration("etl", stated), {})


def test_members_that_agree_or_are_silent_make_one_group():
    members = [member("a", priority=3), member("b"), member("c", priority=3, is_enabled=True)]
    assert merge_groups(members) == {"etl": {"priority": 3, "is_enabled": True}}


@pytest.mark.parametrize(
    ("first", "second"), [({"priority": 3}, {"priority": 4}), ({"max_active_jobs": None}, {"max_active_jobs": 2})]
)
def test_members_that_contradict_each_other_are_refused(first, second):
    with pytest.raises(DeclarationError, match="'etl'") as caught:
        merge_groups([member("a", **first), member("b", **second)])
    assert caught.value.external_id == "b"


@pytest.mark.parametrize("name", ["a", "sync-users", "x" * 200, "über 日本", "two words"])
def test_a_name_is_what_people_write(name):
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["", " a", "a ", "a\nb", "a\0b", "a\u200bb", "x" * 201, None, 5, b"a"])
def test_what_is_no_name_is_refused(name):
    with pytest.raises(ValueError, match="must be"):
        check_name(name)


def test_an_item_holds_its_id_input_parent_and_options():
    item = ManifestItem("42", {"n": 1}, depends_on="extract-42", priority=5)
    assert (item.id, item.input, item.depends_on, item.options) == ("42", {"n": 1}, "extract-42", {"priority": 5})
    assert item == ManifestItem("42", {"n": 1}, "extract-42", priority=5)
    assert ManifestItem("42") == ManifestItem("42", None, None)


def test_an_item_cannot_be_changed():
    item = ManifestItem("42")
    with pytest.raises(FrozenInstanceError):
        item.id = "43"  # type: ignore[misc]
