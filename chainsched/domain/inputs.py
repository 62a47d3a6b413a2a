"""Typed inputs and outputs: the annotated type is the contract, JSON is the form that is stored."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Final

from pydantic import (
    PydanticInvalidForJsonSchema,
    PydanticUndefinedAnnotation,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from pydantic_core import PydanticSerializationError, to_jsonable_python

from chainsched.exceptions import InvalidInput, InvalidWorkflow

MAX_DEPTH = 50
# Far more than chainsched writes, and far less than the depth at which the JSON readers on the way to a job fail.
MAX_STORED_DEPTH = 500

# Stands for "the input that the manifest has", where None is an input like any other.
OWN_INPUT: Final = object()


class Unreadable:
    """Stands for a stored document that cannot be read, with the reason. It has no JSON form, so it is never stored."""

    __slots__ = ("why",)

    def __init__(self, why: str) -> None:
        self.why = why

    def __str__(self) -> str:
        return self.why


class InputType:
    """The type of a workflow's input: validates declared inputs, loads stored ones.

    ``annotation`` is looked up when it is first needed, so that a type may be defined after its workflow.
    """

    def __init__(self, annotation: Callable[[], Any], *, workflow: str) -> None:
        self._annotation = annotation
        self._workflow = workflow

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        annotation = self._annotation()
        try:
            return TypeAdapter(annotation)
        except (PydanticUserError, PydanticUndefinedAnnotation) as error:
            raise InvalidWorkflow(
                f"The input type of workflow {self._workflow} cannot be stored as JSON: {_first_line(error)} "
                "Use a dataclass, a pydantic model, a TypedDict or plain values."
            ) from error

    def schema(self) -> dict[str, Any]:
        """The JSON Schema of the input; for a type that has none, an empty one, which allows anything."""
        try:
            return self.adapter.json_schema()
        except (PydanticInvalidForJsonSchema, InvalidWorkflow):
            return {}

    def dump(self, value: Any, *, max_bytes: int) -> Any:
        """The JSON form of an input, checked against the type; raises InvalidInput naming each problem."""
        what = f"The input of workflow {self._workflow}"
        checked = self._validate(value)
        try:
            plain = self.adapter.dump_python(checked, warnings=False)
        except (ValueError, TypeError, RecursionError) as error:
            raise InvalidInput(f"{what} has no JSON form: {_first_line(error)}") from error
        document = to_document(plain, what=what, max_bytes=max_bytes)
        # pydantic does not check the fields of an instance; only its stored form shows whether they are wrong.
        self._validate(document)
        return document

    def load(self, stored: Any) -> Any:
        """The typed input behind its stored form; raises InvalidInput when the form no longer fits the type."""
        return self._validate(stored)

    def _validate(self, value: Any) -> Any:
        try:
            return self.adapter.validate_python(value, extra="forbid")
        except ValidationError as error:
            problems = [_problem(entry) for entry in error.errors(include_url=False, include_input=False)]
            raise InvalidInput(
                f"The input does not fit workflow {self._workflow}: {'; '.join(problems)}", problems=problems
            ) from error


def to_document(value: Any, *, what: str, max_bytes: int) -> Any:
    """The value as JSON holds it, if both databases can store that and it is not too large or too deep."""
    if value is None or isinstance(value, bool):
        return value
    try:
        document = json.dumps(to_jsonable_python(value), allow_nan=False, ensure_ascii=False)
        size = len(document.encode())
    except (PydanticSerializationError, ValueError, TypeError, RecursionError) as error:
        raise InvalidInput(f"{what} has no JSON form: {_first_line(error)}") from error
    if size > max_bytes:
        raise InvalidInput(f"{what} is {size:,} bytes of JSON; at most {max_bytes:,} are stored.")
    plain = json.loads(document)
    if "\\u0000" in document and _holds_nul(plain):
        raise InvalidInput(f"{what} holds a NUL character, which databases cannot store. Remove it.")
    if _depth_exceeds(plain, MAX_DEPTH):
        raise InvalidInput(f"{what} is nested more than {MAX_DEPTH} levels deep.")
    # JSON would turn such a key into text, and two different keys perhaps into the same text.
    for key in _odd_keys(value):
        raise InvalidInput(f"{what} has the key {str(key)[:50]!r} of type {type(key).__name__}; keys must be text.")
    return plain


def read_document(text: str) -> Any:
    """The document behind its stored text; Unreadable for a text that only SQL by hand can have written."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Unreadable(f"The stored input cannot be read: {_first_line(error)}")
    # Most texts have too few brackets to be deep, and need no search.
    if text.count("[") + text.count("{") > MAX_STORED_DEPTH and _depth_exceeds(document, MAX_STORED_DEPTH):
        return Unreadable(f"The stored input is nested more than {MAX_STORED_DEPTH} levels deep.")
    return document


def readable(document: Any) -> Any:
    """The document; raises InvalidInput if it could not be read."""
    if isinstance(document, Unreadable):
        raise InvalidInput(document.why)
    return document


def _problem(entry: Any) -> str:
    place = ".".join(str(part) for part in entry["loc"])
    return f"{place}: {entry['msg']}" if place else str(entry["msg"])


def _first_line(error: Exception) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]


def _depth_exceeds(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [child for item in level for child in _children(item)]
        if not level:
            return False
    return True


def _holds_nul(value: Any) -> bool:
    if isinstance(value, str):
        return "\0" in value
    if isinstance(value, dict) and any("\0" in key for key in value):
        return True
    return any(_holds_nul(child) for child in _children(value))


def _odd_keys(value: Any) -> Iterator[Any]:
    """The keys of plain dicts, at any depth of plain containers, that are not text."""
    if isinstance(value, dict):
        yield from (key for key in value if not isinstance(key, str))
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ():
        yield from _odd_keys(child)


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []
