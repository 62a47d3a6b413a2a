"""Rows for tests, with sensible values where a test does not care."""

import uuid
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from django.db import connection

from chainsched.db import bulk
from chainsched.domain.parking import park_until
from chainsched.domain.states import ExecutionState, QueueStatus, RunCondition, ScheduleType, Source
from chainsched.flow.schedule.edges import Edge, write_edges
from chainsched.models import (
    DeadLetter,
    Manifest,
    ManifestGroup,
    ManifestState,
    Metadata,
    NamedLock,
    Process,
    WorkQueue,
)
from chainsched.models.named_lock import GRAPH

NOW = datetime(2026, 3, 2, 10, 0, tzinfo=UTC)

_numbers = count(1)


def make_group(name: str | None = None, **columns: Any) -> ManifestGroup:
    return ManifestGroup.objects.create(name=name or f"group-{next(_numbers)}", **columns)


def make_manifest(
    external_id: str | None = None,
    *,
    group: ManifestGroup | None = None,
    state: dict[str, Any] | None = None,
    **columns: Any,
) -> Manifest:
    """An interval manifest of five minutes that is armed and due, unless told otherwise."""
    columns = {"workflow": "testapp.ping", **columns}
    if "schedule_type" not in columns:
        columns |= {"schedule_type": ScheduleType.INTERVAL, "interval_seconds": 300}
    manifest = Manifest.objects.create(
        external_id=external_id or f"manifest-{next(_numbers)}", group=group or make_group(), **columns
    )
    ManifestState.objects.create(manifest=manifest, **({"next_run_at": NOW} if state is None else state))
    return manifest


def make_many_manifests(number: int, *, due: int) -> None:
    """Interval manifests of one group by the hundred thousand: the first ``due`` are due, the others in an hour."""
    template = make_manifest()
    others = [field.column for field in Manifest._meta.concrete_fields if field.name not in ("id", "external_id")]
    columns = ", ".join(connection.ops.quote_name(column) for column in others)
    numbers = "WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < %s)"
    with connection.cursor() as cursor:
        cursor.execute(
            f"{numbers} INSERT INTO chainsched_manifest (external_id, {columns}) "  # noqa: S608
            f"SELECT external_id || '-' || i, {columns} FROM chainsched_manifest, n WHERE id = %s",
            [number, template.id],
        )
    ids = list(Manifest.objects.filter(group=template.group).order_by("id").values_list("id", flat=True))
    template.state.delete()
    later = NOW + timedelta(hours=1)
    rows = [{"manifest": id_, "next_run_at": NOW if at < due else later} for at, id_ in enumerate(ids)]
    bulk.insert(ManifestState, rows, returning=("manifest",))


def make_dependent(parent: Manifest, external_id: str | None = None, **columns: Any) -> Manifest:
    """A dependent with its edge; with ``fan_in`` a join over its siblings, whose edges follow as in the engine."""
    columns = {"schedule_type": ScheduleType.DEPENDENT, "run_condition": RunCondition.SUCCESS, "state": {}, **columns}
    columns |= {"is_join": bool(columns.get("fan_in"))}
    child = make_manifest(external_id, depends_on=parent, depth=parent.depth + 1, **columns)
    NamedLock.objects.hold(GRAPH, now=NOW)
    edge = Edge(int(child.run_condition), is_gate=bool(child.fan_in), is_derived=False)
    write_edges({child.id: {parent.id: edge}})
    return child


def make_queue_row(manifest: Manifest | None = None, **columns: Any) -> WorkQueue:
    defaults: dict[str, Any] = {
        "manifest": manifest,
        "group": manifest.group if manifest else None,
        "manifest_external_id": manifest.external_id if manifest else "",
        "workflow": manifest.workflow if manifest else "testapp.ping",
        "priority": 0,
        "turn": 1,
        "status": QueueStatus.QUEUED,
        "source": Source.SCHEDULE,
        "scheduled_for": NOW,
        "created_at": NOW,
        "parked_for": park_until(columns.get("not_before"), now=NOW) or "",
    }
    return WorkQueue.objects.create(**{**defaults, **columns})


def make_execution(manifest: Manifest | None = None, **columns: Any) -> Metadata:
    state = columns.get("state", ExecutionState.PENDING)
    defaults: dict[str, Any] = {
        "external_id": uuid.uuid4(),
        "manifest": manifest,
        "group": manifest.group if manifest else None,
        "manifest_external_id": manifest.external_id if manifest else "",
        "workflow": manifest.workflow if manifest else "testapp.ping",
        "source": Source.SCHEDULE,
        "scheduled_for": NOW,
        "created_at": NOW,
        "ended_at": NOW if ExecutionState(state).is_terminal else None,
    }
    return Metadata.objects.create(**{**defaults, **columns})


def store_input(execution: Metadata, text: str) -> None:
    """Store an input as somebody may by hand: past all that looks at it here."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE chainsched_metadata SET input = %s WHERE id = %s", [text, execution.id])


def make_letter(manifest: Manifest | None = None, **columns: Any) -> DeadLetter:
    defaults: dict[str, Any] = {"manifest": manifest, "reason": "it failed", "dead_lettered_at": NOW}
    return DeadLetter.objects.create(**{**defaults, **columns})


def make_process(**columns: Any) -> Process:
    defaults: dict[str, Any] = {"kind": "worker", "host": "host", "pid": 1, "started_at": NOW, "heartbeat_at": NOW}
    return Process.objects.create(**{**defaults, **columns})
