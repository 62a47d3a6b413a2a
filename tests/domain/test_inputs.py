"""Inputs are checked against their type, stored as JSON, and come back as they were."""

from __future__ import annotations

import sys
import typing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, NotRequired
from uuid import UUID

import pytest
from pydantic import BaseModel
from typing_extensions import TypedDict

from chainsched.domain.inputs import MAX_DEPTH, InputType, to_document
from chainsched.exceptions import InvalidInput, InvalidWorkflow

MAX_BYTES = 10_000


@dataclass(frozen=True)
class Slice:
    table: str
    size: int = 500


@dataclass(frozen=True)
class Plan:
    name: str
    slices: list[Slice] = field(default_factory=list)
    day: date | None = None


class QueueRequest(BaseModel):
    number: int
    at: datetime | None = None
    lines: list[Slice] = []


class Span(TypedDict):
    first: int
    last: NotRequired[int]


class OldSpan(typing.TypedDict):
    first: int


def contract(annotation: Any) -> InputType:
    return InputType(lambda: annotation, workflow="shop.copy")


def dump(annotation: Any, value: Any, *, max_bytes: int = MAX_BYTES) -> Any:
    return contract(annotation).dump(value, max_bytes=max_bytes)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("annotation", "value", "stored"),
    [
        pytest.param(Slice, Slice("users"), {"table": "users", "size": 500}, id="dataclass"),
        pytest.param(
            Plan,
            Plan("all", [Slice("a", 1), Slice("b", 2)], date(2026, 1, 5)),
            {"name": "all", "slices": [{"table": "a", "size": 1}, {"table": "b", "size": 2}], "day": "2026-01-05"},
            id="nested dataclass",
        ),
        pytest.param(
            QueueRequest,
            QueueRequest(number=7, at=datetime(2026, 1, 5, 12, tzinfo=UTC), lines=[Slice("a")]),
            {"number": 7, "at": "2026-01-05T12:00:00Z", "lines": [{"table": "a", "size": 500}]},
            id="pydantic model",
        ),
        pytest.param(Span, {"first": 1}, {"first": 1}, id="TypedDict"),
        pytest.param(Span, {"first": 1, "last": 9}, {"first": 1, "last": 9}, id="TypedDict, all keys"),
        pytest.param(str, "über 日本 🚀", "über 日本 🚀", id="text"),
        pytest.param(str, "", "", id="empty text"),
        pytest.param(str, r"a literal \u0000 is fine", r"a literal \u0000 is fine", id="backslash-u0000 as text"),
        pytest.param(int, 2**70, 2**70, id="a large number"),
        pytest.param(float, 0.1, 0.1, id="a fraction"),
        pytest.param(bool, False, False, id="a truth value"),
        pytest.param(None, None, None, id="nothing"),
        pytest.param(int | None, None, None, id="an optional number left out"),
        pytest.param(UUID, UUID(int=5), "00000000-0000-0000-0000-000000000005", id="uuid"),
        pytest.param(list[int], [3, 1, 2], [3, 1, 2], id="list"),
        pytest.param(tuple[int, str], (1, "a"), [1, "a"], id="tuple"),
        pytest.param(dict[str, int], {"a": 1}, {"a": 1}, id="dict"),
        pytest.param(dict[str, Any], {"a": {"b": [None, 1.5, "x"]}}, {"a": {"b": [None, 1.5, "x"]}}, id="any JSON"),
    ],
)
def test_an_input_is_stored_as_json_and_comes_back_as_it_was(annotation, value, stored):
    document = dump(annotation, value)
    assert document == stored
    assert contract(annotation).load(document) == value


def test_a_plain_dict_does_for_a_dataclass_and_defaults_are_filled_in():
    assert dump(Slice, {"table": "users"}) == {"table": "users", "size": 500}


@pytest.mark.parametrize(
    ("annotation", "value", "place"),
    [
        pytest.param(Slice, {"table": "a", "sise": 1}, "sise", id="dataclass: an unknown field"),
        pytest.param(QueueRequest, {"number": 1, "extra": 2}, "extra", id="model: an unknown field"),
        pytest.param(Span, {"first": 1, "list": 2}, "list", id="TypedDict: an unknown key"),
        pytest.param(Plan, {"name": "x", "slices": [{"table": "a", "no": 1}]}, "slices.0.no", id="unknown and nested"),
        pytest.param(Slice, {"size": 1}, "table", id="a missing field"),
        pytest.param(Slice, {"table": 5}, "table", id="dataclass: a wrong type"),
        pytest.param(QueueRequest, {"number": "seven"}, "number", id="model: a wrong type"),
        pytest.param(Span, {"first": "one"}, "first", id="TypedDict: a wrong type"),
        pytest.param(Plan, {"name": "x", "slices": [{"table": "a", "size": "big"}]}, "slices.0.size", id="nested"),
        pytest.param(dict[str, int], {"a": "b"}, "a", id="dict: a wrong value"),
    ],
)
def test_what_does_not_fit_is_refused_naming_the_field_and_the_workflow(annotation, value, place):
    with pytest.raises(InvalidInput, match=r"shop\.copy") as caught:
        dump(annotation, value)
    assert [problem.partition(":")[0] for problem in caught.value.problems] == [place]
    assert f"{place}: " in str(caught.value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (int, "seven"),
        (str, 5),
        (None, 5),
        (Slice, None),
        (Slice, QueueRequest(number=1)),
        (list[int], 5),
        (bool, "perhaps"),
    ],
)
def test_a_value_of_another_type_is_refused(annotation, value):
    with pytest.raises(InvalidInput, match=r"shop\.copy") as caught:
        dump(annotation, value)
    assert len(caught.value.problems) == 1


def test_every_problem_is_named_at_once():
    with pytest.raises(InvalidInput) as caught:
        dump(Slice, {"size": "big", "sise": 1})
    assert {problem.partition(":")[0] for problem in caught.value.problems} == {"table", "size", "sise"}


def test_a_stored_form_that_no_longer_fits_is_refused_on_loading():
    with pytest.raises(InvalidInput, match="renamed"):
        contract(Slice).load({"table": "a", "renamed": 1})


@pytest.mark.parametrize("value", [Slice(table=5), Slice("a", size="many")], ids=["text", "number"])
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_an_instance_that_holds_wrong_types_is_refused_when_declared(value):
    with pytest.raises(InvalidInput):
        dump(Slice, value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        pytest.param(float, float("nan"), id="NaN"),
        pytest.param(float, float("inf"), id="infinity"),
        pytest.param(list[float], [1.0, float("-inf")], id="nested infinity"),
        pytest.param(str, "a\0b", id="NUL"),
        pytest.param(dict[str, int], {"a\0b": 1}, id="NUL in a key"),
        pytest.param(Any, {"a": ["x", {"b": "\0"}]}, id="nested NUL"),
        pytest.param(Slice, Slice("a\ud800"), id="lone surrogate"),
        pytest.param(Any, "\udfff", id="lone surrogate in anything"),
        pytest.param(Any, nested(MAX_DEPTH + 1), id="too deep"),
        pytest.param(str, "x" * MAX_BYTES, id="too large"),
    ],
)
def test_what_no_database_stores_is_refused_naming_the_workflow(annotation, value):
    with pytest.raises(InvalidInput, match=r"shop\.copy"):
        dump(annotation, value)


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        pytest.param(Any, object(), id="no JSON form"),
        pytest.param(Any, LOOP, id="a list that holds itself"),
        pytest.param(Any, nested(300), id="far too deep"),
        pytest.param(bytes, b"\xff", id="bytes that are no text"),
    ],
)
def test_what_has_no_json_form_is_refused_like_any_other_input(annotation, value):
    with pytest.raises(InvalidInput, match=r"shop\.copy"):
        dump(annotation, value)


def test_nan_in_an_untyped_part_is_refused_and_not_turned_into_nothing():
    with pytest.raises(InvalidInput):
        dump(dict[str, Any], {"ratio": float("nan")})


@pytest.mark.parametrize("levels", [1, 2, MAX_DEPTH])
def test_depth_up_to_the_limit_is_fine(levels):
    assert dump(Any, nested(levels)) == nested(levels)


def test_size_is_counted_in_bytes_of_json():
    assert dump(str, "é" * 4, max_bytes=10) == "éééé"
    with pytest.raises(InvalidInput, match="12 bytes of JSON; at most 10"):
        dump(str, "é" * 5, max_bytes=10)


@pytest.mark.parametrize(
    ("value", "document"),
    [(None, None), ({"a": (1, 2)}, {"a": [1, 2]}), (Slice("a"), {"table": "a", "size": 500}), ({"1": {2}}, {"1": [2]})],
)
def test_an_output_is_stored_as_json_holds_it(value, document):
    assert to_document(value, what="The output", max_bytes=MAX_BYTES) == document


@pytest.mark.parametrize(
    "value",
    [
        object(),
        float("nan"),
        {"a": float("inf")},
        "\0",
        "\ud800",
        LOOP,
        nested(300),
        b"\xff",
        "x" * MAX_BYTES,
        [{"a": ({1: 2},)}],
    ],
    ids=["object", "NaN", "infinity", "NUL", "surrogate", "circle", "deep", "bytes", "large", "key"],
)
def test_an_output_that_cannot_be_stored_is_refused_and_named(value):
    with pytest.raises(InvalidInput, match=r"^The output"):
        to_document(value, what="The output", max_bytes=MAX_BYTES)


def test_a_type_is_looked_up_when_it_is_first_needed():
    asked = []

    def annotation() -> Any:
        asked.append(1)
        return int

    late = InputType(annotation, workflow="shop.copy")
    assert not asked
    assert late.dump(3, max_bytes=10) == late.dump(3, max_bytes=10) == 3
    assert len(asked) == 1


class Opaque:
    pass


@pytest.mark.parametrize(
    "annotation",
    [
        pytest.param(Opaque, id="a class that pydantic does not know"),
        pytest.param(
            OldSpan,
            id="typing.TypedDict before Python 3.12",
            marks=[
                pytest.mark.skipif(sys.version_info >= (3, 12), reason="it works there"),
            ],
        ),
    ],
)
def test_a_type_that_cannot_be_stored_is_the_workflows_fault(annotation):
    with pytest.raises(InvalidWorkflow, match=r"shop\.copy"):
        dump(annotation, {"first": 1})
