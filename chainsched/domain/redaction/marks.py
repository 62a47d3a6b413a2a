"""A first look at a document or a text, many times as fast as the search: whether anything hints at a secret."""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from chainsched.domain.redaction.names import ENDINGS, IN_ADDRESSES, STEMS, WHOLE, WORDS
from chainsched.domain.redaction.phrases import MISSING, QUOTING, ROWS


def _grouped(*marks: str, by: Iterable[str] = ()) -> dict[str, tuple[str, ...]]:
    """The marks by a part that many of them have: without the part, none of them needs to be looked for."""
    shortest = [mark for mark in set(marks) if not any(other in mark for other in set(marks) - {mark})]
    rest, groups = sorted(shortest), {}
    for part in by:
        groups[part] = tuple(mark for mark in rest if part in mark)
        rest = [mark for mark in rest if part not in mark]
    return {**groups, **{mark: (mark,) for mark in rest}}


# Parts of every secret name, and of what reveals a secret without one: "bearer" is among them, and "privatekey".
_MARKS = _grouped(*STEMS, *ENDINGS, *WORDS, *WHOLE, *("basic", "inputvalue", "identifiedby"), by=("key", "session"))
# What is looked for as it is written. Of the parts of Django's names of settings, the others are marks already.
_WRITTEN = _grouped(
    *("API", "KEY", "eyJ", "[parameters: ", *ROWS),
    *("hooks.slack", "api.telegram", "/api/webhooks/"),
    *("gho_", "ghp_", "ghr_", "ghs_", "ghu_", "glpat", "github_pat", "k_live", "xox"),
    by=("gh",),
)
_IN_LOWER_CASE = _grouped("-u", *QUOTING, MISSING, *(f"{name}=" for name in IN_ADDRESSES), by=("port", "invalid", "="))
_NOT_WORD = re.compile(r"[\W_]+")
_ESCAPED = re.compile(r"\\(?:u[0-9a-f]{4}|.)")
_ASCII_BUT_WORDS = dict.fromkeys(code for code in range(128) if not chr(code).isalnum())


def may_reveal(document: Any) -> bool:
    """False only if nothing in the document would be replaced.

    It takes the document as one text. In that only the escapes of JSON inside of strings, which are escaped themselves,
    could hide a name.
    """
    if isinstance(document, str):
        return "\\" in document or has_mark(document)
    if document is None or isinstance(document, bool | int | float):
        return False
    try:
        text = json.dumps(document, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return True
    return "\\\\" in text or has_mark(_ESCAPED.sub(" ", text))


def has_mark(text: str) -> bool:
    """Whether a secret name, or a secret that needs none, may be in a text, regardless of how it is spelled."""
    if "@" in text and ("://" in text or ":\\" in text or "host" in text.lower() or "resolve " in text.lower()):
        return True
    is_plain = text.isascii()
    plain = text if is_plain else unicodedata.normalize("NFKC", text)
    lower = plain.lower()
    letters = lower.translate(_ASCII_BUT_WORDS) if is_plain else _NOT_WORD.sub("", lower)
    return (
        _has_any(_MARKS, letters)
        or _has_any(_WRITTEN, plain)
        or _has_any(_IN_LOWER_CASE, lower)
        or ("..." in plain and "LINE " in plain)
    )


def _has_any(marks: Mapping[str, tuple[str, ...]], text: str) -> bool:
    return any(part in text and any(mark in text for mark in group) for part, group in marks.items())
