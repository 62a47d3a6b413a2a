"""Faults that are none of the engine's: receivers that block, a user's transaction that stays open, refused rows.

They concern few jobs or none, so all others have to go on beside them. That is looked at when a fault ends. Therefore
no other fault disturbs the work meanwhile, or a short time before.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from django.db import InterfaceError, OperationalError

from chainsched.models import Metadata, WorkQueue
from chaos import receivers, refusals, rows
from chaos.faults import Fault
from chaos.fleet import Fleet
from chaos.holds import Hold

CALM_SECONDS = 10.0
# The manifests that a user's transaction holds, or whose rows are refused, at most, and how soon they come due.
CONCERNED = 3
DUE_SECONDS = 3.0

End = Callable[[], None]


@dataclass(slots=True)
class Bystanders:
    """Begins these faults. ``held_up`` says which work stood still, ``looked`` how often that was looked at."""

    fleet: Fleet
    rng: random.Random
    held_up: list[str] = field(default_factory=list)
    looked: int = 0
    _concerned: set[str] = field(default_factory=set)
    _calm_from: float = 0.0
    _lasting: int = 0

    @property
    def are_lasting(self) -> bool:
        """Whether one of these faults has begun and not ended: others have to wait."""
        return self._lasting > 0

    def begin(self, fault: Fault) -> End | None:
        """Begin a fault; returns how to end it, or None if it cannot begin just now."""
        if time.monotonic() < self._calm_from:
            return None
        if fault.kind == "receiver":
            return self._block_receivers(fault)
        names = self._choose()
        if not names:
            return None
        return self._hold(fault, names) if fault.kind == "hold" else self._refuse(fault, names)

    def note_disturbance(self, *, until: float) -> None:
        """Another fault keeps jobs from going on until this monotonic time, and for a while after it."""
        self._calm_from = max(self._calm_from, until + CALM_SECONDS)

    def _block_receivers(self, fault: Fault) -> End | None:
        """Let no receiver return, in no process."""
        blocker = receivers.blocker(self.fleet.signals)
        if blocker.exists():
            return None
        blocker.touch()
        return self._looking(fault, blocker.unlink, cause="receivers blocked")

    def _choose(self) -> list[str]:
        """A few manifests that are about to come due and that no such fault has concerned before."""
        names = [name for name in rows.coming_due(within=DUE_SECONDS) if name not in self._concerned]
        chosen = self.rng.sample(names, min(CONCERNED, len(names)))
        self._concerned.update(chosen)
        return chosen

    def _hold(self, fault: Fault, names: list[str]) -> End:
        """Open a transaction of a user that triggers these manifests."""
        hold = Hold(names)
        hold.start()
        return self._looking(fault, hold.release, cause=f"a transaction held {', '.join(names)}")

    def _refuse(self, fault: Fault, names: list[str]) -> End:
        """Let the database refuse the queue row of the first of these manifests, and the executions of the others."""
        refusals.refuse((name, Metadata if number else WorkQueue) for number, name in enumerate(names))
        return self._looking(fault, refusals.allow_all, cause=f"rows of {', '.join(names)} were refused")

    def _looking(self, fault: Fault, end: End, *, cause: str) -> End:
        """End the fault and look, just before that, whether it held up jobs that it does not concern."""
        self._lasting += 1

        def look_and_end() -> None:
            try:
                found = rows.held_up(seconds=fault.seconds / 2, besides=self._concerned)
                self.held_up += [f"{line}, while {cause}" for line in found]
                self.looked += 1
            except (OperationalError, InterfaceError):
                pass
            finally:
                self._lasting -= 1
                end()

        return look_and_end
