"""Processes with their heartbeats, named locks with the last turns of loops, and trees that were cancelled."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.db.models import Count
from django.http import HttpRequest

from chainsched.admin.kit import display
from chainsched.admin.kit.filters import LivenessFilter
from chainsched.admin.kit.page import ReadOnlyPage
from chainsched.admin.kit.sections import Fact, Facts, Section, Table
from chainsched.conf import get_config
from chainsched.db.clock import database_now
from chainsched.models import Metadata, NamedLock, Process

MAX_RUNS = 50


class ProcessPage(ReadOnlyPage):
    """Schedulers and workers, newest first."""

    list_display = ("number", "kind", "host", "system_id", "liveness", "heartbeat", "running", "started")
    list_filter = (LivenessFilter,)
    ordering = ("-id",)
    sortable_by = ()

    def enrich(self, request: HttpRequest, rows: Sequence[Any]) -> None:
        now = database_now()
        ids = [process.pk for process in rows]
        counted = Metadata.objects.in_progress().filter(process__in=ids).values_list("process_id").order_by()
        running = dict(counted.annotate(running=Count("id")))
        for process in rows:
            process.running, process.seen_at = running.get(process.pk, 0), now

    @admin.display(description="id")
    def number(self, process: Process) -> str:
        return f"#{process.pk}"

    @admin.display(description="pid")
    def system_id(self, process: Process) -> str:
        """As text, so that it is shown without thousands separators."""
        return str(process.pid)

    @admin.display(description="liveness")
    def liveness(self, process: Any) -> Any:
        return display.badge(_liveness(process))

    @admin.display(description="heartbeat")
    def heartbeat(self, process: Process) -> Any:
        return display.moment(process.heartbeat_at)

    @admin.display(description="running")
    def running(self, process: Any) -> int:
        return int(process.running)

    @admin.display(description="started")
    def started(self, process: Process) -> Any:
        return display.moment(process.started_at)

    def sections(self, request: HttpRequest, row: Any) -> Iterable[Section]:
        self.enrich(request, [row])
        facts = [
            Fact("liveness", self.liveness(row)),
            Fact("heartbeat", display.moment(row.heartbeat_at), f"{display.duration(_since_heartbeat(row))} ago."),
            Fact("kind", row.kind),
            Fact("host", f"{row.host}, process {row.pid}"),
            Fact("started", display.moment(row.started_at)),
            Fact("stopped", display.moment(row.stopped_at)),
            Fact("lost", display.moment(row.lost_at)),
        ]
        yield Facts("Now", facts)
        yield self._runs(request, row)
        yield Facts("Workflows", [Fact("can run", ", ".join(map(str, row.workflows)) or display.NOTHING)])
        yield self.columns(row)

    def _runs(self, request: HttpRequest, process: Process) -> Table:
        running = self.visible(request, Metadata).filter(process=process.pk).in_progress().order_by("id")[:MAX_RUNS]
        rows = [(display.link(self.admin_site, run), display.moment(run.started_at)) for run in running]
        return Table("Running executions", ("Execution", "Started"), rows)


class NamedLockPage(ReadOnlyPage):
    """The rows that a process locks so that no other has the same turn, and when each was last locked."""

    list_display = ("name", "turned", "ago")
    ordering = ("name",)
    sortable_by = ()

    @admin.display(description="last turn")
    def turned(self, lock: NamedLock) -> Any:
        return display.moment(lock.turned_at)

    @admin.display(description="liveness")
    def ago(self, lock: Any) -> Any:
        return display.badge(_lock_liveness(lock))

    def sections(self, request: HttpRequest, row: Any) -> Iterable[Section]:
        yield Facts("Now", [Fact("liveness", self.ago(row)), Fact("last turn", self.turned(row))])
        yield self.columns(row)


def _liveness(process: Any) -> str:
    if process.lost_at is not None:
        return "lost"
    if process.stopped_at is not None:
        return "stopped"
    return "stale" if _since_heartbeat(process) > timedelta(seconds=get_config().process_expiry) else "alive"


def _since_heartbeat(process: Any) -> timedelta:
    elapsed: timedelta = process.seen_at - process.heartbeat_at
    return max(elapsed, timedelta(0))


def _lock_liveness(lock: Any) -> str:
    """Whether a lock was ever taken. All are taken when there is work, so that none is late."""
    return "never" if lock.turned_at is None else "alive"
