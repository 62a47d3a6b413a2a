"""Declarations that cannot be understood: `check` never crashes, and names the item or batch, the fact, the remedy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import OperationalError

from chainsched import Every, Exclude, ManifestItem, checks
from chainsched.exceptions import DeclarationError, UnknownManifest
from chainsched.flow.schedule.declare import Schedules
from tests.testapp.workflows import ping

HOURLY = Every.hours(1)
# No number, no text, and of thousands of digits, so that Python refuses to write it down.
HUGE = 10**5000


class Unspeakable:
    """Its text, and its comparison, raise errors of the project."""

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        raise LookupError("no words")

    def __eq__(self, other: object) -> bool:
        raise LookupError("no comparison")


def case(row: tuple[str, Any, str]) -> str:
    return f"{row[0]}: {type(row[1]).__name__}"


def problems_of(monkeypatch: pytest.MonkeyPatch, declare: Callable[[Schedules], Any]) -> list[str]:
    """What the system check says of declarations, and for the items of functions what seeding says."""
    declared = Schedules()
    declared.schedule(ping, "parent", None, HOURLY)
    try:
        declare(declared)
    except DeclarationError as error:
        # The check reports it with the module, which could not be imported.
        return [str(error)]
    monkeypatch.setattr(checks, "schedules", declared)
    messages = [str(message.msg) for message in checks.check_declarations(None)]
    try:
        declared.expand_batches()
    except DeclarationError as error:
        return messages or [str(error)]
    return messages


WRONG_OPTIONS: list[tuple[str, Any, str]] = [
    ("depends_on", 5, "one external id or a list of them, not 5; name each parent by its text"),
    ("depends_on", {"parent": 1}, "one external id or a list of them, not {'parent': 1}"),
    ("depends_on", [["parent"]], "one external id or a list of them, not [['parent']]"),
    ("depends_on", ["parent", None], "one external id or a list of them, not ['parent', None]"),
    ("depends_on", None, "depends_on is None, and nothing would ever run it. Name its parent or its parents"),
    ("depends_on", [], "an empty list; name at least one parent"),
    ("depends_on", HUGE, "a value of type int that cannot be shown"),
    ("depends_on", Unspeakable(), "a value of type Unspeakable that cannot be shown: LookupError"),
    ("group", 5, "group must be a printable text without space at its ends (it is 5)"),
    ("group", ["a"], "(it is ['a'])"),
    ("group", None, "group must be a printable text"),
    ("group", Unspeakable(), "a value of type Unspeakable"),
    ("group_max_active_jobs", "3", "group_max_active_jobs must be a whole number from 1"),
    ("group_priority", None, "group_priority must be a whole number from 0 to 31"),
    ("group_enabled", 1, "group_enabled must be True or False (it is 1)"),
    ("priority", "high", "priority must be a whole number from 0 to 31 (it is 'high')"),
    ("priority", HUGE, "priority must be a whole number from 0 to 31 (it is a value of type int that cannot be shown"),
    ("priority", Unspeakable(), "priority must be a whole number from 0 to 31"),
    ("enabled", "yes", "enabled must be True or False (it is 'yes')"),
    ("timezone", 5, "timezone must be an IANA name such as 'Europe/Berlin' or 'UTC' (it is 5)"),
    ("timezone", ["UTC"], "timezone must be an IANA name"),
    ("timezone", None, "timezone must be an IANA name"),
    ("exclusions", {"kind": "weekdays"}, "exclusions must be a list of exclusions such as Exclude.weekdays("),
    ("exclusions", ["sat"], "exclusions must be a list of exclusions"),
    ("exclusions", Exclude.weekdays("sat"), "exclusions must be a list of exclusions"),
    ("exclusions", 5, "exclusions must be a list of exclusions"),
    ("misfire", 5, "misfire must be 'run_once' or 'skip' (it is 5)"),
    ("misfire", Unspeakable(), "misfire must be 'run_once' or 'skip'"),
    ("run_condition", "success", "must be one of RunCondition.SUCCESS"),
    ("run_condition", True, "must be one of RunCondition.SUCCESS"),
    ("run_condition", Unspeakable(), "must be one of RunCondition.SUCCESS"),
    ("dormant", "no", "dormant must be True or False (it is 'no')"),
    ("dormant", None, "dormant must be True or False (it is None)"),
    ("fan_in", "cousins", "fan_in must be True, False or 'tree' (it is 'cousins')"),
    ("fan_in", Unspeakable(), "fan_in must be True, False or 'tree'"),
    ("timeout", "10 minutes", "timeout must be a timedelta or a whole number of seconds"),
    ("colour", "red", "there is no option 'colour'"),
]
# An item without parents follows the chain.
OF_ITEMS = [row for row in WRONG_OPTIONS if row[0] != "depends_on" or row[1] is not None]
WRONG_JOIN_OPTIONS: list[tuple[str, Any, str]] = [
    ("at_least", "most", "at_least must be a whole number from 1 on, or a percentage"),
    ("at_least", [2], "(it is [2])"),
    ("at_least", HUGE, "at_least must be a whole number"),
    ("at_least", Unspeakable(), "at_least must be a whole number"),
    ("deadline", "soon", "deadline must be a timedelta or a whole number of seconds"),
    ("deadline", float("nan"), "deadline must be a timedelta or a whole number of seconds"),
    ("deadline", HUGE, "deadline must be a timedelta or a whole number of seconds"),
    ("eager", "yes", "eager must be True or False (it is 'yes')"),
    ("again_on_late", None, "again_on_late must be True or False (it is None)"),
]


@pytest.mark.parametrize(("option", "value", "words"), WRONG_OPTIONS, ids=map(case, WRONG_OPTIONS))
def test_a_wrong_option_is_named_with_its_manifest(
    monkeypatch: pytest.MonkeyPatch, option: str, value: Any, words: str
) -> None:
    def declare(to: Schedules) -> None:
        to.schedule(ping, "root", None, HOURLY).include(ping, "child", None, **{option: value})

    (problem,) = problems_of(monkeypatch, declare)
    assert problem.startswith("Manifest 'child': ")
    assert words in problem


@pytest.mark.parametrize(("option", "value", "words"), OF_ITEMS, ids=map(case, OF_ITEMS))
def test_a_wrong_option_of_an_item_is_named_with_it_and_the_others_are_looked_at(
    monkeypatch: pytest.MonkeyPatch, option: str, value: Any, words: str
) -> None:
    wrong = ManifestItem("bad", None, **{option: value})

    def declare(to: Schedules) -> None:
        items = [ManifestItem("good"), wrong, ManifestItem("worse", priority=99)]
        to.schedule(ping, "root", None, HOURLY).include_many(ping, "load", items)

    problem, other = problems_of(monkeypatch, declare)
    assert problem.startswith("Manifest 'load-bad': ")
    assert words in problem
    assert other.startswith("Manifest 'load-worse': priority")


@pytest.mark.parametrize(("option", "value", "words"), WRONG_JOIN_OPTIONS, ids=map(case, WRONG_JOIN_OPTIONS))
def test_a_wrong_option_of_a_join_is_named_with_it(
    monkeypatch: pytest.MonkeyPatch, option: str, value: Any, words: str
) -> None:
    def declare(to: Schedules) -> None:
        to.schedule(ping, "root", None, HOURLY).include(ping, "child", None, fan_in=True, **{option: value})

    (problem,) = problems_of(monkeypatch, declare)
    assert problem.startswith("Manifest 'child': ")
    assert words in problem


@pytest.mark.parametrize("name", [5, [], {}, None, "", " a", HUGE, Unspeakable()], ids=lambda it: type(it).__name__)
def test_a_wrong_name_of_a_manifest_is_shown(monkeypatch: pytest.MonkeyPatch, name: Any) -> None:
    (problem,) = problems_of(monkeypatch, lambda to: to.schedule(ping, name, None, HOURLY))
    assert problem.startswith("Manifest ")
    assert "must be a printable text without space at its ends" in problem


@pytest.mark.parametrize("schedule", ["hourly", 5, {}, HUGE, Unspeakable()], ids=lambda it: type(it).__name__)
def test_a_wrong_schedule_is_shown(monkeypatch: pytest.MonkeyPatch, schedule: Any) -> None:
    (problem,) = problems_of(monkeypatch, lambda to: to.schedule(ping, "job", None, schedule))
    assert problem.startswith("Manifest 'job': ")
    assert "is no schedule; write Every.minutes(5)" in problem


def broken() -> Iterator[ManifestItem]:
    yield ManifestItem("a")
    raise LookupError("no such table: prices")


# Items, how an error begins that names the batch, and the fact.
WRONG_ITEMS: dict[str, tuple[Any, str, str]] = {
    "None": (None, "The items of batch 'load' are None, of type NoneType", ""),
    "a number": (5, "The items of batch 'load' are 5, of type int", ""),
    "a text": ("abc", "The items of batch 'load' are 'abc', of type str", ""),
    "bytes": (b"abc", "The items of batch 'load' are b'abc', of type bytes", ""),
    "a dict": ({"a": 1}, "The items of batch 'load' are {'a': 1}, of type dict", ""),
    "an odd object": (Unspeakable(), "The items of batch 'load' are a value of type Unspeakable", ""),
    "texts": (["a", "b"], "Item 1 of batch 'load', as 1 more are wrong, is 'a', of type str", ""),
    "dicts": ([{"id": "a"}], "Item 1 of batch 'load' is {'id': 'a'}, of type dict", ""),
    "a pair": ([ManifestItem("a"), ("b", None)], "Item 2 of batch 'load' is ('b', None), of type tuple", ""),
    "a generator that raises": (broken(), "The items of batch 'load' cannot be read: LookupError", "prices"),
}


@pytest.mark.parametrize("is_function", [False, True], ids=["given", "returned"])
@pytest.mark.parametrize(("items", "beginning", "fact"), WRONG_ITEMS.values(), ids=list(WRONG_ITEMS))
def test_wrong_items_are_one_problem_that_names_the_batch(
    monkeypatch: pytest.MonkeyPatch, items: Any, beginning: str, fact: str, is_function: bool
) -> None:
    items = broken() if isinstance(items, Iterator) else items
    given = (lambda: items) if is_function else items
    (problem,) = problems_of(monkeypatch, lambda to: to.schedule_many(ping, "load", given, HOURLY))
    assert problem.startswith(beginning)
    assert fact in problem
    assert "Give a list of ManifestItem" in problem


@pytest.mark.parametrize(
    "error",
    [
        LookupError("no such table"),
        UnknownManifest("a"),
        DeclarationError("wrong"),
        Exception(Unspeakable()),
        SystemExit(3),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_function_that_raises_is_a_problem_of_its_batch(
    monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def items() -> list[ManifestItem]:
        raise error

    (problem,) = problems_of(monkeypatch, lambda to: to.schedule_many(ping, None, items, HOURLY))
    assert problem.startswith("The items of an unnamed batch cannot be read: ")
    assert "a function that returns one" in problem


def test_a_database_that_is_away_is_no_problem_of_a_batch() -> None:
    def items() -> list[ManifestItem]:
        raise OperationalError("away")

    declared = Schedules()
    declared.schedule_many(ping, "load", items, HOURLY)
    with pytest.raises(OperationalError):
        declared.expand_batches()


@pytest.mark.parametrize("own_id", [None, True, 1.5, [], {}, Unspeakable()], ids=lambda it: type(it).__name__)
def test_a_wrong_id_of_an_item_is_named_by_its_place(monkeypatch: pytest.MonkeyPatch, own_id: Any) -> None:
    items = [ManifestItem("a"), ManifestItem(own_id)]
    (problem,) = problems_of(monkeypatch, lambda to: to.schedule_many(ping, "load", items, HOURLY))
    assert problem.startswith("Item 2 of batch 'load': its id must be a text or a whole number (it is ")


def test_whole_numbers_are_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    declared = Schedules()
    declared.schedule_many(ping, "load", [ManifestItem(number) for number in range(2)], HOURLY)
    assert [found.external_id for found in declared.expand()] == ["load-0", "load-1"]
