"""Secrets that stand in a text without a name right before them: in addresses, keys, elements, statements."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterator

from chainsched.domain.redaction.names import is_secret_name
from chainsched.domain.redaction.phrases import (
    find_before_names,
    find_in_cut_lines,
    find_in_hosts,
    find_quoted,
    find_rows,
    find_validated,
    names_secret,
)
from chainsched.domain.redaction.surroundings import AFTER_QUOTE
from chainsched.domain.redaction.values import REDACTED, Value, find_closing, find_literal

_KEY_BEGINS = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_KEY_ENDS = re.compile(r"-----END [A-Z0-9 ]{0,40}PRIVATE KEY-----")
_ADDRESS = re.compile(rf":(?:\\*+/){{2}}(?P<rest>(?:[^\s\"'`]|[\"'`](?!{AFTER_QUOTE}))*+)")
_TOKEN_AS_USER = re.compile(r"[\w.~%+=\-]{20,}+")
_BEARER = re.compile(r"\b(Bearer|Basic)\s{1,4}+[\w.~+/=\-]{8,}+", re.IGNORECASE)
_USER = re.compile(
    r"(?<![\w\-])(?:-u|--user|--proxy-user)(?:=|[ \t]{1,4}+|[\"'],\s{0,4}+)"
    r"(?P<quote>[\"']?+)[^\s:\"'=\-][^\s:\"']{0,200}+:(?!//)",
    re.IGNORECASE,
)
_OF_USER = {
    quote: re.compile(
        rf"(?:[^{blank}{quote}]|{quote}(?!{AFTER_QUOTE}))++" if quote else rf"(?:[^\s\"']|[\"'](?!{AFTER_QUOTE}))++"
    )
    for quote, blank in (("", ""), ("'", r"\n"), ('"', r"\n"))
}
_SHAPED = re.compile(
    r"\beyJ[\w\-]{8,}+\.[\w\-]++(?:\.[\w\-]*+)?+"
    r"|\b(?:gh[oprsu]|github_pat|glpat|[rs]k_live|xox[abprs])[_\-][\w\-]{10,}+"
    r"|(?<=hooks\.slack\.com/services/)[\w/\-]++|(?<=api\.telegram\.org/bot)[\w:\-]++|(?<=/api/webhooks/)[\w/\-]++"
)
_ELEMENT = re.compile(r"(?:<|&lt;)(?P<name>[A-Za-z_][\w:.\-]*+)(?P<attributes>\s[^<>&]*+)?+(?:>|&gt;)")
_ELEMENT_ENDS = re.compile(r"(?:<|&lt;)/([A-Za-z_][\w:.\-]*+)")
_COLUMNS = re.compile(r"\((?P<names>[^()\n]*+)\) ?= ?\(")
_COLUMNS_END = re.compile(
    r"\)(?=[ ](?:already exists|is not present|is still referenced|is duplicated|conflicts with|[»”])"
    r"|[«»”]|[.!]?(?:\r?\n|\Z))|\Z"
)
_INSERTED = re.compile(
    r"(?P<names>\([^()]*+\)|(?<!\.)\.\.\.[^()\n]{0,300}+\))\s{0,9}+VALUES\s{0,9}+(?=\()", re.IGNORECASE
)
# Quotes are doubled inside of quotes there.
_SQL_ROW = re.compile(r"\((?:[^()']|'(?:[^']|'')*+(?:'|\Z)|\([^()']*+\))*+(?:\)|\Z)")
_FURTHER = re.compile(r"\s{0,9}+,\s{0,9}+(?=\()")
_LOCATED = re.compile(
    r"[\"']loc\\{0,9}+[\"']: ?[(\[](?P<names>[^()\[\]\n]*+)[)\]],"
    r"(?:(?!\\{0,9}[\"']input)[^\n]){0,300}+\\{0,9}+[\"']input\\{0,9}+[\"']: ?"
)
_KEPT_COOKIE = re.compile(r"<Cookie [^\s=<>]*+=(?P<value>[^<>\n]*+)>")
# A line ends, or where another text quotes it, the sign of an end is written.
_LINE_END = re.compile(r"\r?\n|\\++n|\Z")
Finder = Callable[[str], Iterator[Value]]


def redact_forms(text: str) -> str:
    """The text without the secrets of these forms."""
    for find in _FINDERS:
        text = "".join(_replaced(text, find(text)))
    text = _SHAPED.sub(REDACTED, text)
    return _BEARER.sub(rf"\1 {REDACTED}", text)


def _replaced(text: str, values: Iterator[Value]) -> Iterator[str]:
    """The text piece by piece; a value that begins inside of another one is a part of it."""
    position = 0
    for value in values:
        if value.begin >= position:
            yield text[position : value.begin]
            yield value.shown
            position = value.end
    yield text[position:]


def _keys(text: str) -> Iterator[Value]:
    """Private keys; one without an end mark goes up to the end of the text."""
    position = 0
    while (begin := _KEY_BEGINS.search(text, position)) is not None:
        end = _KEY_ENDS.search(text, begin.end())
        position = len(text) if end is None else end.end()
        yield Value(begin.start(), position)


def _passwords_in_addresses(text: str) -> Iterator[Value]:
    """What precedes the last @ of an address: a password may hold any other character, and @ as well."""
    for address in _ADDRESS.finditer(text):
        begin = address.start("rest")
        at = address["rest"].rfind("@")
        user, colon, _ = address["rest"][: max(at, 0)].partition(":")
        if colon:
            yield Value(begin + len(user) + 1, begin + at)
        elif _TOKEN_AS_USER.fullmatch(user):
            yield Value(begin, begin + at)


def _passwords_of_users(text: str) -> Iterator[Value]:
    """The password in ``-u user:password``."""
    for user in _USER.finditer(text):
        password = _OF_USER[user["quote"]].match(text, user.end())
        if password is not None:
            yield Value(user.end(), password.end())


def _elements(text: str) -> Iterator[Value]:
    """The contents of XML elements; without an end, up to the end of the line."""
    ends: dict[str, list[int]] = defaultdict(list)
    for end in _ELEMENT_ENDS.finditer(text):
        ends[end[1]].append(end.start())
    position = 0
    for element in _ELEMENT.finditer(text):
        attributes = element["attributes"] or ""
        begin = element.end()
        is_secret = is_secret_name(element["name"].rpartition(":")[2]) and not attributes.endswith("/")
        if begin < position or not is_secret:
            continue
        index = bisect_left(of_name := ends[element["name"]], begin)
        if index < len(of_name):
            position = of_name[index]
        elif not attributes or '="' in attributes:
            position = _line_end(text, begin)
        if position > begin:
            yield Value(begin, position)


def _line_end(text: str, begin: int) -> int:
    end = text.find("\n", begin)
    return len(text) if end < 0 else end


def _columns(text: str) -> Iterator[Value]:
    """The values in ``Key (name)=(value) already exists``."""
    position = 0
    while (columns := _COLUMNS.search(text, position)) is not None:
        position = columns.end()
        if names_secret(columns["names"]) and (end := _COLUMNS_END.search(text, position)) is not None:
            yield Value(position, end.start())
            position = end.start()


def _inserted(text: str) -> Iterator[Value]:
    """The values of an INSERT into a secret column, or into columns of which some are left out."""
    position = 0
    while (inserted := _INSERTED.search(text, position)) is not None:
        position = inserted.end()
        if not (inserted["names"].startswith("...") or names_secret(inserted["names"])):
            continue
        begin, further = position, True
        while further:
            position = _end_of_row(text, position)
            further = (comma := _FURTHER.match(text, position)) is not None
            position = comma.end() if comma else position
        if "'" in text[begin:position]:
            yield Value(begin, position, f"({REDACTED})")


def _end_of_row(text: str, begin: int) -> int:
    """The end of the brackets as SQL writes texts; with backslashes, which some databases escape by, the later end."""
    row = _SQL_ROW.match(text, begin)
    if row is not None and "\\" not in row[0]:
        return row.end()
    return max(find_closing(text, begin), begin if row is None else row.end())


def _kept_cookies(text: str) -> Iterator[Value]:
    """The values of cookies as a jar shows them: ``<Cookie name=value for host/>``."""
    for cookie in _KEPT_COOKIE.finditer(text):
        host = cookie["value"].rfind(" for ")
        yield Value(cookie.start("value"), cookie.end("value") if host < 0 else cookie.start("value") + host)


def _located(text: str) -> Iterator[Value]:
    """The input in an error of pydantic that is shown as a dictionary."""
    position = 0
    while (error := _LOCATED.search(text, position)) is not None:
        position = error.end()
        if names_secret(error["names"]) and (value := find_literal(text, position)) is not None:
            yield value
            position = value.end


def _lines(text: str) -> Iterator[Value]:
    """The inputs that pydantic shows below the name of their field, and the parameters of statements of SQLAlchemy."""
    if "input_value=" not in text and "[parameters: " not in text:
        return
    name, begin, done, is_secret_statement = "", 0, 0, False
    for line_end in _LINE_END.finditer(text):
        line, value = text[begin : line_end.start()], None
        if begin < done:
            pass
        elif (at := line.find("input_value=")) >= 0:
            value = _input(text, begin + at + len("input_value="), name)
        elif (at := line.find("[parameters: ")) >= 0:
            if is_secret_statement and line.startswith(("(", "[("), at + 13):
                value = Value(begin + at + 13, _line_end(text, begin))
        elif line.strip(" |"):
            name = line.strip(" |")
        if value is not None:
            yield value
            done = value.end
        is_secret_statement = _in_statement(line, is_secret_statement)
        begin = line_end.end()


def _in_statement(line: str, is_secret: bool) -> bool:
    at = line.find("[SQL: ")
    statement = line[at:].partition("[parameters: ")[0] if at >= 0 else line
    return (is_secret and at < 0) or names_secret(statement)


def _input(text: str, begin: int, name: str) -> Value | None:
    """The input of a secret field, and one of which a part is left out, and so perhaps the name of a secret."""
    line_end = _line_end(text, begin)
    end = text.rfind(", input_type=", begin, line_end)
    value = Value(begin, end if end >= 0 else line_end)
    is_secret = " " not in name and names_secret(name)
    return value if is_secret or text.find("...", begin, value.end) >= 0 else None


_FINDERS: tuple[Finder, ...] = (
    _keys,
    _passwords_in_addresses,
    _passwords_of_users,
    _elements,
    _columns,
    find_rows,
    find_in_cut_lines,
    find_quoted,
    find_before_names,
    find_in_hosts,
    find_validated,
    _inserted,
    _kept_cookies,
    _located,
    _lines,
)
