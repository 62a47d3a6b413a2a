"""Where the value behind a secret name ends in a text: after its literal, or else at the end of its line.

A literal is one of Python or JSON: a quoted text with its escapes, a number, a constant, or brackets with all that is
in them. One that does not end is the value up to the end of the text. A value without quotes goes up to the next pair
of a name and a value, up to the end of the quotes or brackets around its name, or up to the end of its line and of the
lines below that are indented. Every reader consumes the characters that it has read, so the time is linear.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache

from chainsched.domain.redaction.surroundings import AFTER_QUOTE, Surroundings

REDACTED = "[redacted]"
_DONE = (REDACTED, f"({REDACTED})")


class Extent(Enum):
    """How far a value without quotes goes, at most."""

    LINE = auto()
    PAIR = auto()
    WORD = auto()
    QUOTES = auto()


@dataclass(frozen=True, slots=True)
class Value:
    """A value in a text: where it begins and ends, and what is shown in its place."""

    begin: int
    end: int
    shown: str = REDACTED


def _quoted(quote: str) -> str:
    """The pattern of a text in quotes that may span lines; without an end it goes up to the end of everything."""
    # A quote behind any backslash is inside: in a text that another one quotes, a backslash is written as two.
    inside = rf"[^{quote}\\]|\\++(?:.|\Z)"
    return (
        rf"{quote}{{3}}(?:{inside}|{quote}(?!{quote}{quote}))*+(?:{quote}{{3}}|\Z)"
        rf"|{quote}{quote}(?![{quote}\w])"
        rf"|{quote}(?:{inside}|{quote}{quote}(?!{AFTER_QUOTE})|{quote}(?!{AFTER_QUOTE}))*+(?:{quote}|\Z)"
    )


_QUOTED = re.compile(rf"(?:{_quoted(chr(34))}|{_quoted(chr(39))})", re.DOTALL)
_INSIDE = re.compile(
    rf"\\(?:.|\Z)|(?<!\w)(?:[bBrRuU]{{0,2}}+(?:{_quoted(chr(34))}|{_quoted(chr(39))}))|([\[({{])|([\])}}])", re.DOTALL
)
_BEGIN = re.compile(
    r"(?P<prefix>[bBrRuU]{0,2}+)(?P<quote>[\"'])|(?P<escaped>\\++)(?P<inner>[\"'])"
    r"|(?:[A-Za-z_][\w.]{0,100}+(?=\())?+(?P<bracket>[(\[{])"
)
_CONSTANT = re.compile(r"(?:None|True|False|null|true|false)(?=[,;)\]}&\r\n]|\Z)")
_NUMBER = re.compile(r"-?\d[\d.eE+\-]*+(?=[,;)\]}]|\Z)")
_NEXT_PART = re.compile(r"[ \t]*+(?:\r?\n|\\++n)[ \t]*+(?=[bBrRuU]{0,2}+[\"'])")
_AFTER_LITERAL = re.compile(AFTER_QUOTE)
_AFTER_BRACKET = re.compile(r"[,;:.)\]}>]|[ \t]*+(?:\r?\n|\Z)")


def _name_of_pair(quote: str) -> str:
    """The pattern of the next name; words for what was found are none: "password: too short, got: …"."""
    return (
        r"[({\[]?+(?!(?:got|value|input|actual|received|provided|given|found|is|was)\b)"
        rf"(?P<{quote}>\\*+[\"']|)[A-Za-z_\-][\w.\-]*+(?P={quote})[ \t]{{0,4}}+"
    )


# Behind blanks alone a word with a colon is no name: "--port: invalid value: …".
_NEXT_PAIR = (
    rf"(?<![\s,;&])\s++{_name_of_pair('behind_blanks')}="
    rf"|(?:(?<![\s,;&])\s*+[,;&][\s,;&]*+|\\[nrt]){_name_of_pair('behind_comma')}(?:=|:(?!//))"
)
_LINE = re.compile(r"\r?\n([ \t]*+)([^\n]*+)")
_ESCAPED = {quote: re.compile(rf"(\\*+){quote}") for quote in "\"'"}
_BLANKS = re.compile(r"[ \t]*+")


def find_value(text: str, begin: int, *, extent: Extent, around: Surroundings) -> Value | None:
    """The value that begins here; None if there is none, or one that reveals nothing."""
    begin = _skip_blanks(text, begin)
    if text.startswith(_DONE, begin) or _CONSTANT.match(text, begin):
        return None
    quote, bracket = around.at(begin)
    if any(mark and text.startswith(mark, begin) and _ends(text, begin + len(mark)) for mark in (quote, bracket)):
        return None
    literal = None if extent is Extent.QUOTES else find_literal(text, begin)
    if literal is not None and _is_whole(text, literal, quote):
        return literal
    # A sign of a line's end that is written is a part of the value if it is the first of it.
    searched_from = literal.end if literal else begin + text.startswith("\\", begin)
    end = _stop(extent, quote, bracket).search(text, searched_from).start()  # type: ignore[union-attr]
    if extent is not Extent.WORD and text.startswith(("\n", "\r\n"), end):
        end = _end_of_block(text, begin, end)
    return Value(begin, end) if end > begin else None


def find_literal(text: str, begin: int) -> Value | None:
    """The literal of Python or JSON that begins here, with its parts on further lines."""
    if number := _NUMBER.match(text, begin):
        return Value(begin, number.end())
    if (first := _BEGIN.match(text, begin)) is None:
        return None
    if first["quote"]:
        shown = first[0] + REDACTED + first["quote"]
        return Value(begin, _end_of_quoted(text, first.start("quote")), shown)
    if first["escaped"]:
        return Value(begin, _end_of_escaped(text, first), first[0] + REDACTED + first[0])
    return Value(begin, find_closing(text, first.start("bracket")))


def _end_of_quoted(text: str, begin: int) -> int:
    """The end of a quoted text; parts of it on lines of their own, as pprint writes them, belong to it."""
    found = _QUOTED.match(text, begin)
    end = len(text) if found is None else found.end()
    while following := _NEXT_PART.match(text, end):
        part = _INSIDE.match(text, following.end())
        if part is None:
            break
        end = part.end()
    return end


def _end_of_escaped(text: str, first: re.Match[str]) -> int:
    """The end of a text in quotes that are escaped: the same quote with as many backslashes, or fewer."""
    escaped = len(first["escaped"])
    for found in _ESCAPED[first["inner"]].finditer(text, first.end()):
        if len(found[1]) <= escaped:
            return found.end() if len(found[1]) == escaped else found.start()
    return len(text)


def find_closing(text: str, begin: int) -> int:
    """The end of the brackets that open here; of brackets that do not close, the end of the text."""
    depth = 0
    for found in _INSIDE.finditer(text, begin):
        depth += bool(found[1]) - bool(found[2])
        if depth <= 0 and (found[1] or found[2]):
            return found.end()
    return len(text)


@lru_cache(maxsize=512)
def _stop(extent: Extent, quote: str, bracket: str) -> re.Pattern[str]:
    """What ends a value without quotes, whichever comes first."""
    ends = [r"\r?\n", r"\Z"]
    if extent is Extent.WORD:
        ends += [r"(?<!\\)\s", "&"]
    if extent is Extent.PAIR:
        ends.append(_NEXT_PAIR)
    if quote:
        ends.append(rf"(?<!\\)\\{{0,{len(quote) - 1}}}{quote[-1]}{AFTER_QUOTE}")
    if bracket:
        ends.append(rf"(?<!\{bracket})\{bracket}++{AFTER_QUOTE}")
    return re.compile("|".join(ends))


def _is_whole(text: str, literal: Value, quote: str) -> bool:
    """Whether nothing of the value follows the literal."""
    if text[literal.end - 1] not in ")]}":
        return _ends(text, literal.end)
    is_last = bool(quote) and text.startswith(quote, literal.end)
    return is_last or _AFTER_BRACKET.match(text, literal.end) is not None


def _ends(text: str, position: int) -> bool:
    """Whether a value may end here."""
    return _AFTER_LITERAL.match(text, position) is not None


def _skip_blanks(text: str, begin: int) -> int:
    blanks = _BLANKS.match(text, begin)
    return begin if blanks is None else blanks.end()


def _end_of_block(text: str, begin: int, end: int) -> int:
    """The end of the lines below that are indented more than the line of the value, as YAML and headers have them."""
    line = text.rfind("\n", 0, begin) + 1
    base = _skip_blanks(text, line) - line
    is_empty = begin == end
    while found := _LINE.match(text, end):
        is_item = is_empty and len(found[1]) == base and found[2].startswith("- ")
        if not found[2].strip() or (len(found[1]) <= base and not is_item):
            break
        end = found.end()
    return end
