"""The states of executions, and the steps of a claim between them as compare-and-set writes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Self

from django.db import models
from django.db.models import F, Q, Value
from django.db.models.functions import Coalesce, Greatest

from chainsched.db import bulk
from chainsched.db.clock import database_now
from chainsched.db.fields import knows, values
from chainsched.db.id_in import id_in
from chainsched.domain.known import Kinds
from chainsched.domain.run_context import CLAIM_COLUMNS
from chainsched.domain.states import ACTIVE_STATES, ExecutionState, Source
from chainsched.models.manifest import manifest_is_known
from chainsched.models.process import Process

if TYPE_CHECKING:
    from chainsched.models.metadata import Metadata

IS_ACTIVE = Q(state__in=values(ACTIVE_STATES))
IS_PENDING = Q(state=ExecutionState.PENDING.value)
IS_IN_PROGRESS = Q(state=ExecutionState.IN_PROGRESS.value)
KINDS: Kinds = {"state": ExecutionState, "source": Source}


class ClaimQuerySet(models.QuerySet["Metadata"]):
    """The writes of workers to executions, from the claim to its end or return."""

    def active(self) -> Self:
        return self.filter(IS_ACTIVE)

    def pending(self) -> Self:
        return self.filter(IS_PENDING)

    def in_progress(self) -> Self:
        return self.filter(IS_IN_PROGRESS)

    def known(self) -> Self:
        """Without executions that have a value that this version does not know."""
        return self.filter(knows(KINDS))

    def unknown(self) -> Self:
        """Those that have a value that only a newer version knows."""
        return self.exclude(knows(KINDS))

    def in_claim_order(self) -> Self:
        return self.order_by("-priority", "id")

    def claim(
        self, *, process: Process, workflows: Collection[str], limit: int, is_begun: bool, now: datetime | None = None
    ) -> list[tuple[Any, ...]]:
        """Take up to ``limit`` pending executions for a process; nothing if the process is no longer trusted.

        ``is_begun`` says that their code runs at once; else ``begin`` notes it when it does. Executions with a value
        that this version does not know, their own or their manifest's, wait for a newer worker.
        """
        claimable = self.pending().known().filter(manifest_is_known(), workflow__in=workflows)
        candidates = claimable.in_claim_order()
        locked = candidates.select_for_update(skip_locked=True, no_key=True)[:limit]
        trusted = Process.objects.using(self.db).trusted().filter(pk=process.pk)
        ids = list(locked.values_list("id", flat=True))
        claimed = self.pending().filter(models.Exists(trusted), id_in(id=ids))
        at = now or database_now()
        taken_by = {"state": ExecutionState.IN_PROGRESS, "process": process, "claimed_at": at}
        if not ids or not claimed.update(**taken_by, started_at=at if is_begun else None, claims=F("claims") + 1):
            return []
        taken = self.in_progress().filter(id_in(id=ids), process=process)
        return list(taken.in_claim_order().values_list(*CLAIM_COLUMNS.values()))

    def _free_claims(self, execution_ids: Iterable[int], *, process_ids: Collection[int]) -> Self:
        """Lock those of these that the processes have claimed, without waiting: a worker has other rows to write."""
        held = self.in_progress().filter(id_in(id=execution_ids), process__in=process_ids)
        return held.order_by("id").select_for_update(no_key=True, skip_locked=True)

    def begin(self, delays: Mapping[int, float], *, process: Process) -> int:
        """Record when the code of claims began: so many seconds after the claim. Otherwise their end records it."""
        unrecorded = self._free_claims(delays, process_ids=[process.pk]).filter(started_at__isnull=True)
        rows = [
            {"id": id_, "started_at": claimed_at + timedelta(seconds=delays[id_])}
            for id_, claimed_at in unrecorded.values_list("id", "claimed_at")
            if claimed_at is not None
        ]
        return len(bulk.update(self.model, rows))

    def note_start(self, execution_id: int, *, at: datetime) -> None:
        """Record that the code of one claim has begun, unless that is recorded; no earlier than it was claimed."""
        begun = self.in_progress().filter(id=execution_id, started_at__isnull=True)
        begun.update(started_at=Greatest(Coalesce("claimed_at", Value(at)), Value(at)))

    def note_progress(self, progress: Mapping[int, Any], *, process: Process) -> set[int]:
        """Store the progress that jobs of this process reported; returns the rows that another transaction holds."""
        free = list(self._free_claims(progress, process_ids=[process.pk]).values_list("id", flat=True))
        bulk.update(self.model, [{"id": id_, "progress": progress[id_]} for id_ in free])
        if len(free) == len(progress):
            return set()
        own = self.in_progress().filter(id_in(id=progress), process=process)
        return set(own.values_list("id", flat=True)).difference(free)

    def hand_back(self, *, process: Process, known: Collection[int]) -> int:
        """Give back the executions that are claimed for a process and that the process does not know.

        The reply to its claim was lost, or a database server that took over after a failover has lost their end.
        """
        unknown = self.in_progress().filter(process=process).exclude(id__in=known)
        return unknown.update(state=ExecutionState.PENDING, process=None, claimed_at=None, started_at=None)

    def release(self, execution_ids: Iterable[int], *, process_ids: Collection[int], is_counted: bool) -> int:
        """Give back claims that never began to run, and count them if they should not come back too often.

        Rows that another transaction holds stay as they are.
        """
        free = self._free_claims(execution_ids, process_ids=process_ids).filter(started_at__isnull=True)
        unstarted = self.filter(id_in(id=free.values_list("id", flat=True)))
        claims = F("claims") if is_counted else Greatest(F("claims") - 1, Value(0))
        return unstarted.update(state=ExecutionState.PENDING, process=None, claimed_at=None, claims=claims)

    def unstarted(self, execution_ids: Iterable[int], *, process: Process) -> set[int]:
        """Those of these that a process has claimed and that have not begun."""
        claimed = self.in_progress().filter(id_in(id=execution_ids), process=process, started_at__isnull=True)
        return set(claimed.values_list("id", flat=True))

    def stranded(self, workflows: Collection[str]) -> Self:
        """Pending executions that run none of these workflows, the oldest first."""
        return self.pending().exclude(workflow__in=workflows).order_by("id")

    def lock_unclaimed(self, execution_ids: Collection[int]) -> list[Metadata]:
        """Lock those that are still pending, in id order, skipping rows that a worker is claiming; without payloads."""
        payloads = ("input", "output", "progress", "failure_traceback")
        rows = self.pending().filter(id_in(id=execution_ids)).order_by("id").defer(*payloads)
        return list(rows.select_for_update(skip_locked=True))

    def withdraw(self, execution_ids: Collection[int]) -> int:
        """Delete executions that no worker has claimed; only ``flow.maintain.recall`` may. Returns how many."""
        deleted, _ = models.QuerySet.delete(self.pending().filter(id_in(id=execution_ids)))
        return deleted
