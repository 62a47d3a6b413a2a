"""Forms made from a JSON Schema: which field stands for what, and what comes out of them."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest
from django import forms
from pydantic import BaseModel, Field, TypeAdapter
from pydantic_core import core_schema

from chainsched.admin.kit.schema_fields import WHOLE, DocumentField, collect, fields_of, initial_of
from chainsched.domain.inputs import InputType


@dataclass
class Job:
    table: str
    size: int = 500
    ratio: float | None = None
    mode: Literal["full", "delta"] = "full"
    is_dry: bool = False
    columns: list[str] = field(default_factory=list)
    options: dict[str, int] = field(default_factory=dict)
    password: str = ""


SCHEMA = TypeAdapter(Job).json_schema()


def made() -> dict[str, forms.Field]:
    return fields_of(SCHEMA)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("table", forms.CharField),
        ("size", forms.IntegerField),
        ("ratio", forms.FloatField),
        ("mode", forms.ChoiceField),
        ("is_dry", forms.NullBooleanField),
        ("columns", DocumentField),
        ("options", DocumentField),
    ],
)
def test_each_type_has_its_field(name: str, kind: type[forms.Field]) -> None:
    assert type(made()[f"input_{name}"]) is kind


def test_only_what_has_no_default_is_required() -> None:
    assert [name for name, asked in made().items() if asked.required] == ["input_table"]
    assert made()["input_size"].initial == 500


def test_what_has_a_telling_name_is_not_shown_while_it_is_typed() -> None:
    assert isinstance(made()["input_password"].widget, forms.PasswordInput)


@pytest.mark.parametrize(
    "schema", [{}, {"type": "array"}, {"type": "string"}, {"type": "object"}, {"$ref": "#/$defs/A"}]
)
def test_what_is_no_object_with_properties_is_asked_for_as_a_whole(schema: dict[str, Any]) -> None:
    assert list(fields_of(schema)) == [WHOLE]
    assert collect(schema, {WHOLE: [1]}) == [1]


def test_a_workflow_without_input_is_asked_for_nothing() -> None:
    assert fields_of({"type": "null"}) == {}
    assert collect({"type": "null"}, {}) is None


def test_what_was_left_empty_is_left_out() -> None:
    answers: dict[str, Any] = {
        "input_table": "t",
        "input_size": None,
        "input_mode": "",
        "input_is_dry": False,
        "input_columns": [],
    }
    assert collect(SCHEMA, answers) == {"table": "t", "is_dry": False, "columns": []}


def test_an_input_without_a_schema_is_asked_for_as_a_whole() -> None:
    class Shapeless:
        @classmethod
        def __get_pydantic_core_schema__(cls, _source: Any, _handler: Any) -> Any:
            return core_schema.no_info_plain_validator_function(lambda value: value)

    assert list(fields_of(InputType(lambda: Shapeless, workflow="tests.shapeless").schema())) == [WHOLE]


class Region(enum.StrEnum):
    NORTH = "north"
    SOUTH = "south"


class Part(BaseModel):
    name: str
    children: list[Part] = []


class Move(BaseModel):
    source: Region
    target: Region | None = None
    parts: list[Part]
    rows: dict[str, int]
    limit: int | None
    note: str | None = "by hand"
    tags: list[str] | None = Field(default_factory=list)
    token: str | None = "none yet"


def test_an_enumeration_is_a_choice_named_as_its_place() -> None:
    asked = fields_of(Move.model_json_schema())
    for name, choices in (("source", ["north", "south"]), ("target", ["", "north", "south"])):
        found: Any = asked[f"input_{name}"]
        assert isinstance(found, forms.ChoiceField)
        assert [value for value, _ in found.widget.choices] == choices
        assert str(found.label).lower() == name


def test_an_input_that_refers_to_itself_is_asked_for_field_by_field() -> None:
    assert list(fields_of(Part.model_json_schema())) == ["input_name", "input_children"]


def test_an_empty_list_is_no_missing_answer() -> None:
    asked = fields_of(Move.model_json_schema())
    assert asked["input_parts"].clean("[]") == []
    assert asked["input_rows"].clean("{}") == {}
    with pytest.raises(forms.ValidationError):
        asked["input_parts"].clean("")


def test_what_was_emptied_is_null_where_that_is_allowed() -> None:
    schema = Move.model_json_schema()
    assert not fields_of(schema)["input_limit"].required
    answers = {"input_source": "north", "input_parts": [], "input_rows": {}}
    document = collect(schema, answers)
    assert document == {"source": "north", "parts": [], "rows": {}, "limit": None, "note": None}
    assert Move.model_validate(document).tags == []
    assert collect(schema, answers | {"input_note": "night"})["note"] == "night"


def test_what_is_there_already_is_shown() -> None:
    assert initial_of(SCHEMA, {"table": "t"}) == {"input_table": "t"}
    assert initial_of({"type": "array"}, [1]) == {WHOLE: [1]}
    assert initial_of(SCHEMA, None) == {}
