"""Documents and texts without their secrets.

The time is linear in the size of the value, and bounded: a part that is nested too deep is replaced as a whole. A
redactor that fails returns the placeholder, never the original value.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from chainsched.domain.redaction.marks import has_mark, may_reveal
from chainsched.domain.redaction.names import is_secret_name
from chainsched.domain.redaction.texts import redact_text_with_marks
from chainsched.domain.redaction.values import REDACTED

MAX_DEPTH = 60
MAX_NESTED_JSON = 4

# Columns of a name and of its value in a list of settings, headers or errors: {"name": "TOKEN", "value": …}.
_NAMING = frozenset({"name", "key", "field", "header", "option", "variable", "parameter", "parametername", "loc"})
_VALUED = frozenset({"value", "values", "input", "content", "default"})
_NAME = re.compile(r"[\w.\-]{1,200}")


def redact(document: Any, *, known: Sequence[str] = ()) -> Any:
    """The document with every value under a secret name replaced, at any depth, also in JSON inside of strings.

    ``known`` are values that are replaced at any place, the longest first.
    """
    try:
        masked = _mask(document, known) if known else document
        return _redact(masked, depth=0, json_depth=0) if may_reveal(masked) else masked
    except Exception:  # noqa: BLE001 - after any error the value must still not be returned
        return REDACTED


def redact_text(text: str, *, known: Sequence[str] = ()) -> str:
    """The text with the values behind secret names replaced: ``password=…``, ``"token": "…"``, headers, URLs, keys.

    ``known`` as above.
    """
    try:
        masked = _mask_text(text, known)
        return redact_text_with_marks(masked) if has_mark(masked) else masked
    except Exception:  # noqa: BLE001 - as above
        return REDACTED


def _mask(value: Any, known: Sequence[str]) -> Any:
    """The document without the known values; its depth is within the limit for documents."""
    if isinstance(value, dict):
        return {_mask(name, known): _mask(item, known) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mask(item, known) for item in value]
    return _mask_text(value, known) if isinstance(value, str) else value


def _mask_text(text: str, known: Sequence[str]) -> str:
    """The text without the known values, as they are and as Python and JSON write them inside of quotes."""
    for secret in known:
        for written in dict.fromkeys((secret, repr(secret)[1:-1], json.dumps(secret)[1:-1])):
            text = text.replace(written, REDACTED)
    return text


def _redact(value: Any, *, depth: int, json_depth: int) -> Any:
    if depth > MAX_DEPTH:
        return REDACTED
    if isinstance(value, dict):
        hides_value = _names_secret(value)
        return {
            _redact_name(name): _hidden(item)
            if is_secret_name(str(name)) or (hides_value and str(name).lower() in _VALUED)
            else _redact(item, depth=depth + 1, json_depth=json_depth)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return list(_redact_items(value, depth=depth + 1, json_depth=json_depth))
    return _redact_string(value, depth=depth, json_depth=json_depth) if isinstance(value, str) else value


def _names_secret(row: dict[Any, Any]) -> bool:
    """Whether the row gives a secret name to the value beside it."""
    names = [item for column, item in row.items() if str(column).lower() in _NAMING]
    parts = [part for name in names for part in (name if isinstance(name, list | tuple) else [name])]
    return any(isinstance(part, str) and _NAME.fullmatch(part) and is_secret_name(part) for part in parts)


def _redact_items(items: Sequence[Any], *, depth: int, json_depth: int) -> Iterator[Any]:
    """The items; one behind an option of a command, and the second of a pair, is the value of that name."""
    is_pair, is_value = len(items) == 2, False
    for item in items:
        yield _hidden(item) if is_value else _redact(item, depth=depth, json_depth=json_depth)
        is_named = isinstance(item, str) and _NAME.fullmatch(item) is not None and is_secret_name(item)
        is_value = is_named and not is_value and (is_pair or item.startswith("-"))


def _redact_name(name: Any) -> Any:
    """A name may itself hold a value: a header line, a URL."""
    return redact_text_with_marks(name) if isinstance(name, str) else name


def _hidden(value: Any) -> Any:
    """The replacement of a value under a secret name; None, an empty text and booleans reveal nothing and stay."""
    return value if value is None or isinstance(value, bool) or value == "" else REDACTED


def _redact_string(text: str, *, depth: int, json_depth: int) -> str:
    if not text.lstrip().startswith(("{", "[", '"')):
        return redact_text_with_marks(text)
    if json_depth >= MAX_NESTED_JSON:
        return REDACTED
    try:
        inner = json.loads(text)
    except ValueError:
        return redact_text_with_marks(text)
    cleaned = _redact(inner, depth=depth + 1, json_depth=json_depth + 1)
    # Of a name that occurs twice, parsing keeps only the last value; the text itself has all of them.
    return redact_text_with_marks(text) if cleaned == inner else _to_json(cleaned)


def _to_json(document: Any) -> str:
    """The document as JSON again. An escaped lone surrogate stays escaped: no database stores the bare character."""
    return json.dumps(document, ensure_ascii=False).encode(errors="backslashreplace").decode()
