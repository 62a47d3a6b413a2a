"""The quotes and brackets that are open at a place of a text, which end a value that has none of its own."""

from __future__ import annotations

import re

MAX_OPEN = 100
# Of a quote with its backslashes; those behind more are not followed.
MAX_MARK = 6

# What may follow a closing quote. A quote before anything else is a part of the value: 'it's here'.
AFTER_QUOTE = r"(?=[\s,;:)\]}>&|.!?\\\"'`%+<=/#*«»\-]|\Z)"

_CLOSING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_TOKEN = re.compile(r"\n|\\*+[\"']|[()\[\]{}]|<(?=\w)|>")
_AFTER = re.compile(AFTER_QUOTE)
_BEFORE = re.compile(r"(?:.*\W)?[bBrRuU]{0,2}", re.DOTALL)


class Surroundings:
    """Follows a text from left to right; each line begins with nothing open."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0
        self.open: list[str] = []

    def at(self, position: int) -> tuple[str, str]:
        """The quote with its backslashes, and the closing bracket, that end a value here; empty without one."""
        for found in _TOKEN.finditer(self.text, self.position, max(position, self.position)):
            self._pass(found)
        self.position = max(position, self.position)
        quotes = [index for index, mark in enumerate(self.open) if mark not in _CLOSING]
        inner = self.open[quotes[-1] + 1 :] if quotes else self.open
        return (self.open[quotes[-1]] if quotes else "", _CLOSING[inner[-1]] if inner else "")

    def _pass(self, found: re.Match[str]) -> None:
        mark = found[0]
        if mark == "\n":
            self.open.clear()
        elif mark[-1] in "\"'":
            self._pass_quote(found)
        elif mark in _CLOSING:
            self.open.append(mark)
        elif self.open and _CLOSING.get(self.open[-1]) == mark:
            self.open.pop()
        if len(self.open) > MAX_OPEN:
            del self.open[: MAX_OPEN // 2]

    def _pass_quote(self, found: re.Match[str]) -> None:
        """A quote closes what it opened, also with fewer backslashes; with more it belongs to the inside."""
        mark, begin = found[0], found.start()
        of_same = [index for index, other in enumerate(self.open) if other[-1] == mark[-1] and len(other) >= len(mark)]
        if of_same and _AFTER.match(self.text, found.end()):
            del self.open[of_same[-1] :]
        elif not of_same and len(mark) < MAX_MARK and _BEFORE.fullmatch(self.text[max(begin - 3, 0) : begin]):
            self.open.append(mark)
