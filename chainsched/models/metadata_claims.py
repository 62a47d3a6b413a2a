"""The states of executions, and the steps of a claim between them as compare-and-set writes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self

from django.apps import apps
from django.db import models
from django.db.models import F, Q

from chainsched.db import bulk
from chainsched.db.clock import database_now
from chainsched.db.compiled import CompiledQuery, Ids
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
# Columns that may be large.
PAYLOADS = ("input", "output", "progress", "failure_traceback")


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
        self,
        *,
        process: Process,
        workflows: Collection[str],
        limit: int,
        execution_ids: Collection[int] | None = None,
        now: datetime | None = None,
    ) -> list[tuple[Any, ...]]:
        """Take up to ``limit`` pending executions for a process; nothing if the process is no longer trusted.

        With ``execution_ids`` only of these. Executions with a value that this version does not know, their own or
        their manifest's, wait for a newer one.
        """
        claimable = self.pending().known().filter(manifest_is_known(), workflow__in=workflows)
        if execution_ids is not None:
            claimable = claimable.filter(id_in(id=execution_ids))
        candidates = claimable.in_claim_order()
        locked = candidates.select_for_update(skip_locked=True, no_key=True)[:limit]
        trusted = Process.objects.using(self.db).trusted().filter(pk=process.pk)
        ids = list(locked.values_list("id", flat=True))
        claimed = self.pending().filter(models.Exists(trusted), id_in(id=ids))
        at = now or database_now()
        taken_by = {"state": ExecutionState.IN_PROGRESS, "process": process, "claimed_at": at, "started_at": at}
        if not ids or not claimed.update(**taken_by, claims=F("claims") + 1):
            return []
        taken = self.in_progress().filter(id_in(id=ids), process=process)
        return list(taken.in_claim_order().values_list(*CLAIM_COLUMNS.values()))

    def claimed_rows(self, execution_ids: Collection[int]) -> list[tuple[Any, ...]]:
        """The ``CLAIM_COLUMNS`` of these executions."""
        return _CLAIMED.rows(ids=execution_ids)

    def lock_held(self, execution_ids: Collection[int], *, process: Process) -> list[Metadata]:
        """Lock those of these that a process has, without waiting and without payloads, in id order."""
        return list(self._free_claims(execution_ids, process=process).defer(*PAYLOADS))

    def _free_claims(self, execution_ids: Iterable[int], *, process: Process) -> Self:
        """Lock those of these that a process has, without waiting: a worker has other rows to write."""
        held = self.in_progress().filter(id_in(id=execution_ids), process=process)
        return held.order_by("id").select_for_update(no_key=True, skip_locked=True)

    def note_progress(self, progress: Mapping[int, Any], *, process: Process) -> set[int]:
        """Store the progress that jobs of this process reported; returns the rows that another transaction holds."""
        free = list(self._free_claims(progress, process=process).values_list("id", flat=True))
        bulk.update(self.model, [{"id": id_, "progress": progress[id_]} for id_ in free])
        if len(free) == len(progress):
            return set()
        own = self.in_progress().filter(id_in(id=progress), process=process)
        return set(own.values_list("id", flat=True)).difference(free)

    def unknown_to(self, process: Process, *, known: Collection[int]) -> list[int]:
        """The executions that a process has by its rows and does not know.

        The reply to its taking was lost, or a database server that took over after a failover has lost their end.
        """
        held = self.in_progress().filter(process=process).order_by("id").values_list("id", flat=True)
        return [id_ for id_ in held if id_ not in known]

    def unclaimed(self, *, before: datetime, after: int, limit: int) -> list[int]:
        """The next executions by id that have been pending since before this time."""
        waiting = self.pending().filter(id__gt=after, created_at__lt=before).order_by("id")
        return list(waiting.values_list("id", flat=True)[:limit])

    def asked_to_stop(self) -> list[int]:
        """The executions that run and were asked to stop."""
        return list(self.in_progress().filter(cancel_requested=True).order_by("id").values_list("id", flat=True))

    def stranded(self, workflows: Collection[str]) -> Self:
        """Pending executions that run none of these workflows, the oldest first."""
        return self.pending().exclude(workflow__in=workflows).order_by("id")

    def lock_unclaimed(self, execution_ids: Collection[int]) -> list[Metadata]:
        """Lock those that are still pending, in id order, skipping rows that are being claimed; without payloads."""
        rows = self.pending().filter(id_in(id=execution_ids)).order_by("id").defer(*PAYLOADS)
        return list(rows.select_for_update(skip_locked=True))

    def withdraw(self, execution_ids: Collection[int]) -> int:
        """Delete executions that go back to the queue; only ``flow.maintain.recall`` may. Returns how many."""
        deleted, _ = models.QuerySet.delete(self.active().filter(id_in(id=execution_ids)))
        return deleted


def _claimed() -> models.QuerySet[Any, Any]:
    # By name: the model is made of this QuerySet.
    executions: Any = apps.get_model("chainsched", "Metadata")
    return executions.objects.filter(id_in(id=Ids())).values_list(*CLAIM_COLUMNS.values())  # type: ignore[no-any-return]


_CLAIMED = CompiledQuery(_claimed)
