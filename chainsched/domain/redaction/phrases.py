"""Phrases of libraries that quote a value without its name, or before it: rows, keys, ports, headers, hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from chainsched.domain.redaction.names import is_secret_name
from chainsched.domain.redaction.surroundings import AFTER_QUOTE
from chainsched.domain.redaction.values import Value, find_literal

# Parts of an address that was taken apart at the wrong place, headers, arguments of commands, keys.
QUOTING = (
    "nonnumeric port: ",
    "port could not be cast to integer value as ",
    "invalid port: ",
    "invalid integer value ",
    "invalid header value ",
    "args beginning with: ",
    "duplicate key value is ",
    "at or near ",
)
# As it is written in quotes of another text, too.
_MISSING = r"missing \\{0,9}\"=\\{0,9}\" after "
MISSING = " in connection info"
ROWS = ("Failing row contains (", "COPY ")

_QUOTING = re.compile("|".join([*map(re.escape, QUOTING), _MISSING]), re.IGNORECASE)
_FURTHER = re.compile(r",? (?=[\"'])")
_ROW = re.compile(r"Failing row contains \(|\bCOPY [^\s,]{1,200}+, line \d{1,20}+: \"")
_ROW_ENDS = {mark: re.compile(rf"\{mark}[.]?(?=[ \t]{{0,9}}+(?:\r?\n|\Z))|\Z") for mark in (")", '"')}
_BEFORE_NAME = re.compile(
    r"(?:Duplicate entry|value:) \\{0,9}+'(?P<value>(?:(?!\\{0,9}' for )[^\n]){0,300}+)\\{0,9}+'"
    r" for (?:key|column) (?P<name>[^\n ]{0,200}+)"
)
_HOST = re.compile(
    r"(?:\bhost(?:name)?\\{0,9}+[\"']?(?: ?[=:] ?| name )|\bresolve )\\{0,9}+[\"']?"
    rf"(?P<host>(?:[^\s\"'`]|[\"'`](?!{AFTER_QUOTE}))++)",
    re.IGNORECASE,
)
_VALIDATED = re.compile(r"Failed validating [^\n]*?schema(?P<path>[^\n:]*+)")
# A literal of SQL stands in quotes of its own.
_OUTER_QUOTE = re.compile(r"(?:\\{0,9}\"(?='))?")
# A line of a statement that PostgreSQL shows in part, and so perhaps without the names of its values.
_LINE = re.compile(r"LINE \d{1,9}: (?P<cut>\.\.\.)?+(?P<rest>(?:[^\n\\]|\\++(?!n))*+)")
_QUOTE = re.compile(r"(?:\\{0,9}\"(?='))?")
# The part of a statement that PostgreSQL shows without its beginning, and so without the names of its values.
_CUT_LINE = re.compile(r"LINE \d{1,9}: \.\.\.(?P<rest>[^\n]*+)")
_QUOTE = re.compile(r"[\"']")
_WORD = re.compile(r"[\w\-]++")


def names_secret(names: str) -> bool:
    """Whether one of the words is a secret name."""
    return any(is_secret_name(word) for word in _WORD.findall(names))


def find_quoted(text: str) -> Iterator[Value]:
    """What is quoted after these phrases, and the further values that are quoted with it."""
    position, lower = 0, text.lower()
    # Plain searches are many times as fast as that for one of several phrases.
    if not any(phrase in lower for phrase in (*QUOTING, MISSING)):
        return
    while (phrase := _QUOTING.search(text, position)) is not None:
        position = _OUTER_QUOTE.match(text, phrase.end()).end()  # type: ignore[union-attr]
        while (value := find_literal(text, position)) is not None:
            yield value
            further = _FURTHER.match(text, value.end)
            position = value.end if further is None else further.end()
            if further is None:
                break


def find_rows(text: str) -> Iterator[Value]:
    """The values of a whole row, which PostgreSQL shows without the names of its columns."""
    position = 0
    while (row := _ROW.search(text, position)) is not None:
        end = _ROW_ENDS[")" if row[0].endswith("(") else '"'].search(text, row.end())
        position = len(text) if end is None else end.start()
        yield Value(row.end(), position)


def find_in_cut_lines(text: str) -> Iterator[Value]:
    """The texts in a line of a statement that is cut, from the first of them to the last."""
    for line in _LINE.finditer(text):
        rest, begin = line["rest"], line.start("rest")
        is_open = rest.rstrip("\\\"')]}").endswith("...")
        first, last = rest.find("'"), len(rest) if is_open else rest.rfind("'") + 1
        if first >= 0 and (is_open or line["cut"]):
            is_whole = not line["cut"] or rest[:first].endswith((" ", "(", ",", "="))
            yield Value(begin + (first if is_whole else 0), begin + last)


def find_before_names(text: str) -> Iterator[Value]:
    """The value in ``Duplicate entry 'value' for key 'table.name'`` and ``Incorrect … value: 'value' for column …``."""
    for entry in _BEFORE_NAME.finditer(text):
        if names_secret(entry["name"]):
            yield Value(entry.start("value"), entry.end("value"))


def find_in_hosts(text: str) -> Iterator[Value]:
    """The rest of a password with an @ in it, which a library took for the beginning of the host."""
    for found in _HOST.finditer(text):
        if (at := found["host"].rfind("@")) > 0:
            yield Value(found.start("host"), found.start("host") + at)


def find_validated(text: str) -> Iterator[Value]:
    """The instance with which a message of jsonschema begins, if it stood under a secret name."""
    position = 0
    for message in _VALIDATED.finditer(text):
        end = len(text[position : message.start()].rstrip()) + position
        quote = _QUOTE.search(text, max(text.rfind("\n", position, end), position), end)
        if quote is not None and names_secret(message["path"]):
            yield Value(quote.start(), end)
        position = message.end()
