"""Form fields for a JSON Schema: plain values as fields of their own, whatever is nested as JSON in a text area.

The fields only help to write the document. Whether it fits is decided by the type that the schema came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django import forms
from django.forms.fields import InvalidJSONInput

from chainsched.domain.redaction import is_secret_name
from chainsched.secret import FORMAT

PREFIX = "input_"
WHOLE = "input_document"
MAX_FIELDS = 100

_NUMBERS = {"integer": forms.IntegerField, "number": forms.FloatField}


class DocumentField(forms.JSONField):
    """A JSON document in a text area; one that is nested too deep to be read is refused like any other mistake."""

    widget = forms.Textarea(attrs={"class": "vLargeTextField", "rows": 6, "spellcheck": "false"})

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except RecursionError:
            raise forms.ValidationError("It is nested too deep.", code="invalid") from None

    def validate(self, value: Any) -> None:
        """Only nothing is missing; an empty list is a document like any other."""
        if value is None:
            super().validate(value)

    def prepare_value(self, value: Any) -> Any:
        """Nothing is shown as nothing, rather than as ``null``."""
        return "" if value is None else super().prepare_value(value)

    def bound_data(self, data: Any, initial: Any) -> Any:
        """What was typed stands there again as it was typed; read and written anew it may not even be text."""
        return None if data is None else InvalidJSONInput(data)


def fields_of(schema: Mapping[str, Any]) -> dict[str, forms.Field]:
    """The fields that ask for a document of this schema: one a property, or one for the whole."""
    if schema.get("type") == "null":
        return {}
    properties = _properties_of(schema)
    if properties is None:
        return {WHOLE: DocumentField(label="Input as JSON", required=False)}
    return {PREFIX + name: _field(name, asked) for name, asked in properties.items()}


def collect(schema: Mapping[str, Any], answers: Mapping[str, Any]) -> Any:
    """The document that the answers make.

    What was left empty is null where its default was shown or there is none, and null is allowed. All else is left
    out, so that defaults hold.
    """
    properties = _properties_of(schema)
    if properties is None:
        return answers.get(WHOLE)
    given = {name: answers.get(PREFIX + name) for name in properties}
    stated = {name: value for name, value in given.items() if value not in (None, "")}
    return {name: None for name, asked in properties.items() if asked.is_null_if_empty} | stated


def initial_of(schema: Mapping[str, Any], document: Any) -> dict[str, Any]:
    """What the fields show of a document that is there already."""
    if _properties_of(schema) is None:
        return {WHOLE: document}
    return {PREFIX + name: value for name, value in document.items()} if isinstance(document, Mapping) else {}


@dataclass(frozen=True, slots=True)
class _Asked:
    """A property: its description, without ``or null`` and references, and whether it may be null or left out."""

    described: Mapping[str, Any]
    is_nullable: bool
    is_required: bool
    is_hidden: bool

    @property
    def is_null_if_empty(self) -> bool:
        is_shown = self.described.get("default") is not None and not self.is_hidden
        return self.is_nullable and (self.is_required or is_shown)


def _properties_of(schema: Mapping[str, Any]) -> dict[str, _Asked] | None:
    """The properties of an object that can be asked for one by one."""
    definitions = schema.get("$defs", {})
    found = _resolved(schema, definitions)
    properties = found.get("properties")
    if found.get("type") != "object" or not isinstance(properties, Mapping) or len(properties) > MAX_FIELDS:
        return None
    required = set(found.get("required", ()))
    return {name: _asked(name, one, definitions, is_required=name in required) for name, one in properties.items()}


def _asked(name: str, described: Any, definitions: Any, *, is_required: bool) -> _Asked:
    found = _resolved(described, definitions)
    choices = [_resolved(choice, definitions) for choice in found.get("anyOf", ())]
    others = [choice for choice in choices if choice.get("type") != "null"]
    is_nullable = len(others) < len(choices)
    plain = _named({**found, **others[0]}, found) if is_nullable and len(others) == 1 else found
    is_hidden = is_secret_name(name) and plain.get("format") != FORMAT
    return _Asked(plain, is_nullable, is_required, is_hidden)


def _resolved(described: Any, definitions: Any) -> dict[str, Any]:
    """A description with what it refers to in its place, as far as that is in the schema itself."""
    found = dict(described) if isinstance(described, Mapping) else {}
    meant = definitions.get(str(found.get("$ref", "")).removeprefix("#/$defs/"))
    return _named(meant, found) if isinstance(meant, Mapping) else found


def _named(meant: Mapping[str, Any], place: Mapping[str, Any]) -> dict[str, Any]:
    """What is meant in a place, with the title of the place: that of a type says nothing about its use."""
    words = {key: place[key] for key in ("title", "description", "default") if key in place}
    return {key: value for key, value in meant.items() if key != "title"} | words


def _field(name: str, asked: _Asked) -> forms.Field:
    described, is_required = asked.described, asked.is_required and not asked.is_nullable
    options: dict[str, Any] = {
        "label": str(described.get("title", name)),
        "help_text": str(described.get("description", "")),
        "required": is_required,
        "initial": described.get("default"),
    }
    kind = described.get("type")
    if isinstance(described.get("enum"), list) and kind == "string":
        choices = [(value, value) for value in described["enum"]]
        return forms.ChoiceField(choices=choices if is_required else [("", "---------"), *choices], **options)
    if kind in _NUMBERS:
        return _NUMBERS[kind](**options)
    if kind == "boolean":
        return forms.NullBooleanField(**options | {"required": False})
    if kind == "string":
        widget = forms.PasswordInput() if asked.is_hidden else forms.TextInput(attrs={"class": "vTextField"})
        return forms.CharField(strip=False, widget=widget, **options)
    return DocumentField(**options)
