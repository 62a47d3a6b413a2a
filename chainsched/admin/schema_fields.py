"""Form fields for a JSON Schema: plain values as fields of their own, whatever is nested as JSON in a text area.

The fields only help to write the document. Whether it fits is decided by the type that the schema came from.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django import forms

from chainsched.domain.redaction import is_telling
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

    def prepare_value(self, value: Any) -> Any:
        """Nothing is shown as nothing, rather than as ``null``."""
        return "" if value is None else super().prepare_value(value)

    def bound_data(self, data: Any, initial: Any) -> Any:
        try:
            return super().bound_data(data, initial)
        except RecursionError:
            return ""


def fields_of(schema: Mapping[str, Any]) -> dict[str, forms.Field]:
    """The fields that ask for a document of this schema: one a property, or one for the whole."""
    if schema.get("type") == "null":
        return {}
    properties = _properties(schema)
    if properties is None:
        return {WHOLE: DocumentField(label="Input as JSON", required=False)}
    required = set(schema.get("required", ()))
    return {
        PREFIX + name: _field(name, _plain(described), is_required=name in required)
        for name, described in properties.items()
    }


def collect(schema: Mapping[str, Any], answers: Mapping[str, Any]) -> Any:
    """The document that the answers make; what was left empty is left out, so that defaults hold."""
    properties = _properties(schema)
    if properties is None:
        return answers.get(WHOLE)
    given = {name: answers.get(PREFIX + name) for name in properties}
    return {name: value for name, value in given.items() if value not in (None, "")}


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The properties of an object that can be asked for one by one."""
    properties = schema.get("properties")
    if schema.get("type") != "object" or not isinstance(properties, Mapping) or len(properties) > MAX_FIELDS:
        return None
    return properties


def _plain(described: Any) -> dict[str, Any]:
    """A description without its ``or null``: an empty field says null."""
    found = dict(described) if isinstance(described, Mapping) else {}
    choices = [choice for choice in found.get("anyOf", ()) if choice.get("type") != "null"]
    return {**found, **choices[0]} if len(choices) == 1 else found


def _field(name: str, described: Mapping[str, Any], *, is_required: bool) -> forms.Field:
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
        is_hidden = is_telling(name) and described.get("format") != FORMAT
        widget = forms.PasswordInput() if is_hidden else forms.TextInput(attrs={"class": "vTextField"})
        return forms.CharField(strip=False, widget=widget, **options)
    return DocumentField(**options)
