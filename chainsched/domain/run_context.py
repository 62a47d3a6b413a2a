"""The facts that a workflow gets about its own run, and the actions that it may take on it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from chainsched.domain.inputs import Unreadable
from chainsched.domain.outcomes import writable
from chainsched.domain.results import JoinReport, ParentRun
from chainsched.exceptions import ActivationError

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

    def find_join(self) -> JoinReport | None:
        """How the join that this is a run of stands; None if it is no join."""
        ...

    def find_parents(self) -> list[ParentRun]:
        """The executions that this one runs after."""
        ...


def _column(name: str) -> dict[str, str]:
    """Mark a fact as read from this column of the execution, or of its manifest."""
    return {"column": name}


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts of a run. The columns are named here and nowhere else: a new fact is one line."""

    execution_id: int = field(metadata=_column("id"))
    correlation_id: UUID = field(metadata=_column("external_id"))
    workflow: str = field(metadata=_column("workflow"))
    external_id: str = field(metadata=_column("manifest_external_id"))
    scheduled_for: datetime = field(metadata=_column("scheduled_for"))
    attempt: int = field(metadata=_column("attempt"))
    cron_expression: str = field(metadata=_column("manifest__cron_expression"))
    timeout_seconds: float = field(metadata=_column("timeout_seconds"))
    parent_manifest_id: int | None = field(metadata=_column("manifest__depends_on_id"))
    parent_execution_id: int | None = field(metadata=_column("parent_execution_id"))
    root_execution_id: int | None = field(metadata=_column("root_execution_id"))
    run_id: int | None = field(default=None, metadata=_column("run_id"))
    causation_id: str = field(metadata=_column("causation_id"))
    root_correlation_id: str = field(metadata=_column("root_correlation_id"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim(RunFacts):
    """A claimed execution as plain values, so that it can be passed to another thread or process."""

    process_id: int = field(metadata=_column("process_id"))
    manifest_id: int | None = field(metadata=_column("manifest_id"))
    input: Any = field(metadata=_column("input"))
    # Why there is no input, if the stored one cannot be read.
    problem: str = ""

    @classmethod
    def of_row(cls, values: Iterable[Any], *, job_timeout: float) -> Claim:
        """The claim of an execution by the values of ``CLAIM_COLUMNS``; a manifest that is gone has no schedule."""
        facts = dict(zip(CLAIM_COLUMNS, values, strict=True))
        if isinstance(facts["input"], Unreadable):
            facts |= {"problem": str(facts["input"]), "input": None}
        facts["cron_expression"] = facts["cron_expression"] or ""
        facts["timeout_seconds"] = facts["timeout_seconds"] or job_timeout
        return cls(**facts)


# The columns of an execution that make a claim, by the fact that each holds.
CLAIM_COLUMNS = {known.name: known.metadata["column"] for known in fields(Claim) if "column" in known.metadata}
RUN_FACTS = tuple(known.name for known in fields(RunFacts))


@dataclass(frozen=True, slots=True, kw_only=True)
class RunContext(RunFacts):
    """The run as its workflow sees it; ask for it with a parameter annotated ``RunContext``."""

    _control: RunControl = field(repr=False, compare=False)

    @classmethod
    def of_claim(cls, claim: Claim, *, workflow: str, control: RunControl) -> RunContext:
        """The context of a claimed run; ``workflow`` is the present name, which an alias in the row may differ from."""
        facts = {name: getattr(claim, name) for name in RUN_FACTS}
        return cls(**{**facts, "workflow": workflow}, _control=control)

    @property
    def join(self) -> JoinReport | None:
        """For a run of a join: how many it needed, how many arrived, who is missing and why. Asks the database.

        None for a manifest that is no join, and for a join that was triggered by itself.
        """
        return self._control.find_join()

    @property
    def parents(self) -> list[ParentRun]:
        """The executions that it runs after, with their outputs: of a join all that arrived. Asks the database."""
        return self._control.find_parents()

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


def each_once(activations: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The inputs by child; a child that is named twice would run for one of them only."""
    wanted: dict[str, Any] = {}
    for activation in activations:
        external_id, value = _pair(activation)
        if external_id in wanted:
            raise refusal(external_id, "it is named twice in one call. Name each child once")
        wanted[external_id] = value
    return wanted


def _pair(activation: Any) -> tuple[str, Any]:
    is_pair = isinstance(activation, tuple | list) and len(activation) == len(("external id", "input"))
    if not is_pair or not isinstance(activation[0], str):
        problem = f"{activation!r:.100} is no pair of an external id and an input. Give one for each child"
        raise ActivationError(f"Nothing can be activated: {problem}.", external_id="")
    return activation[0], activation[1]


def refusal(external_id: str, problem: str) -> ActivationError:
    """The error of a child that cannot be activated."""
    return ActivationError(f"{external_id!r} cannot be activated: {problem}.", external_id=external_id)
