"""How an execution ended, in a form that any database can store, and what follows from it."""

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
# More than a first cut can leave of a secret whose name, or other half, it took away.
EDGE = 8192
CUT_MARK = "\n… (cut: the text was {length:,} characters long) …\n"

_UNWRITABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff]")
_NUMBERS = re.compile(r"\d+")


class FailureType(enum.StrEnum):
    """What ended an attempt, where no exception of the user's code did."""

    LOST = "lost"
    TIMEOUT = "timeout"
    KILLED = "killed"
    BAD_INPUT = "bad_input"
    BAD_OUTPUT = "bad_output"
    UNKNOWN_WORKFLOW = "unknown_workflow"
    OPEN_TRANSACTION = "open_transaction"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How an attempt ended. ``is_hopeless`` says that time cannot mend it, so it is not tried again."""

    state: ExecutionState
    output: Any = None
    failure_type: str = ""
    failure_reason: str = ""
    failure_traceback: str = ""
    failure_fingerprint: str = ""
    is_hopeless: bool = False

    @property
    def was_lost(self) -> bool:
        return self.failure_type == FailureType.LOST


@dataclass(frozen=True, slots=True)
class Finished:
    """An execution and how it ended; ``began_after`` are the seconds from its claim to its beginning, if known."""

    execution_id: int
    outcome: Outcome
    began_after: float | None = None


def completed(output: Any, *, known: Sequence[str] = ()) -> Outcome:
    """The outcome of user code that returned; ``output`` is its JSON form.

    Here and below what is likely to be secret is taken out before anything is stored; ``known`` are values that are.
    """
    return Outcome(ExecutionState.COMPLETED, output=redact(output, known=known))


def failed(failure_type: FailureType, reason: str, *, known: Sequence[str] = ()) -> Outcome:
    """A failure that has no exception of the user's code behind it."""
    told = presentable(reason, known=known)
    return Outcome(
        ExecutionState.FAILED,
        failure_type=failure_type,
        failure_reason=told,
        failure_fingerprint=_fingerprint(failure_type, "", told),
        is_hopeless=failure_type is FailureType.BAD_INPUT,
    )


def raised(error: BaseException, *, known: Sequence[str] = ()) -> Outcome:
    """The outcome of user code that raised, as text: nothing is ever rebuilt from it."""
    try:
        return _described(error, known=known)
    except BaseException as nested:  # noqa: BLE001 - a class of the user may override whatever is asked of it
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
        is_hopeless=isinstance(error, GiveUp),
    )


def matches(condition: RunCondition, *, state: ExecutionState, is_dead_lettered: bool) -> bool:
    """Whether an outcome makes a dependent with this condition due.

    An attempt with retries left is no outcome and never reaches this question.
    """
    if state is ExecutionState.COMPLETED:
        return condition in (RunCondition.SUCCESS, RunCondition.COMPLETION)
    if state is ExecutionState.FAILED:
        return is_dead_lettered and condition in (RunCondition.FAILURE, RunCondition.COMPLETION)
    return condition is RunCondition.COMPLETION


def presentable(text: str, *, known: Sequence[str] = ()) -> str:
    """The text of somebody's code as it may be stored: redacted and writable.

    Redaction comes before the cut, which could part a secret from its name. Of a text that is much too long only its
    ends are looked at, and what is next to the cut that made them is left out.
    """
    if len(text) <= 2 * MAX_TEXT:
        return writable(redact_text(text, known=known))
    head, tail = (redact_text(part, known=known) for part in (text[:MAX_TEXT], text[-MAX_TEXT:]))
    edge = max([EDGE, *map(len, known)])
    return writable(_ends(head[:-edge], tail[edge:], length=len(text)))


def writable(text: str) -> str:
    """The text as both databases can store it: no NUL, no control characters, no lone surrogates, not too long."""
    if len(text) > MAX_TEXT:
        # Both ends are kept: a traceback says at its end what happened, and at its beginning where it came from.
        text = _ends(text, text, length=len(text))
    return _UNWRITABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def _ends(head: str, tail: str, *, length: int) -> str:
    """The beginning of one and the end of the other, which belong to a text of this length."""
    mark = CUT_MARK.format(length=length)
    half = (MAX_TEXT - len(mark)) // 2
    return head[:half] + mark + tail[-half:]


def _text_of(error: BaseException) -> str:
    """The exception's own words; one whose ``__str__`` fails still gets a readable reason."""
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
    """The same for failures of one type at one place whose messages differ in numbers only."""
    message = _NUMBERS.sub("#", reason[:MAX_TEXT])[:500]
    return hashlib.sha256(f"{failure_type}\n{place}\n{message}".encode(errors="replace")).hexdigest()[:32]
