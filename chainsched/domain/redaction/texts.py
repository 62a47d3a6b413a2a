"""The values behind secret names in a text, however the name and the value are put together.

``password=…``, ``'token': [b'…']``, ``('Authorization', '…')``, ``--password …``, ``Token('…')``, ``PASSWORD '…'``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache

from chainsched.domain.redaction.forms import redact_forms
from chainsched.domain.redaction.names import IN_ADDRESSES, MAX_NAME, is_exception, is_header, is_secret_name
from chainsched.domain.redaction.surroundings import Surroundings
from chainsched.domain.redaction.values import Extent, Value, find_closing, find_literal, find_value

# Commands whose arguments are secret: of Redis, of SMTP, FTP and POP3, of SQL.
_COMMANDS = frozenset({"AUTH", "PASS", "requirepass", "masterauth"})
_IDENTIFIED = "identified by"

# Possessive quantifiers throughout, and blanks that are counted: no pattern reads a character more than a few times.
_NAMED = re.compile(
    r"(?<![\w.\-])(?P<name>identified by\b"
    r"|(?:(?:api|access|private|signing|encryption|secret|shared|account|master) (?=[\w.\-])){0,3}+[\w.\-]++)"
    r"(?P<closers>(?:\\*+[\"'`]|&(?:quot|\#39|\#x27|\#34);|%2[27]|\\++u002[27]|\]|%5D|\)){0,4}+)"
    r"(?:(?P<listed>,)?+\s{0,9}+\\*+[\"']?+(?P<value>value|input|default|content)\\*+[\"']?+\s{0,4}+[:=]"
    r"|(?: (?:for|of)(?: [^\s:=,;]{1,64}+){1,3}+(?=:))?+[ \t]{0,40}+(?P<assigned>=>|:=|==|->|=|:(?!//)|%3[AD])"
    r"|\s{0,9}+(?P<comma>,)\s{0,9}+"
    r"|(?P<form>(?:;[^\n\\]{0,200}+)?+(?:(?:\r?\n|\\++r\\++n|\\++n){2}))"
    r"|(?P<call>(?=\())"
    r"|(?P<space>[ \t]{1,4}+(?:(?:is|was|got invalid value)[ \t]{1,4}+)?+(?=\S)))",
    re.IGNORECASE,
)
_SPELLINGS = (("\\", 1), ("%", 2), ("\\", 5))
_OPENS_PAIR = re.compile(r"(?:.*[(\[]\s{0,4})(?:[bBrRuU]{0,2})\\*[\"']", re.DOTALL)
# The quote is near, so that the brackets are read once: they end before it, or everything in them is replaced.
_HAS_QUOTE = re.compile(r"\([^\"'\n]{0,200}+[\"']")
# A word of letters and digits, as no word of a sentence is: "invalid password hunter2".
_LIKE_A_SECRET = re.compile(r"(?=[A-Za-z_\-/+.]{1,99}+\d|\d{1,99}+[A-Za-z])[\w\-/+.~!$%&*@#^]{5,}[\w/+~!$%&*@#^]")
_LITERAL = re.compile(r"[({\[\d]|[bBrRuU]{0,2}+\\*+[\"']")
_QUOTE = re.compile(r"[bBrRuU]{0,2}+\\*+[\"']")


def redact_text_with_marks(text: str) -> str:
    """The text without its secrets; it is searched even if nothing hints at one."""
    return "".join(_without_values(redact_forms(text)))


def _without_values(text: str) -> Iterator[str]:
    """The text piece by piece, with a placeholder for each value that follows a secret name."""
    around = Surroundings(text)
    position = search_from = 0
    while (named := _NAMED.search(text, search_from)) is not None:
        search_from = named.end("name")
        is_secret = _may_be_secret(named["name"][:MAX_NAME]) and _is_secret(text, named)
        value = _value_after(text, named, around) if is_secret else None
        if value is None:
            continue
        yield text[position : value.begin]
        yield value.shown
        position = search_from = value.end
    yield text[position:]


@lru_cache(maxsize=4096)
def _may_be_secret(name: str) -> bool:
    """Whether the name is secret at some place; of most names this is all that has to be asked."""
    parts = (name, *(name[length:] for _, length in _SPELLINGS))
    return name.lower() in {*IN_ADDRESSES, _IDENTIFIED} or any(map(is_secret_name, parts))


def _is_secret(text: str, named: re.Match[str]) -> bool:
    name, begin = named["name"], named.start()
    before = text[begin - 1 : begin]
    if before in {"?", "&"} and named["assigned"] == "=" and name.lower() in IN_ADDRESSES:
        return True
    # What precedes a name may have run into it: \n, %22 and \u0022.
    return (
        is_secret_name(name)
        or name.lower() == _IDENTIFIED
        or any(before == escape and is_secret_name(name[length:]) for escape, length in _SPELLINGS)
    )


def _value_after(text: str, named: re.Match[str], around: Surroundings) -> Value | None:
    name, closers, begin = named["name"], named["closers"], named.end()
    is_quoted = any(quote in closers for quote in "\"'")
    if named["assigned"]:
        is_message = named["assigned"] == ":" and not closers and is_exception(name)
        extent = _extent_of(text, named)
        return None if is_message else find_value(text, begin, extent=extent, around=around)
    if named["value"]:
        is_named = is_quoted or named["listed"] is not None
        return find_value(text, begin, extent=Extent.PAIR, around=around) if is_named else None
    if named["comma"]:
        is_pair = is_quoted and (name.startswith("-") or _opens_pair(text, named.start()))
        return _literal(text, begin) if is_pair else None
    if named["form"]:
        return find_value(text, begin, extent=Extent.LINE, around=around) if is_quoted else None
    if named["space"]:
        return _value_behind_blanks(text, named, around)
    return None if is_exception(name) else _arguments(text, begin)


def _extent_of(text: str, named: re.Match[str]) -> Extent:
    name, assigned = named["name"], named["assigned"]
    before = text[named.start() - 1 : named.start()]
    is_option = name.startswith("-")
    if assigned == "=" and is_option and before in {"'", '"'}:
        return Extent.QUOTES
    if assigned == "=" and (is_option or before in {"?", "&"}):
        return Extent.WORD
    if assigned.startswith("%"):
        return Extent.WORD
    return Extent.LINE if assigned == ":" and is_header(name) else Extent.PAIR


def _opens_pair(text: str, begin: int) -> bool:
    """Whether the name is the first in its brackets."""
    return _OPENS_PAIR.fullmatch(text[max(begin - 10, 0) : begin]) is not None


def _literal(text: str, begin: int) -> Value | None:
    """The literal that begins here, unless it is a name or a call."""
    return find_literal(text, begin) if _LITERAL.match(text, begin) else None


def _value_behind_blanks(text: str, named: re.Match[str], around: Surroundings) -> Value | None:
    """The value of an option, of a command, or one in quotes: PASSWORD 'x'."""
    name, begin = named["name"], named.end()
    if _QUOTE.match(text, begin):
        is_end = around.at(begin)[0] == text[begin]
        return None if is_end else find_literal(text, begin)
    if name.startswith("-") and not named["closers"] and text[begin] != "-":
        return find_value(text, begin, extent=Extent.WORD, around=around)
    if name in _COMMANDS and not named["closers"]:
        return find_value(text, begin, extent=Extent.LINE, around=around)
    is_code = name.isupper() and "_" not in name
    word = None if named["closers"] or is_code or is_exception(name) else _LIKE_A_SECRET.match(text, begin)
    return Value(begin, word.end()) if word else None


def _arguments(text: str, begin: int) -> Value | None:
    """The arguments of a call, if a text in quotes is among them."""
    if _HAS_QUOTE.match(text, begin) is None:
        return None
    end = find_closing(text, begin)
    if '"' not in text[begin:end] and "'" not in text[begin:end]:
        return None
    return Value(begin + 1, end - 1 if text[end - 1] == ")" else end)
