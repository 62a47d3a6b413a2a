"""How an execution ended, in a form that any database can store, and which dependents that makes due."""

from __future__ import annotations

import enum
import hashlib
import re
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chainsched.domain.redaction import redact, redact_text
from chainsched.domain.states import ExecutionState, RunCondition
from chainsched.exceptions import GiveUp

MAX_TEXT = 64 * 1024
MAX_TYPE_NAME = 200
# Longer than the rest of a secret that remains when a first cut removed its name or its other half.
EDGE = 8192
CUT_MARK = "\n… (cut: the text was {length:,} characters long) …\n"

_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
_NUMBERS = re.compile(r"\d+")


class FailureType(enum.StrEnum):
    """The cause of a failed attempt, if it was no exception of the user's code."""

    LOST = "lost"
    TIMEOUT = "timeout"
    KILLED = "killed"
    BAD_INPUT = "bad_input"
    BAD_OUTPUT = "bad_output"
    UNKNOWN_WORKFLOW = "unknown_workflow"
    OPEN_TRANSACTION = "open_transaction"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended. ``is_permanent`` means that another attempt would fail too, so none is made."""

    state: ExecutionState
    output: Any = None
    failure_type: str = ""
    failure_reason: str = ""
    failure_traceback: str = ""
    failure_fingerprint: str = ""
    is_permanent: bool = False

    @property
    def was_lost(self) -> bool:
        return self.failure_type == FailureType.LOST


@dataclass(frozen=True, slots=True)
class Finished:
    """An execution and how it ended; ``began_after`` is the number of seconds from its claim to its start, if known."""

    execution_id: int
    outcome: Outcome
    began_after: float | None = None


_COMPLETED = Outcome(ExecutionState.COMPLETED)


def completed(output: Any, *, known: Sequence[str] = ()) -> Outcome:
    """The outcome of user code that returned; ``output`` is its JSON form.

    Here and below, values that are likely to be secret are removed before anything is stored; ``known`` are values
    that certainly are.
    """
    return _COMPLETED if output is None else Outcome(ExecutionState.COMPLETED, output=redact(output, known=known))


def failed(failure_type: FailureType, reason: str, *, known: Sequence[str] = ()) -> Outcome:
    """A failure that was not caused by an exception of the user's code."""
    stored_reason = presentable(reason, known=known)
    return Outcome(
        ExecutionState.FAILED,
        failure_type=failure_type,
        failure_reason=stored_reason,
        failure_fingerprint=_fingerprint(failure_type, "", stored_reason),
        is_permanent=failure_type is FailureType.BAD_INPUT,
    )


def raised(error: BaseException, *, known: Sequence[str] = ()) -> Outcome:
    """The outcome of user code that raised, as text: the exception is never rebuilt from it."""
    try:
        return _described(error, known=known)
    except BaseException as nested:  # noqa: BLE001 - the user's class may override any attribute that is read
        name = writable(type.__repr__(type(error)))[:MAX_TYPE_NAME]
        reason = f"(it cannot be described: {type(nested).__name__})"
        fingerprint = _fingerprint(name, "", reason)
        return Outcome(ExecutionState.FAILED, failure_type=name, failure_reason=reason, failure_fingerprint=fingerprint)


def _described(error: BaseException, *, known: Sequence[str]) -> Outcome:
    name = writable(type(error).__qualname__)[:MAX_TYPE_NAME]
    reason = presentable(_text_of(error), known=known) or name
    return Outcome(
        ExecutionState.FAILED,
        failure_type=name,
        failure_reason=reason,
        failure_traceback=presentable(_traceback_of(error), known=known),
        failure_fingerprint=_fingerprint(name, _place_of(error), reason),
        is_permanent=isinstance(error, GiveUp),
    )


def matches(condition: RunCondition, *, state: ExecutionState, is_dead_lettered: bool) -> bool:
    """Whether an outcome makes a dependent with this condition due.

    An attempt with retries left is no outcome; callers do not ask for it.
    """
    if state is ExecutionState.COMPLETED:
        return condition in (RunCondition.SUCCESS, RunCondition.COMPLETION)
    if state is ExecutionState.FAILED:
        return is_dead_lettered and condition in (RunCondition.FAILURE, RunCondition.COMPLETION)
    return condition is RunCondition.COMPLETION


def presentable(text: str, *, known: Sequence[str] = ()) -> str:
    """A text from the user's code as it may be stored: redacted and writable.

    Redaction comes before the cut, which could separate a secret from its name. Of a text that is much too long only
    the two ends are redacted, and the characters next to that first cut are left out.
    """
    if len(text) <= 2 * MAX_TEXT:
        return writable(redact_text(text, known=known))
    head, tail = (redact_text(part, known=known) for part in (text[:MAX_TEXT], text[-MAX_TEXT:]))
    edge = max([EDGE, *map(len, known)])
    return writable(_ends(head[:-edge], tail[edge:], length=len(text)))


def writable(text: str) -> str:
    """The text as both databases can store it: no NUL, no control characters, no lone surrogates, not too long."""
    if len(text) > MAX_TEXT:
        # Both ends are kept: a traceback has the error at its end, and the place it came from at its beginning.
        text = _ends(text, text, length=len(text))
    return _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _ends(head: str, tail: str, *, length: int) -> str:
    """The beginning of ``head`` and the end of ``tail``, both parts of one text of this length."""
    mark = CUT_MARK.format(length=length)
    half = (MAX_TEXT - len(mark)) // 2
    return head[:half] + mark + tail[-half:]


def _text_of(error: BaseException) -> str:
    """The exception's message; if its ``__str__`` fails, a readable reason in its place."""
    try:
        return str(error)
    except BaseException as nested:  # noqa: BLE001 - the user's __str__ may raise anything
        return f"(its message cannot be read: {type(nested).__qualname__})"


def _traceback_of(error: BaseException) -> str:
    try:
        lines = traceback.TracebackException.from_exception(error, limit=60, max_group_width=5).format()
        return "".join(lines)
    except BaseException as nested:  # noqa: BLE001 - formatting calls the user's __str__ and __cause__
        return f"(its traceback cannot be read: {type(nested).__qualname__})"


def _place_of(error: BaseException) -> str:
    """Where it was raised: file and function of the innermost frame."""
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].name}" if frames else ""


def _fingerprint(failure_type: str, place: str, reason: str) -> str:
    """A hash that is equal for failures of one type at one place with messages that differ in numbers only."""
    message = _NUMBERS.sub("#", reason[:MAX_TEXT])[:500]
    return hashlib.sha256(f"{failure_type}\n{place}\n{message}".encode(errors="replace")).hexdigest()[:32]
