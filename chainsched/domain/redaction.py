"""Removal of values that must not be shown or stored: those under secret names, in documents and in text.

A secret name is a name such as ``password`` or ``api_token``, under which a secret value is likely. The time is linear
in the size of the value, and bounded: a part that is nested too deep, or cannot be searched, is replaced as a whole. A
redactor that fails returns the placeholder, never the original value.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

REDACTED = "[redacted]"
MAX_DEPTH = 60
MAX_NESTED_JSON = 4
MAX_NAME = 200

# The first mark a name as secret anywhere in it, the others only as a word of their own or at the end of one.
_STEMS = (
    "password",
    "passwd",
    "passphrase",
    "secret",
    "credential",
    "authorization",
    "apikey",
    "accesskey",
    "privatekey",
    "encryptionkey",
    "signingkey",
    "cookie",
    "sessionid",
    "connectionstring",
)
_ENDINGS = ("token", "tokens", "pwd")
_WORDS = frozenset({"token", "tokens", "pwd", "pass", "dsn", "jwt", "auth", "bearer"})

_CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOT_WORD = re.compile(r"[\W_]+")

# Possessive quantifiers throughout: no pattern reads a character twice.
_NAMED = re.compile(
    r"(?<![\w.\-])((?:(?:api|access|private|signing|encryption) )?+[\w.\-]++)(?:\\*+[\"'])?+"
    r"\s{0,4}+(?:=>|==|[=:])\s{0,4}+",
    re.IGNORECASE,
)
_VALUE = re.compile(
    r"(?:(?:Bearer|Basic|Digest|Token)\s{1,4}+)?+"
    r"(?:(\")(?:[^\"\\\n]|\\.)*+\"?+|(')(?:[^'\\\n]|\\.)*+'?+"
    r"|(\\++\")[^\"\n]*+\"?+|(\\++')[^'\n]*+'?+|[^\s,;&\"')}\]]++)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s{1,4}+[\w.~+/=\-]{8,}+", re.IGNORECASE)
_IN_URL = re.compile(r"(://[^\s/:@]{0,256}+:)[^\s/@]{1,256}+@")
_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")

# Parts of every secret name, and of what reveals a secret without one: "bearer" is among them, and "privatekey".
_ALL_MARKS = frozenset({*_STEMS, *_ENDINGS, *_WORDS, "basic"})
_MARKS = tuple(sorted(mark for mark in _ALL_MARKS if not any(other in mark for other in _ALL_MARKS - {mark})))
_ESCAPED = re.compile(r"\\(?:u[0-9a-f]{4}|.)")
_ASCII_BUT_WORDS = dict.fromkeys(code for code in range(128) if not chr(code).isalnum())


def redact(document: Any, *, known: Sequence[str] = ()) -> Any:
    """The document with every value under a secret name replaced, at any depth, also in JSON inside of strings.

    ``known`` are values that are replaced at any place, the longest first.
    """
    try:
        masked = _mask(document, known) if known else document
        return _redact(masked, depth=0, json_depth=0) if _may_reveal(masked) else masked
    except Exception:  # noqa: BLE001 - after any error the value must still not be returned
        return REDACTED


def redact_text(text: str, *, known: Sequence[str] = ()) -> str:
    """The text with the values after secret names replaced: ``password=…``, ``"token": "…"``, headers, URLs, keys.

    ``known`` as above.
    """
    try:
        masked = _mask_text(text, known)
        return _redact_text(masked) if _has_mark(masked) else masked
    except Exception:  # noqa: BLE001 - as above
        return REDACTED


def is_secret_name(name: str) -> bool:
    """Whether a value under this name is likely to be secret, regardless of how the name is spelled."""
    return _is_secret_name(name[:MAX_NAME])


@lru_cache(maxsize=4096)
def _is_secret_name(name: str) -> bool:
    """The answer for a name that is cut already, so that the cache stays small."""
    plain = unicodedata.normalize("NFKC", name)
    words = [word for word in _NOT_WORD.split(_CAMEL_CASE_BOUNDARY.sub("_", plain).lower()) if word]
    whole = "".join(words)
    return (
        any(stem in whole for stem in _STEMS) or whole.endswith(_ENDINGS) or not _WORDS.isdisjoint(words)
    ) and not _counts(words)


def _may_reveal(document: Any) -> bool:
    """A first look, many times as fast as the search: False only if nothing in the document would be replaced.

    It takes the document as one text. In that only the escapes of JSON inside of strings, which are escaped themselves,
    could hide a name.
    """
    if isinstance(document, str):
        return "\\" in document or _has_mark(document)
    if document is None or isinstance(document, bool | int | float):
        return False
    try:
        text = json.dumps(document, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return True
    return "\\\\" in text or _has_mark(_ESCAPED.sub(" ", text))


def _has_mark(text: str) -> bool:
    """Whether a secret name, or a secret that needs none, may be in a text, regardless of how it is spelled."""
    if "@" in text and "://" in text:
        return True
    if text.isascii():
        letters = text.lower().translate(_ASCII_BUT_WORDS)
    else:
        letters = _NOT_WORD.sub("", unicodedata.normalize("NFKC", text).lower())
    return any(mark in letters for mark in _MARKS)


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


def _counts(words: list[str]) -> bool:
    """Whether the name is that of a number of tokens, such as ``max_tokens`` or ``tokens_used``."""
    return "tokens" in words and not {"max", "min", "used", "count", "total", "limit"}.isdisjoint(words)


def find_secret_names(schema: Any, *, by_name_only: str) -> list[str]:
    """The properties in a JSON Schema, at any depth, that have secret names and hold texts.

    Properties of the format ``by_name_only`` hold only the name of a secret and are allowed.
    """
    found: list[str] = []
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        if isinstance(part, dict):
            properties = part.get("properties")
            for name, described in properties.items() if isinstance(properties, dict) else ():
                if is_secret_name(str(name)) and _holds_text(described, by_name_only):
                    found.append(str(name))
            waiting += part.values()
        elif isinstance(part, list):
            waiting += part
    return sorted(set(found))


def _holds_text(described: Any, by_name_only: str) -> bool:
    if not isinstance(described, dict):
        return False
    inside = [described.get("items"), described.get("additionalProperties"), *described.get("anyOf", [])]
    is_text = described.get("type") == "string" and described.get("format") != by_name_only
    return is_text or any(_holds_text(part, by_name_only) for part in inside)


def _redact(value: Any, *, depth: int, json_depth: int) -> Any:
    if depth > MAX_DEPTH:
        return REDACTED
    if isinstance(value, dict):
        return {
            _redact_name(name): _hidden(item)
            if is_secret_name(str(name))
            else _redact(item, depth=depth + 1, json_depth=json_depth)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_redact(item, depth=depth + 1, json_depth=json_depth) for item in value]
    return _redact_string(value, depth=depth, json_depth=json_depth) if isinstance(value, str) else value


def _redact_name(name: Any) -> Any:
    """A name may itself hold a value: a header line, a URL."""
    return _redact_text(name) if isinstance(name, str) else name


def _hidden(value: Any) -> Any:
    """The replacement of a value under a secret name; None, an empty text and booleans reveal nothing and stay."""
    return value if value is None or isinstance(value, bool) or value == "" else REDACTED


def _redact_string(text: str, *, depth: int, json_depth: int) -> str:
    if not text.lstrip().startswith(("{", "[", '"')):
        return _redact_text(text)
    if json_depth >= MAX_NESTED_JSON:
        return REDACTED
    try:
        inner = json.loads(text)
    except ValueError:
        return _redact_text(text)
    cleaned = _redact(inner, depth=depth + 1, json_depth=json_depth + 1)
    # Of a name that occurs twice, parsing keeps only the last value; the text itself has all of them.
    return _redact_text(text) if cleaned == inner else _to_json(cleaned)


def _to_json(document: Any) -> str:
    """The document as JSON again. An escaped lone surrogate stays escaped: no database stores the bare character."""
    return json.dumps(document, ensure_ascii=False).encode(errors="backslashreplace").decode()


def _redact_text(text: str) -> str:
    shown = "".join(_without_values(_without_keys(text)))
    shown = _BEARER.sub(rf"\1 {REDACTED}", shown)
    return _IN_URL.sub(rf"\1{REDACTED}@", shown)


def _without_keys(text: str) -> str:
    """The text without private keys; a key without an end mark goes up to the end of the text."""
    parts, position = [], 0
    while (begin := _KEY_BEGINS.search(text, position)) is not None:
        end = _KEY_ENDS.search(text, begin.end())
        parts += [text[position : begin.start()], REDACTED]
        position = len(text) if end is None else end.end()
    return "".join([*parts, text[position:]])


def _without_values(text: str) -> Iterator[str]:
    """The text piece by piece, with a placeholder for each value that follows a secret name."""
    position = 0
    search_from = 0
    while (named := _NAMED.search(text, search_from)) is not None:
        search_from = named.end()
        if not is_secret_name(named[1]):
            continue
        value = _VALUE.match(text, named.end())
        if value is None:
            continue
        quote = next(filter(None, value.groups()), "")
        yield text[position : named.end()]
        yield f"{quote}{REDACTED}{quote}"
        position = search_from = value.end()
    yield text[position:]
