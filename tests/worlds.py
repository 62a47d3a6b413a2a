"""A world of rows that can be put back as it was, driven to quiet, and compared with another history of itself."""

from collections import Counter, defaultdict
from datetime import datetime
from typing import Any

from django.apps import apps
from django.db import connection, models, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from chainsched.db.audit_guard import RETENTION_SETTING
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished
from chainsched.domain.states import ExecutionState, QueueStatus
from chainsched.flow.maintain.fsck import reconcile
from chainsched.flow.run.record import record
from chainsched.models import (
    DeadLetter,
    Dependency,
    DueNote,
    GraphRun,
    JoinNote,
    JoinState,
    Manifest,
    ManifestGroup,
    ManifestState,
    Metadata,
    Process,
    TakenOver,
    WorkQueue,
)
from chainsched.models.near import RUN_END
from chainsched.testing import Workbench
from tests.drive import reap_silent

Dump = dict[str, list[tuple[Any, ...]]]

# Counted in rows of the parent, so that they are compared by what they name.
NUMBERS = ("due", "covered", "succeeded", "dead_lettered", "finished")
NOT_COMPARED = ("id", "retired_at", "done_at")


def dump(seen_by: BaseDatabaseWrapper | None = None) -> Dump:
    """All our rows as this connection sees them."""
    world = {}
    with (seen_by or connection).cursor() as cursor:
        for model in _models():
            cursor.execute(f"SELECT * FROM {model._meta.db_table} ORDER BY 1")  # noqa: S608
            world[model._meta.db_table] = cursor.fetchall()
    return world


def restore(world: Dump) -> None:
    """Put our rows back as they were, with the same ids."""
    with transaction.atomic(), connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute("SELECT set_config(%s, 'on', true)", [RETENTION_SETTING])
        for table in reversed(world):
            cursor.execute(f"DELETE FROM {table}")  # noqa: S608
        for table, rows in world.items():
            if rows:
                places = ", ".join(["%s"] * len(rows[0]))
                cursor.executemany(f"INSERT INTO {table} VALUES ({places})", rows)  # noqa: S608


def drive_to_quiet(bench: Workbench, *, until: datetime) -> None:
    """Let live workers finish what they hold and the loops take their turns; nothing may be left without an alarm."""
    finish_held(bench)
    bench.drain()
    bench.advance(minutes=1)
    reap_silent(now=bench.now)
    survivor = Workbench(bench.now, declared=bench.schedules)
    survivor.run_until(until)
    assert reconcile(now=survivor.now) == 0


def finish_held(bench: Workbench) -> None:
    """Each live process returns what it runs; a run that was told to stop breaks off."""
    for process in Process.objects.trusted():
        held = Metadata.objects.in_progress().filter(process=process).values_list("id", "cancel_requested")
        record([Finished(id_, _ending(is_told)) for id_, is_told in held], by=process, now=bench.now)


def outcome() -> dict[str, Any]:
    """What became of everything, without what may differ between histories: ids, attempts that were lost, moments.

    An execution is named after the run it is an attempt of, so that a run that took one attempt more looks the same.
    """
    runs, last = _runs()
    names = dict(Manifest.objects.values_list("id", "external_id"))
    passages = _passages()
    return {
        "groups": sorted(ManifestGroup.objects.values_list("name", "is_enabled", "priority", "max_active_jobs")),
        "manifests": [_manifest(manifest) for manifest in Manifest.objects.order_by("external_id")],
        "edges": sorted(_edge(edge, names) for edge in Dependency.objects.all()),
        "states": {names[row.manifest_id]: _state(row, runs, passages) for row in ManifestState.objects.all()},
        "runs": {runs[row.id]: _run(row, runs, passages) for row in last},
        "passages": {passages[run.id]: _passage(run) for run in GraphRun.objects.all()},
        "joins": {_place(row, passages, names): _join(row) for row in JoinState.objects.all()},
        "taken over": sorted({(passages[row.run_id], runs[row.execution_id]) for row in TakenOver.objects.all()}),
        "notes": (DueNote.objects.count(), JoinNote.objects.count()),
        "queue": sorted(
            _queue_row(row, runs, passages) for row in WorkQueue.objects.exclude(status=QueueStatus.DISPATCHED)
        ),
        "letters": sorted(_letter(letter, runs) for letter in DeadLetter.objects.all()),
    }


def in_detail() -> tuple[Any, ...]:
    """The outcome, and whatever else the future depends on."""
    columns = ("manifest_external_id", "state", "attempt", "process", "cancel_requested")
    processes = Process.objects.order_by("id").values_list("id", "lost_at", "stopped_at")
    return outcome(), list(Metadata.objects.order_by("id").values_list(*columns)), list(processes)


def _models() -> list[type[models.Model]]:
    return list(apps.get_app_config("chainsched").get_models())


def _ending(is_told: bool) -> outcomes.Outcome:
    return outcomes.raised(RuntimeError("told to stop")) if is_told else outcomes.completed("pong")


def _runs() -> tuple[dict[int, str], list[Metadata]]:
    """The name of the run behind each execution, and the last attempt at each run."""
    counts: Counter[str] = Counter()
    named: dict[int, str] = {}
    last: dict[str, Metadata] = {}
    for execution in Metadata.objects.order_by("id"):
        name = execution.manifest_external_id
        counts[name] += execution.attempt == 1
        named[execution.id] = f"{name}/{counts[name]}"
        last[named[execution.id]] = execution
    return defaultdict(lambda: "unknown", {0: "none", **named}), list(last.values())


def _passages() -> dict[int, str]:
    """The name of each run of the graph: its head, and its number among the runs of that head."""
    counts: Counter[str] = Counter()
    named: dict[int, str] = {}
    for run in GraphRun.objects.order_by("id"):
        counts[run.head_external_id] += 1
        named[run.id] = f"{run.head_external_id}:{counts[run.head_external_id]}"
    return defaultdict(lambda: "unknown", {0: "none", **named})


def _passage(run: GraphRun) -> tuple[bool, bool, str]:
    return run.closed_at is not None, run.cancelled_at is not None, run.cancel_reason


def _place(state: JoinState, passages: dict[int, str], names: dict[int, str]) -> str:
    where = "end" if state.join_id == RUN_END else names.get(state.join_id, "gone")
    return f"{where} of {passages[state.run_id]}"


def _join(state: JoinState) -> tuple[Any, ...]:
    return state.open, state.arrived, state.is_gated, state.firings, state.outcome


def _edge(edge: Dependency, names: dict[int, str]) -> tuple[Any, ...]:
    return names[edge.child_id], names[edge.parent_id], edge.condition, edge.is_gate, edge.is_derived


def _run(execution: Metadata, runs: dict[int, str], passages: dict[int, str]) -> dict[str, Any]:
    is_caused = execution.parent_execution_id is not None
    return {
        "state": execution.state,
        "input": execution.input,
        "output": execution.output,
        "failure": execution.failure_type if execution.state == ExecutionState.FAILED else "",
        # What another run causes is due when a turn finds it, which may be later after a crash.
        "scheduled_for": None if is_caused else execution.scheduled_for,
        "parent": runs[execution.parent_execution_id or 0],
        "root": runs[execution.root_execution_id or 0],
        "passage": passages[execution.run_id or 0],
    }


def _manifest(manifest: Manifest) -> dict[str, Any]:
    columns = {
        field.name: getattr(manifest, field.name)
        for field in Manifest._meta.concrete_fields
        if field.name not in NOT_COMPARED
    }
    parent = manifest.depends_on.external_id if manifest.depends_on else None
    switches = {"is_retired": manifest.retired_at is not None, "is_done": manifest.done_at is not None}
    return {**columns, "group": manifest.group.name, "depends_on": parent, **switches}


def _state(state: ManifestState, runs: dict[int, str], passages: dict[int, str]) -> dict[str, Any]:
    return {
        **{number: runs[getattr(state, f"{number}_execution")] for number in NUMBERS},
        "alarm": state.next_run_at,
        "wish": (state.trigger_at, state.trigger_input),
        "due_item": (passages[state.due_run or 0], len(state.due_tokens), state.due_has_tokens, state.due_is_again),
        "is_failing": state.consecutive_failures > 0,
        "has_succeeded": state.last_successful_run is not None,
        "has_finished": state.last_finished_run is not None,
    }


def _queue_row(row: WorkQueue, runs: dict[int, str], passages: dict[int, str]) -> tuple[Any, ...]:
    place = (row.workflow, row.priority, row.group_id or 0, str(row.input), row.cancel_reason)
    item = (passages[row.run_id or 0], len(row.tokens), row.has_tokens, row.is_again)
    return row.manifest_external_id, row.status, row.source, runs[row.parent_execution_id or 0], *item, *place


def _letter(letter: DeadLetter, runs: dict[int, str]) -> tuple[Any, ...]:
    decision = (str(letter.resolved_by), letter.note, runs[letter.retry_execution_id or 0])
    return runs[letter.execution_id or 0], letter.status, *decision
