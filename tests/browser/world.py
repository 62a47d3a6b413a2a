"""A small company's night: jobs of several kinds and in several states, for pages to be looked at."""

from __future__ import annotations

import uuid
from datetime import timedelta
from typing import Any

from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User

from chainsched import history
from chainsched.domain.states import DeadLetterStatus, ExecutionState, QueueStatus, RunCondition, ScheduleType, Source
from chainsched.domain.statistics import Share, hour_of
from chainsched.models import (
    BulkDecision,
    BulkDecisionItem,
    Dependency,
    GraphRun,
    HourlyStatistic,
    JoinState,
    Manifest,
    ManifestGroup,
    ManifestState,
    Metadata,
    NamedLock,
    Process,
)
from chainsched.models.near import RUN_END
from tests.admin.world import MODELS, make_user
from tests.factories import (
    NOW,
    make_dependent,
    make_execution,
    make_group,
    make_letter,
    make_manifest,
    make_process,
    make_queue_row,
)

WORKFLOWS = ["shop.export_to_partner", "shop.extract", "shop.load", "shop.report", "shop.sync_table", "shop.transform"]
TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/workflows.py", line 84, in export_to_partner
    answer = partner.upload(rows, timeout=30)
  File "/srv/shop/partner.py", line 31, in upload
    raise ConnectionRefusedError(f"{self.host} refused the connection")
ConnectionRefusedError: partner.example refused the connection
"""
REFUSED = "partner.example refused the connection"
LONG_AGO = NOW - timedelta(hours=9)


def ago(**span: float) -> Any:
    return NOW - timedelta(**span)


class Night:
    """Makes the rows, and keeps those that pages are shown of under ``of``."""

    def __init__(self) -> None:
        self.worker = self._processes()
        self.someone = User.objects.filter(username="manager").first() or make_user("manager")
        self.of: dict[str, Any] = {"process": self.worker, "namedlock": self._named_locks()}
        self._reports()
        self._exports()
        self._etl()
        self._warehouse()
        self._syncs()
        self._bulk_decision()
        self._history()
        self._day()
        assert set(self.of) == {model._meta.model_name for model in MODELS}

    def _processes(self) -> Process:
        old = {"kind": "worker", "started_at": LONG_AGO}
        make_process(host="jobs-1", pid=812, heartbeat_at=ago(hours=6), lost_at=ago(hours=6), **old)
        make_process(host="jobs-2", pid=977, heartbeat_at=ago(hours=2), stopped_at=ago(hours=2), **old)
        make_process(host="jobs-3", pid=1204, heartbeat_at=ago(minutes=4), **old)
        turns = dict.fromkeys(("manager", "dispatcher", "reaper"), ago(seconds=2).isoformat())
        living = {"started_at": ago(hours=2), "workflows": WORKFLOWS, "turns": turns}
        make_process(kind="scheduler", host="jobs-1", pid=2290, heartbeat_at=ago(seconds=1), **living)
        return make_process(kind="worker", host="jobs-2", pid=2311, heartbeat_at=ago(seconds=3), **living)

    def _named_locks(self) -> NamedLock:
        NamedLock.objects.create(name="cleanup", turned_at=ago(hours=4))
        NamedLock.objects.create(name="graph", turned_at=ago(days=1))
        return NamedLock.objects.create(name="dispatch", turned_at=ago(seconds=1))

    def _etl(self) -> None:
        """A chain for Europe that is under way, and one for America whose run was cancelled."""
        group = make_group("etl-eu", max_active_jobs=4, priority=10)
        extract = self._timed("etl-eu-extract", group, "shop.extract", every=3600)
        transform = make_dependent(extract, "etl-eu-transform", group=group, workflow="shop.transform")
        load = make_dependent(transform, "etl-eu-load", group=group, workflow="shop.load")
        make_dependent(
            extract,
            "etl-eu-repair",
            group=group,
            workflow="testapp.copy",
            schedule_type=ScheduleType.DORMANT_DEPENDENT,
            input={"table": "orders", "size": 500},
        )
        make_dependent(load, "etl-eu-alert", group=group, workflow="shop.report", run_condition=RunCondition.FAILURE)
        for hour in (3, 2, 1):
            self._ran(load, parent=self._ran(transform, parent=self._ran(extract, hours=hour), hours=hour), hours=hour)
        root = self._ran(extract, hours=0.02)
        self._run(
            transform,
            ExecutionState.IN_PROGRESS,
            parent=root,
            started_at=ago(seconds=41),
            progress={"done": 120_000, "total": 300_000, "message": "converting orders"},
        )
        self.of |= {"manifestgroup": group, "manifest": extract}

        us = make_group("etl-us", max_active_jobs=4, priority=10)
        extract_us = self._timed("etl-us-extract", us, "shop.extract", every=3600)
        at = {"scheduled_for": ago(minutes=50), "created_at": ago(minutes=50), "closed_at": ago(minutes=49)}
        run = GraphRun.objects.create(
            head=extract_us,
            head_external_id=extract_us.external_id,
            cancelled_at=ago(minutes=49),
            cancel_reason="wrong day",
            **at,
        )
        self._run(
            extract_us,
            ExecutionState.CANCELLED,
            started_at=ago(minutes=50),
            ended_at=ago(minutes=49),
            cancel_requested=True,
            cancel_reason="wrong day",
            run=run,
        )

    def _warehouse(self) -> None:
        """Tables that are loaded side by side, and the join after them, which waits."""
        group = make_group("warehouse", max_active_jobs=8)
        opening = self._timed("warehouse-open", group, "shop.extract", every=86_400)
        columns = {"group": group, "workflow": "shop.load"}
        orders = make_dependent(opening, "warehouse-load-orders", **columns)
        customers = make_dependent(opening, "warehouse-load-customers", **columns)
        make_dependent(opening, "warehouse-load-stock", is_enabled=False, **columns)
        options = {"group": group, "workflow": "shop.report", "fan_in": "siblings", "at_least": 2}
        publish = make_dependent(opening, "warehouse-publish", **options)
        run = GraphRun.objects.create(
            head=opening,
            head_external_id=opening.external_id,
            version=Dependency.objects.latest("since").since,
            scheduled_for=ago(minutes=5),
            created_at=ago(minutes=5),
        )
        root = self._ran(opening, hours=0.08, run=run)
        self._ran(orders, hours=0.06, parent=root, run=run)
        self._run(customers, ExecutionState.IN_PROGRESS, parent=root, started_at=ago(seconds=200), run=run)
        waiting = {"open": 1, "arrived": 1, "is_gated": True, "deadline_at": NOW + timedelta(minutes=25)}
        JoinState.objects.create(run=run, join_id=publish.pk, **waiting)
        JoinState.objects.create(run=run, join_id=RUN_END, open=1)
        self.of["graphrun"] = run

    def _syncs(self) -> None:
        """Slices of tables, of which some run and more wait."""
        group = make_group("sync-orders", max_active_jobs=3)
        for number, region in enumerate(("eu", "us", "asia", "latam", "africa", "oceania")):
            sync = self._timed(f"sync-orders-{region}", group, "shop.sync_table", every=600)
            self._ran(sync, hours=0.5, seconds=20 + 7 * number)
            if number < 2:
                self._run(sync, ExecutionState.IN_PROGRESS, started_at=ago(seconds=12 + number))
            elif number == 2:
                self._run(sync, ExecutionState.PENDING)
            else:
                columns = {"turn": number, "priority": 0, "input": {"table": "orders", "region": region}}
                row = make_queue_row(sync, created_at=ago(seconds=30), scheduled_for=ago(seconds=30), **columns)
                self.of["workqueue"] = row
        later = self._timed("sync-invoices-eu", group, "shop.sync_table", every=600)
        waiting = {"not_before": NOW + timedelta(minutes=4), "priority": 5, "turn": 1}
        make_queue_row(later, source=Source.RETRY, attempt=3, **waiting)
        make_queue_row(later, status=QueueStatus.CANCELLED, cancel_reason="not needed")

    def _exports(self) -> None:
        """Exports to a partner that is away: three attempts, then a dead letter."""
        group = make_group("partners", is_enabled=True, max_active_jobs=1, priority=3)
        for name in ("export-to-partner", "export-stock", "export-prices"):
            export = self._timed(name, group, "shop.export_to_partner", every=1800, failures=3)
            failed = [self._failed(export, attempt) for attempt in (1, 2, 3)][-1]
            given_up = {"failure_count": 3, "fingerprint": "9f2c51ab77d04e18", "dead_lettered_at": failed.ended_at}
            letter = make_letter(export, execution=failed, reason=f"ConnectionRefusedError: {REFUSED}", **given_up)
            if name == "export-to-partner":
                self.of |= {"deadletter": letter, "metadata": failed}
        make_letter(
            make_manifest("import-rates", group=group, workflow="shop.extract"),
            reason="ValueError: no rate for XAU",
            failure_count=1,
            fingerprint="41d09c3e5b7aa2f0",
            status=DeadLetterStatus.ACKNOWLEDGED,
            dead_lettered_at=ago(hours=7),
            resolved_at=ago(hours=6),
            resolved_by=self.someone,
            note="the bank was closed",
        )

    def _bulk_decision(self) -> None:
        """A decision about all that a broken disk had left behind, half carried out."""
        group = make_group("archive")
        columns = {"asked_by": self.someone, "note": "the disk is back", "selection": "fingerprint: 7c1e0f55"}
        times = {"created_at": ago(minutes=2), "started_at": ago(minutes=1)}
        bulk_decision = BulkDecision.objects.create(
            verb="retry", status="under_way", total=4, done_count=2, skipped_count=1, **columns, **times
        )
        said = (
            ("done", "queued once more"),
            ("done", "queued once more"),
            ("skipped", "its manifest was removed"),
            ("waiting", ""),
        )
        for number, (outcome, words) in enumerate(said):
            is_over = outcome != "waiting"
            decided = {"status": DeadLetterStatus.RETRIED, "resolved_at": NOW, "resolved_by": self.someone}
            letter = make_letter(
                make_manifest(f"archive-{number}", group=group, workflow="shop.sync_table", state={}),
                reason="OSError: no space left on device",
                fingerprint="7c1e0f55d90b42aa",
                failure_count=2,
                dead_lettered_at=ago(hours=3),
                **(decided if is_over else {}),
            )
            moment = {"decided_at": ago(seconds=30)} if is_over else {}
            row = BulkDecisionItem.objects.create(
                bulk_decision=bulk_decision, dead_letter=letter, outcome=outcome, explanation=words, **moment
            )
        self.of |= {"bulkdecision": bulk_decision, "bulkdecisionitem": row}

    def _reports(self) -> None:
        group = make_group("reports", is_enabled=False)
        nightly = make_manifest(
            "report-nightly",
            group=group,
            workflow="shop.report",
            schedule_type=ScheduleType.CRON,
            cron_expression="0 2 * * *",
            timezone="Europe/Berlin",
            state={"last_successful_run": ago(hours=9)},
        )
        self._ran(nightly, hours=9, seconds=312)
        make_manifest(
            "report-adhoc", group=group, workflow="shop.report", schedule_type=ScheduleType.ON_DEMAND, state={}
        )
        make_manifest("report-old", group=group, workflow="shop.report", is_enabled=False, state={})

    def _history(self) -> None:
        letter = self.of["deadletter"]
        same = "status awaiting_intervention"
        entry = history.describe("Retried", "already queued", before=same, after=same, reason="the partner is back")
        history.write({entry: [letter]}, user=self.someone)
        LogEntry.objects.update(action_time=ago(minutes=9))

    def _day(self) -> None:
        """How executions ended in the hours before."""
        times = {"shop.sync_table": 41.0, "shop.extract": 260.0, "shop.transform": 95.0, "shop.report": 312.0}
        last = Metadata.objects.latest("id").pk
        for back in range(26):
            hour = hour_of(ago(hours=back))
            for number, (workflow, seconds) in enumerate(times.items()):
                many = 40 + 9 * ((back * 7 + number * 5) % 11)
                HourlyStatistic.objects.append(
                    [Share(hour, 0, workflow, "completed", many, many * seconds, seconds, last)]
                )
            failed = 6 if back < 4 else back % 3
            share = Share(hour, 0, "shop.export_to_partner", "failed", failed, 30.0 * failed, 30.0, last)
            HourlyStatistic.objects.append([share] if failed else [])
        HourlyStatistic.objects.append(
            [Share(hour_of(ago(hours=1)), 0, "shop.extract", "cancelled", 1, 60.0, 60.0, last)]
        )

    def _timed(self, name: str, group: ManifestGroup, workflow: str, *, every: int, failures: int = 0) -> Manifest:
        state = {
            "next_run_at": None if failures else NOW + timedelta(seconds=every // 2),
            "last_successful_run": ago(hours=5) if failures else ago(seconds=every // 2),
            "consecutive_failures": failures,
        }
        kind = {"schedule_type": ScheduleType.INTERVAL, "interval_seconds": every}
        given = (
            {"partner": "partner.example"}
            if failures
            else {"region": name.split("-")[-1 if name.startswith("sync") else 1]}
        )
        return make_manifest(name, group=group, workflow=workflow, input=given, state=state, **kind)

    def _ran(self, manifest: Manifest, *, hours: float, seconds: int = 24, **columns: Any) -> Metadata:
        ended = ago(hours=hours) + timedelta(seconds=seconds)
        times = {"started_at": ago(hours=hours), "ended_at": ended}
        ManifestState.objects.filter(manifest=manifest).update(last_successful_run=ended)
        return self._run(manifest, ExecutionState.COMPLETED, output={"rows": 120 * seconds}, **times, **columns)

    def _failed(self, manifest: Manifest, attempt: int) -> Metadata:
        started = ago(minutes=60 - 10 * attempt)
        return self._run(
            manifest,
            ExecutionState.FAILED,
            attempt=attempt,
            source=Source.SCHEDULE if attempt == 1 else Source.RETRY,
            started_at=started,
            ended_at=started + timedelta(seconds=30),
            failure_type="ConnectionRefusedError",
            failure_reason=REFUSED,
            failure_traceback=TRACEBACK,
        )

    def _run(
        self, manifest: Manifest, state: ExecutionState, *, parent: Metadata | None = None, **columns: Any
    ) -> Metadata:
        begun = columns.get("started_at")
        if parent is not None:
            root = parent.root_execution_id or parent.pk
            columns |= {"parent_execution": parent, "root_execution_id": root, "source": Source.DEPENDENCY}
        if begun is not None:
            columns |= {"process": self.worker, "claimed_at": begun, "created_at": begun, "scheduled_for": begun}
        number = Metadata.objects.count() + 1
        return make_execution(
            manifest, state=state, external_id=uuid.UUID(int=number), **{"input": manifest.input, **columns}
        )
