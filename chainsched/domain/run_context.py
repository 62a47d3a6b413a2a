"""The facts that a workflow gets about its own run, and the actions that it may take on it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from chainsched.domain.outcomes import writable

MAX_PROGRESS_TEXT = 500
MAX_WHOLE_NUMBER = 2**63


class RunControl(Protocol):
    """Actions of the engine on behalf of a run."""

    def activate(self, activations: Iterable[tuple[str, Any]]) -> list[str]:
        """Queue dormant children of this run's manifest; returns the external ids that were queued."""
        ...

    def is_cancelled(self) -> bool:
        """Whether an operator or a caller asked this run to stop, or its timeout has passed."""
        ...

    def report(self, progress: Any) -> None:
        """Show the progress that the run reports."""
        ...


@dataclass(frozen=True, slots=True)
class RunContext:
    """The run as its workflow sees it; ask for it with a parameter annotated ``RunContext``."""

    execution_id: int
    correlation_id: UUID
    workflow: str
    external_id: str
    scheduled_for: datetime
    attempt: int
    cron_expression: str
    timeout_seconds: float
    parent_manifest_id: int | None
    parent_execution_id: int | None
    root_execution_id: int | None
    causation_id: str
    root_correlation_id: str
    _control: RunControl = field(repr=False, compare=False)

    def activate(self, external_id: str, input: Any = None) -> bool:
        """Queue one dormant child with this input; False if it was queued or running already."""
        return bool(self._control.activate([(external_id, input)]))

    def activate_many(self, activations: Iterable[tuple[str, Any]]) -> list[str]:
        """Queue several dormant children, all or none on an error; returns those that were queued.

        A child that is queued or running already is skipped with a warning, which is no error.
        """
        return self._control.activate(activations)

    def is_cancelled(self) -> bool:
        """Whether an operator or a caller asked this run to stop, or its timeout has passed.

        A long job checks this now and then, and raises or returns to end before it is interrupted.
        """
        return self._control.is_cancelled()

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Report the run's progress. Call it as often as you like: the worker stores it only now and then."""
        text = writable(str(message)[:MAX_PROGRESS_TEXT])
        self._control.report({"done": _storable(done), "total": _storable(total), "message": text})


def _storable(number: Any) -> float | None:
    """The number as both databases hold it in JSON; None for a value that is no number there, such as NaN."""
    if isinstance(number, int) and abs(number) < MAX_WHOLE_NUMBER:
        return int(number)
    try:
        plain = float(number)
    except (TypeError, ValueError, OverflowError):
        return None
    return plain if math.isfinite(plain) else None
