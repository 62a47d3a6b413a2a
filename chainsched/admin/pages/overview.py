"""The overview of the control room: figures, problems, and the rows that are stuck, with the reasons.

Every figure is bounded: statistics come from the roll-up, counts end at a limit, lists are short. A user sees no rows
here that the linked pages would not show.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Any

from django.contrib.admin import AdminSite
from django.db import models
from django.db.models import Q
from django.http import HttpRequest
from django.utils.timezone import localtime

from chainsched.admin.charts.hourly import Day, hourly
from chainsched.admin.kit import display
from chainsched.admin.kit.page import is_narrowed, visible
from chainsched.admin.kit.paginator import MAX_COUNTED
from chainsched.admin.kit.sections import Table
from chainsched.db.clock import database_now
from chainsched.db.counts import count_each
from chainsched.domain.parking import ParkedFor
from chainsched.domain.results import Health
from chainsched.domain.routing import Pool
from chainsched.domain.states import DeadLetterStatus, ExecutionState, QueueStatus
from chainsched.domain.statistics import Statistics, hour_of
from chainsched.flow.inspect.explain import explain_rows
from chainsched.flow.inspect.health import check_health
from chainsched.models import DeadLetter, HourlyStatistic, Manifest, ManifestGroup, Metadata, Process, WorkQueue
from chainsched.servers import get_server

REFRESH_SECONDS = 15
HOURS = 24
SHOWN = 5
MAX_PROCESSES = 20
# Rows at the head of the queue that are read, and how long one may wait there before it counts as stuck.
HEAD_ROWS = 200
# Rows that are parked for another reason than a time are late, however far behind they are in the order.
BLOCKED = tuple(reason for reason in ParkedFor if reason is not ParkedFor.TIME)
STUCK_AFTER = timedelta(minutes=1)
NONE_AT_THE_HEAD = f"None of the first {HEAD_ROWS} rows"
# The figures of open work: the table, and the QuerySet method that leaves the open rows.
OPEN: dict[str, tuple[type[models.Model], str]] = {
    "running": (Metadata, "in_progress"),
    "queued": (WorkQueue, "queued"),
    "letters": (DeadLetter, "awaiting"),
}


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem that an operator should attend to at once."""

    words: str
    url: str = ""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure with its name and its link."""

    name: str
    value: str
    url: str = ""
    is_bad: bool = False


class Overview:
    """The overview for one user at this moment; a template reads its parts."""

    refresh_seconds = REFRESH_SECONDS

    def __init__(self, request: HttpRequest, site: AdminSite) -> None:
        self._request = request
        self._site = site
        self.at = database_now()

    @cached_property
    def problems(self) -> list[Problem]:
        """The problems that stop schedules, most urgent first."""
        found = [Problem(problem, self._list(Process)) for problem in self._health.problems]
        if self._letters:
            awaiting = "letter awaits" if self._letters == 1 else "letters await"
            stopped = "its manifest does" if self._letters == 1 else "their manifests do"
            words = f"{_up_to_bound(self._letters)} dead {awaiting} a decision; {stopped} not run until then."
            found.append(Problem(words, self._awaiting))
        return found

    @cached_property
    def tiles(self) -> list[Tile]:
        """The figures of today and of this moment."""
        return [*self._figures_of_today(), *self._figures_of_now()]

    @cached_property
    def chart(self) -> Day | None:
        """The outcomes of executions in each of the last hours."""
        if self._statistics is None:
            return None
        hours = [hour_of(self.at) - timedelta(hours=back) for back in reversed(range(HOURS))]
        return hourly([(hour, self._statistics.by_hour(hour)) for hour in hours])

    @cached_property
    def tables(self) -> list[Table]:
        """The stuck, failing, slow and running jobs, the processes and the loops."""
        return [
            *self._stuck(),
            *self._unclaimed(),
            *self._failing(),
            *self._slow(),
            *self._running(),
            *self._processes(),
        ]

    def _figures_of_today(self) -> Iterator[Tile]:
        if self._statistics is None:
            return
        today = _hour_of_day(localtime(self.at).replace(hour=0, minute=0, second=0, microsecond=0))
        ended = sum(self._statistics.count(state, since=today) for state in ExecutionState)
        failed = self._statistics.count(ExecutionState.FAILED, since=today)
        rate = self._statistics.success_rate(since=today)
        yield Tile("executions today", f"{ended:,}", self._list(Metadata))
        yield Tile(
            "succeeded today",
            display.NOTHING if rate is None else _share(rate),
            self._list(Metadata, state=ExecutionState.FAILED),
            is_bad=failed > 0,
        )

    def _figures_of_now(self) -> Iterator[Tile]:
        if self._sees(Metadata):
            url = self._list(Metadata, state=ExecutionState.IN_PROGRESS)
            yield Tile("running", _up_to_bound(self._open["running"]), url)
        if self._sees(WorkQueue):
            yield Tile("queued", _up_to_bound(self._open["queued"]), self._list(WorkQueue, status=QueueStatus.QUEUED))
        if self._sees(DeadLetter):
            yield Tile("dead letters", _up_to_bound(self._letters), self._awaiting, is_bad=self._letters > 0)
        if self._sees(Process):
            alive = len(self._health.processes)
            yield Tile("processes alive", f"{alive:,}", self._list(Process), is_bad=not alive)

    def _stuck(self) -> Iterator[Table]:
        """Rows at the head of the queue that have waited there for long, and why each waits."""
        if not self._sees(WorkQueue):
            return
        head = self._head_of_queue()
        late = [row for row in head if self.at - _waiting_since(row) > STUCK_AFTER]
        shown = sorted(late, key=_waiting_since)[:SHOWN]
        explanations = explain_rows(shown, pools=self._pools if shown else (), now=self.at)
        yield Table(
            "Stuck in the queue",
            ("Manifest", "Waiting time", "Why"),
            [
                (self._link(row, row.name), self._ago(_waiting_since(row)), explanation.reason)
                for row, explanation in zip(shown, explanations, strict=True)
            ],
            note=f"{len(late)} of the first {HEAD_ROWS} rows have waited for more than a minute." if late else "",
            if_empty=f"{'No row' if len(head) < HEAD_ROWS else NONE_AT_THE_HEAD} has waited for more than a minute.",
        )

    def _unclaimed(self) -> Iterator[Table]:
        """Executions at the head of the order of claims that no process has claimed; no table if there are none."""
        if not self._sees(Metadata):
            return
        head = visible(self._site, self._request, Metadata).pending().in_claim_order()[:HEAD_ROWS]
        late = [run for run in head if self.at - run.created_at > STUCK_AFTER]
        shown = sorted(late, key=lambda run: run.created_at)[:SHOWN]
        if shown:
            yield Table(
                "Dispatched, but taken by no worker",
                ("Execution", "Waiting time", "Why"),
                [
                    (
                        self._link(run, run.manifest_external_id or run.workflow),
                        self._ago(run.created_at),
                        self._why_unclaimed(run),
                    )
                    for run in shown
                ],
                note=f"{len(late)} of the first {HEAD_ROWS} have waited for more than a minute.",
            )

    def _why_unclaimed(self, run: Metadata) -> str:
        if not any(run.workflow in pool.workflows for pool in self._pools):
            return f"no live process can run {run.workflow!r}; start a worker that knows it"
        return "the task server has not claimed it; it is submitted again every minute"

    def _failing(self) -> Iterator[Table]:
        if self._sees(Manifest):
            failing = visible(self._site, self._request, Manifest).filter(state__consecutive_failures__gt=0)
            worst = failing.select_related("state").order_by("-state__consecutive_failures", "pk")[:SHOWN]
            yield Table(
                "Failing manifests",
                ("Manifest", "Failures in a row", "Last success"),
                [(self._link(row), row.consecutive_failures, self._moment(row.last_successful_run)) for row in worst],
                if_empty="None has failed since its last success.",
            )
        if self._statistics is not None:
            rows = [
                (self._executions_of(workflow, state=ExecutionState.FAILED), f"{number:,}")
                for workflow, number in self._statistics.most_failing(limit=SHOWN)
            ]
            yield Table("Most failed attempts, 24 hours", ("Workflow", "Failed"), rows)

    def _slow(self) -> Iterator[Table]:
        if self._statistics is None:
            return
        slowest = self._statistics.slowest(limit=SHOWN)
        executions = self._hourly_statistics.slowest_executions(slowest) if slowest else {}
        rows = [
            (
                self._executions_of(slow.workflow),
                display.duration(timedelta(seconds=slow.longest)),
                display.duration(timedelta(seconds=slow.mean)),
                self._execution(executions.get(slow.workflow)),
            )
            for slow in slowest
        ]
        yield Table("Slowest successes, 24 hours", ("Workflow", "At most", "On average", "Execution"), rows)

    def _execution(self, pk: int | None) -> Any:
        return display.NOTHING if pk is None else display.link_to(self._site, Metadata, pk, f"#{pk}")

    def _running(self) -> Iterator[Table]:
        if not self._sees(Metadata):
            return
        running = visible(self._site, self._request, Metadata).in_progress().filter(started_at__isnull=False)
        rows = [
            (self._link(run, run.manifest_external_id or run.workflow), self._ago(run.started_at))
            for run in running.order_by("started_at")[:SHOWN]
        ]
        yield Table("Running longest", ("Execution", "Running time"), rows, if_empty="No execution is running.")

    def _processes(self) -> Iterator[Table]:
        if not self._sees(Process):
            return
        processes = [
            (one["kind"], f"{one['host']}, process {one['pid']}", self._ago(one["heartbeat_at"]))
            for one in self._health.processes
        ]
        more = len(processes) - MAX_PROCESSES
        yield Table(
            "Processes",
            ("Kind", "Where", "Last heartbeat"),
            processes[:MAX_PROCESSES],
            note=f"And {more} more." if more > 0 else "",
            if_empty="None is alive.",
        )
        loops = [(name, self._ago(turned_at)) for name, turned_at in sorted(self._health.loops.items())]
        yield Table("Loops", ("Loop", "Last turn"), loops, if_empty="No loop has turned yet.")

    @cached_property
    def _health(self) -> Health:
        if not self._sees(Process):
            return Health()
        return check_health(pools=self._pools, now=self.at, is_thorough=False)

    @cached_property
    def _open(self) -> dict[str, int]:
        """The numbers of running executions, queued rows and awaiting dead letters that this user may see."""
        seen = {
            name: getattr(visible(self._site, self._request, model), only)()
            for name, (model, only) in OPEN.items()
            if self._sees(model)
        }
        return {**dict.fromkeys(OPEN, 0), **count_each(seen, limit=MAX_COUNTED)}

    @property
    def _letters(self) -> int:
        return self._open["letters"]

    @cached_property
    def _hourly_statistics(self) -> Any:
        """The roll-up of the executions that this user may see, or None.

        It is kept by group. If a project narrows the executions that a user sees, the groups that the user sees decide
        which rows of the roll-up count; if those are not narrowed, there are no statistics.
        """
        if not (self._sees(Metadata) and self._sees(ManifestGroup)):
            return None
        midnight = localtime(self.at).replace(hour=0, minute=0, second=0, microsecond=0)
        counted = HourlyStatistic.objects.since(
            min(hour_of(self.at) - timedelta(hours=HOURS - 1), _hour_of_day(midnight))
        )
        if not is_narrowed(visible(self._site, self._request, Metadata)):
            return counted
        groups = visible(self._site, self._request, ManifestGroup)
        return counted.filter(group__in=groups.order_by().values("pk")) if is_narrowed(groups) else None

    @cached_property
    def _statistics(self) -> Statistics | None:
        return None if self._hourly_statistics is None else self._hourly_statistics.statistics()

    def _head_of_queue(self) -> list[WorkQueue]:
        """The first rows in line whose time has come, and the oldest that are parked for another reason than a time."""
        rows = visible(self._site, self._request, WorkQueue).with_owners()
        is_due = Q(not_before__isnull=True) | Q(not_before__lte=self.at)
        head = list(rows.in_line().filter(is_due).in_order()[:HEAD_ROWS])
        return [*head, *rows.parked(*BLOCKED).order_by("parked_for", "id")[:HEAD_ROWS]]

    def _sees(self, model: type[models.Model]) -> bool:
        """Whether this admin has a page for this model that the user may see."""
        is_there = self._site.is_registered(model)
        return is_there and self._site.get_model_admin(model).has_view_permission(self._request)

    @property
    def _awaiting(self) -> str:
        return self._list(DeadLetter, status=DeadLetterStatus.AWAITING_INTERVENTION)

    def _list(self, model: type[models.Model], **filters: str) -> str:
        """The address of a list, narrowed by its own filters."""
        return display.address(self._site, model, "changelist", **filters)

    def _executions_of(self, workflow: str, **filters: str) -> Any:
        return display.linked(self._list(Metadata, by_workflow=workflow, **filters), workflow)

    @cached_property
    def _pools(self) -> Collection[Pool]:
        """What the task server can run at present."""
        return get_server().pools(now=self.at)

    def _link(self, row: models.Model, words: str = "") -> Any:
        return display.link(self._site, row, words)

    def _ago(self, moment: datetime) -> str:
        return display.duration(max(self.at - moment, timedelta(0)))

    def _moment(self, moment: datetime | None) -> Any:
        return "never" if moment is None else display.moment(moment)


def _hour_of_day(midnight: datetime) -> datetime:
    """The hour of the roll-up in which a day begins; the roll-up has hours of UTC."""
    return hour_of(midnight.astimezone(UTC))


def _share(rate: float) -> str:
    """In per cent, rounded down, so that 100% means all."""
    return f"{math.floor(round(rate * 1000, 6)) / 10:.1f}%"


def _waiting_since(row: WorkQueue) -> datetime:
    return max(row.created_at, row.not_before or row.created_at)


def _up_to_bound(number: int) -> str:
    return f"{number:,} or more" if number >= MAX_COUNTED else f"{number:,}"


def overview_for(request: HttpRequest) -> Overview | None:
    """The overview of the admin site that answers this request, found by its view and not by the name of the site."""
    site = getattr(getattr(request.resolver_match, "func", None), "admin_site", None)
    return None if site is None else Overview(request, site)
