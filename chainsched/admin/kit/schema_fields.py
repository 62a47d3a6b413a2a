"""Form fields for a JSON Schema: plain values as fields of their own, nested values as JSON in a text area.

The fields only help to write the document. The type that the schema comes from decides whether it is valid.
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
    """A JSON document in a text area; one that is nested too deep to be parsed is a validation error."""

    widget = forms.Textarea(attrs={"class": "vLargeTextField", "rows": 6, "spellcheck": "false"})

    def to_python(self, value: Any) -> Any:
        try:
            return super().to_python(value)
        except RecursionError:
            raise forms.ValidationError("The document is nested too deep.", code="invalid") from None

    def validate(self, value: Any) -> None:
        """Only None counts as missing; an empty list is a valid document."""
        if value is None:
            super().validate(value)

    def prepare_value(self, value: Any) -> Any:
        """None is shown as an empty field, rather than as ``null``."""
        return "" if value is None else super().prepare_value(value)

    def bound_data(self, data: Any, initial: Any) -> Any:
        """The text as the user typed it; parsed and formatted again it may not be valid text."""
        return None if data is None else InvalidJSONInput(data)


def fields_of(schema: Mapping[str, Any]) -> dict[str, forms.Field]:
    """The fields for a document of this schema: one for each property, or one for the whole document."""
    if schema.get("type") == "null":
        return {}
    properties = _properties_of(schema)
    if properties is None:
        return {WHOLE: DocumentField(label="Input as JSON", required=False)}
    return {PREFIX + name: _field(name, one) for name, one in properties.items()}


def collect(schema: Mapping[str, Any], answers: Mapping[str, Any]) -> Any:
    """The document that the answers make up.

    A field that was left empty is null if null is allowed and its default was shown or it has none. Other empty fields
    are left out, so that defaults apply.
    """
    properties = _properties_of(schema)
    if properties is None:
        return answers.get(WHOLE)
    given = {name: answers.get(PREFIX + name) for name in properties}
    stated = {name: value for name, value in given.items() if value not in (None, "")}
    return {name: None for name, one in properties.items() if one.is_null_if_empty} | stated


def initial_of(schema: Mapping[str, Any], document: Any) -> dict[str, Any]:
    """The initial values of the fields for an existing document."""
    if _properties_of(schema) is None:
        return {WHOLE: document}
    return {PREFIX + name: value for name, value in document.items()} if isinstance(document, Mapping) else {}


@dataclass(frozen=True, slots=True)
class _Property:
    """A property: its schema, without ``or null`` and references, and whether it may be null or left out."""

    schema: Mapping[str, Any]
    is_nullable: bool
    is_required: bool
    is_hidden: bool

    @property
    def is_null_if_empty(self) -> bool:
        is_shown = self.schema.get("default") is not None and not self.is_hidden
        return self.is_nullable and (self.is_required or is_shown)


def _properties_of(schema: Mapping[str, Any]) -> dict[str, _Property] | None:
    """The properties of an object that can have a field each; None if they cannot."""
    definitions = schema.get("$defs", {})
    found = _resolved(schema, definitions)
    properties = found.get("properties")
    if found.get("type") != "object" or not isinstance(properties, Mapping) or len(properties) > MAX_FIELDS:
        return None
    required = set(found.get("required", ()))
    return {
        name: _property_of(name, one, definitions, is_required=name in required) for name, one in properties.items()
    }


def _property_of(name: str, schema: Any, definitions: Any, *, is_required: bool) -> _Property:
    found = _resolved(schema, definitions)
    choices = [_resolved(choice, definitions) for choice in found.get("anyOf", ())]
    others = [choice for choice in choices if choice.get("type") != "null"]
    is_nullable = len(others) < len(choices)
    plain = _named({**found, **others[0]}, found) if is_nullable and len(others) == 1 else found
    is_hidden = is_secret_name(name) and plain.get("format") != FORMAT
    return _Property(plain, is_nullable, is_required, is_hidden)


def _resolved(schema: Any, definitions: Any) -> dict[str, Any]:
    """A schema with its reference replaced by the definition, if the definition is in the schema itself."""
    found = dict(schema) if isinstance(schema, Mapping) else {}
    definition = definitions.get(str(found.get("$ref", "")).removeprefix("#/$defs/"))
    return _named(definition, found) if isinstance(definition, Mapping) else found


def _named(definition: Mapping[str, Any], place: Mapping[str, Any]) -> dict[str, Any]:
    """A definition with the title of the place that refers to it: the title of a type does not explain its use."""
    words = {key: place[key] for key in ("title", "description", "default") if key in place}
    return {key: value for key, value in definition.items() if key != "title"} | words


def _field(name: str, one: _Property) -> forms.Field:
    schema, is_required = one.schema, one.is_required and not one.is_nullable
    options: dict[str, Any] = {
        "label": str(schema.get("title", name)),
        "help_text": str(schema.get("description", "")),
        "required": is_required,
        "initial": schema.get("default"),
    }
    kind = schema.get("type")
    if isinstance(schema.get("enum"), list) and kind == "string":
        choices = [(value, value) for value in schema["enum"]]
        return forms.ChoiceField(choices=choices if is_required else [("", "---------"), *choices], **options)
    if kind in _NUMBERS:
        return _NUMBERS[kind](**options)
    if kind == "boolean":
        return forms.NullBooleanField(**options | {"required": False})
    if kind == "string":
        widget = forms.PasswordInput() if one.is_hidden else forms.TextInput(attrs={"class": "vTextField"})
        return forms.CharField(strip=False, widget=widget, **options)
    return DocumentField(**options)
