"""What must never be, the schema forbids: every unique and check constraint, broken by hand."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from django.apps import apps
from django.db import IntegrityError, connection, models, transaction

from chainsched.models import (
    BulkDecision,
    BulkDecisionItem,
    DeadLetter,
    Dependency,
    GraphRun,
    HourlyStatistic,
    JoinState,
    Manifest,
    ManifestGroup,
    ManifestState,
    Metadata,
    NamedLock,
    Near,
    Process,
    TakenOver,
    WorkQueue,
)

NOW = datetime(2026, 3, 2, 13, tzinfo=UTC)

pytestmark = pytest.mark.django_db


class World:
    """A sound row of each kind to build broken ones beside."""

    def __init__(self) -> None:
        self.group = ManifestGroup.objects.create(name="etl")
        self.manifest = self.make_manifest("sync")

    def make_manifest(self, external_id: str = "other", **columns: Any) -> Manifest:
        defaults = {"external_id": external_id, "group": self.group, "workflow": "shop.copy"}
        return Manifest.objects.create(**{**defaults, **columns})

    def make_row(self, **columns: Any) -> WorkQueue:
        defaults = {
            "manifest": self.manifest,
            "workflow": "shop.copy",
            "priority": 0,
            "turn": 1,
            "scheduled_for": NOW,
            "source": "schedule",
            "created_at": NOW,
        }
        return WorkQueue.objects.create(**{**defaults, **columns})

    def make_execution(self, **columns: Any) -> Metadata:
        defaults = {
            "manifest": self.manifest,
            "workflow": "shop.copy",
            "source": "schedule",
            "scheduled_for": NOW,
            "created_at": NOW,
        }
        return Metadata.objects.create(**{**defaults, **columns})

    def make_letter(self, **columns: Any) -> DeadLetter:
        return DeadLetter.objects.create(
            **{"manifest": self.manifest, "reason": "broken", "dead_lettered_at": NOW, **columns}
        )


@pytest.fixture
def world() -> World:
    return World()


CRON = {"schedule_type": "cron", "cron_expression": "0 2 * * *"}
INTERVAL = {"schedule_type": "interval", "interval_seconds": 60}
ONCE = {"schedule_type": "once", "once_at": NOW}
DEPENDENT = {"schedule_type": "dependent", "run_condition": 1}
JOIN = {**DEPENDENT, "is_join": True}
EVERY_OPTION = {"deadline_seconds": 60, "is_eager": True, "runs_again_on_late": True}

# A value that no enum knows breaks two checks at once, and each database names another of them first.
EITHER = {
    "chainsched_manifest_schedule_type": "chainsched_manifest_schedule_(type|shape)",
    "chainsched_execution_state": "chainsched_execution_(state|ended_when_terminal)",
}

GROUPS: list[tuple[str, dict[str, Any]]] = [
    ("chainsched_group_limit_positive", {"max_active_jobs": 0}),
    ("chainsched_group_priority_range", {"priority": 32}),
    ("priority", {"priority": -1}),
    ("name", {"name": "etl"}),
]
MANIFESTS: list[tuple[str, dict[str, Any]]] = [
    ("external_id", {"external_id": "sync"}),
    (EITHER["chainsched_manifest_schedule_type"], {"schedule_type": "sometimes"}),
    ("chainsched_manifest_schedule_shape", {"schedule_type": "cron"}),
    ("chainsched_manifest_schedule_shape", {"schedule_type": "interval"}),
    ("chainsched_manifest_schedule_shape", {"schedule_type": "once"}),
    ("chainsched_manifest_schedule_shape", {"cron_expression": "0 2 * * *"}),
    ("chainsched_manifest_schedule_shape", {"interval_seconds": 60}),
    ("chainsched_manifest_schedule_shape", {"once_at": NOW}),
    ("chainsched_manifest_schedule_shape", {**CRON, "interval_seconds": 60}),
    ("chainsched_manifest_schedule_shape", {**INTERVAL, "once_at": NOW}),
    ("chainsched_manifest_schedule_shape", {**ONCE, "cron_expression": "0 2 * * *"}),
    ("chainsched_manifest_schedule_shape", {**DEPENDENT, "interval_seconds": 60}),
    ("chainsched_manifest_interval_positive", {**INTERVAL, "interval_seconds": 0}),
    ("chainsched_manifest_run_condition", {**DEPENDENT, "run_condition": 0}),
    ("chainsched_manifest_run_condition", {**DEPENDENT, "run_condition": 4}),
    ("chainsched_manifest_run_condition", {"schedule_type": "dormant_dependent", "run_condition": 0}),
    ("chainsched_manifest_run_condition", {**INTERVAL, "run_condition": 1}),
    ("chainsched_manifest_parent_only_dependents", {**INTERVAL, "is_join": True}),
    ("chainsched_manifest_fan_in", {**JOIN, "fan_in": "everything"}),
    ("chainsched_manifest_join_shape", {**DEPENDENT, "fan_in": "siblings"}),
    ("chainsched_manifest_join_shape", {**DEPENDENT, "at_least": 1}),
    ("chainsched_manifest_join_shape", {**DEPENDENT, "at_least_percent": 50}),
    ("chainsched_manifest_join_shape", {**DEPENDENT, "deadline_seconds": 60}),
    ("chainsched_manifest_join_shape", {**DEPENDENT, "is_eager": True}),
    ("chainsched_manifest_join_shape", {**DEPENDENT, "runs_again_on_late": True}),
    ("chainsched_manifest_join_shape", {**JOIN, "at_least": 1, "at_least_percent": 50}),
    ("chainsched_manifest_join_shape", {**JOIN, "at_least_percent": 101}),
    ("at_least", {**JOIN, "at_least": -1}),
    ("deadline_seconds", {**JOIN, "deadline_seconds": -1}),
    ("chainsched_manifest_priority_range", {"priority": 32}),
    ("priority", {"priority": -1}),
    ("chainsched_manifest_retry_multiplier", {"retry_multiplier": 0.5}),
    ("chainsched_manifest_misfire_policy", {"misfire_policy": "later"}),
    ("jitter_seconds", {"jitter_seconds": -1}),
    ("max_retries", {"max_retries": -1}),
    ("timeout_seconds", {"timeout_seconds": -1}),
]
ROWS: list[tuple[str, dict[str, Any]]] = [
    ("chainsched_queue_status", {"status": "waiting"}),
    ("chainsched_queue_source", {"source": "rumour"}),
    ("chainsched_queue_parked_for", {"parked_for": "fun"}),
    ("chainsched_queue_priority_range", {"priority": 32}),
    ("priority", {"priority": -1}),
    ("chainsched_queue_attempt_positive", {"attempt": 0}),
    ("chainsched_queue_dispatched_has_execution", {"status": "dispatched"}),
    ("chainsched_queue_dispatched_has_execution", {"status": "queued", "execution_id": 1}),
    ("chainsched_queue_dispatched_has_execution", {"status": "cancelled", "execution_id": 1}),
]
EXECUTIONS: list[tuple[str, dict[str, Any]]] = [
    (EITHER["chainsched_execution_state"], {"state": "asleep"}),
    ("chainsched_execution_source", {"source": "rumour"}),
    ("chainsched_execution_ended_when_terminal", {"state": "completed"}),
    ("chainsched_execution_ended_when_terminal", {"state": "failed"}),
    ("chainsched_execution_ended_when_terminal", {"state": "cancelled"}),
    ("chainsched_execution_ended_when_terminal", {"state": "pending", "ended_at": NOW}),
    ("chainsched_execution_ended_when_terminal", {"state": "in_progress", "ended_at": NOW}),
    ("chainsched_execution_attempt_positive", {"attempt": 0}),
]
LETTERS: list[tuple[str, dict[str, Any]]] = [
    ("chainsched_letter_status", {"status": "ignored", "resolved_at": NOW}),
    ("chainsched_letter_resolved_when_decided", {"resolved_at": NOW}),
    ("chainsched_letter_resolved_when_decided", {"status": "retried"}),
    ("chainsched_letter_resolved_when_decided", {"status": "acknowledged"}),
]


def refusing(name: str) -> Any:
    """The refusal of a named constraint; SQLite names checks but only the column of a broken uniqueness."""
    return pytest.raises(IntegrityError, match=name)


@pytest.mark.parametrize(("constraint", "columns"), GROUPS)
def test_a_group_that_must_not_be(constraint, columns, world):
    with refusing(constraint), transaction.atomic():
        ManifestGroup.objects.create(**{"name": "other", **columns})


@pytest.mark.parametrize(("constraint", "columns"), MANIFESTS)
def test_a_manifest_that_must_not_be(constraint, columns, world):
    with refusing(constraint), transaction.atomic():
        world.make_manifest(**columns)


@pytest.mark.parametrize(
    ("constraint", "columns"),
    [
        ("chainsched_manifest_parent_only_dependents", {}),
        ("chainsched_manifest_parent_only_dependents", INTERVAL),
        ("chainsched_manifest_parent_only_dependents", CRON),
    ],
)
def test_only_a_dependent_has_a_parent(constraint, columns, world):
    with refusing(constraint), transaction.atomic():
        world.make_manifest(depends_on=world.manifest, **columns)


def test_no_manifest_is_its_own_parent(world):
    child = world.make_manifest(**DEPENDENT)
    with refusing("chainsched_manifest_not_own_parent"), transaction.atomic():
        Manifest.objects.filter(pk=child.pk).update(depends_on=child)


@pytest.mark.parametrize(("constraint", "columns"), ROWS)
def test_a_queue_row_that_must_not_be(constraint, columns, world):
    with refusing(constraint), transaction.atomic():
        world.make_row(**columns)


@pytest.mark.parametrize(("constraint", "columns"), EXECUTIONS)
def test_an_execution_that_must_not_be(constraint, columns, world):
    with refusing(constraint), transaction.atomic():
        world.make_execution(**columns)


@pytest.mark.parametrize(("constraint", "columns"), LETTERS)
def test_a_letter_that_must_not_be(constraint, columns, world):
    with refusing(constraint), transaction.atomic():
        world.make_letter(**columns)


def test_a_state_is_never_covered_beyond_what_it_is_due_for(world):
    ManifestState.objects.create(manifest=world.manifest, due_execution=5, covered_execution=5)
    with refusing("chainsched_state_due_not_behind"), transaction.atomic():
        ManifestState.objects.update(covered_execution=6)


def one_of_a_kind(name: str, *, column: str) -> Any:
    return refusing(name if connection.vendor == "postgresql" else column)


@pytest.mark.parametrize("second", ["queued"])
def test_a_manifest_has_one_queued_row(second, world):
    world.make_row()
    with one_of_a_kind("chainsched_queue_one_per_manifest", column="manifest_id"), transaction.atomic():
        world.make_row(status=second)


@pytest.mark.parametrize("first", ["pending", "in_progress"])
@pytest.mark.parametrize("second", ["pending", "in_progress"])
def test_a_manifest_has_one_active_execution(first, second, world):
    world.make_execution(state=first)
    with one_of_a_kind("chainsched_execution_one_active", column="manifest_id"), transaction.atomic():
        world.make_execution(state=second)


def test_a_manifest_has_one_awaiting_letter(world):
    world.make_letter()
    with one_of_a_kind("chainsched_letter_one_awaiting", column="manifest_id"), transaction.atomic():
        world.make_letter()


def test_a_manifest_has_one_state(world):
    ManifestState.objects.create(manifest=world.manifest)
    with one_of_a_kind("chainsched_manifeststate_pkey", column="manifest_id"), transaction.atomic():
        ManifestState.objects.create(manifest=world.manifest)


def test_public_ids_are_unique(world):
    same = uuid.uuid4()
    world.make_execution(external_id=same)
    with refusing("external_id"), transaction.atomic():
        world.make_execution(external_id=same, manifest=None)
    process = {"external_id": same, "kind": "worker", "host": "a", "pid": 1, "started_at": NOW, "heartbeat_at": NOW}
    Process.objects.create(**process)
    with refusing("external_id"), transaction.atomic():
        Process.objects.create(**process)


def test_what_is_over_and_what_has_no_manifest_is_not_counted(world):
    world.make_row()
    world.make_row(status="cancelled")
    world.make_row(status="dispatched", execution_id=1)
    for _ in range(2):
        world.make_row(manifest=None)
        world.make_execution(manifest=None)
        world.make_letter(manifest=None)
        world.make_execution(state="completed", ended_at=NOW)
        world.make_letter(status="acknowledged", resolved_at=NOW)
    world.make_execution()
    world.make_letter()
    assert (WorkQueue.objects.count(), Metadata.objects.count(), DeadLetter.objects.count()) == (5, 5, 5)


@pytest.mark.parametrize(
    "columns",
    [
        CRON,
        INTERVAL,
        ONCE,
        DEPENDENT,
        JOIN,
        {**JOIN, "fan_in": "siblings"},
        {**JOIN, "fan_in": "tree", "at_least": 3, **EVERY_OPTION},
        {**JOIN, "at_least_percent": 100},
        {},
        {"priority": 31},
        {"retry_multiplier": 1},
    ],
)
def test_every_sound_shape_is_taken(columns, world):
    assert world.make_manifest(**columns).pk


def test_a_parent_that_goes_leaves_its_dependent_without_one(world):
    child = world.make_manifest(depends_on=world.manifest, **DEPENDENT)
    world.manifest.delete()
    child.refresh_from_db()
    assert child.depends_on_id is None


def test_a_row_outlives_the_manifest_it_names(world):
    row, run, letter = world.make_row(), world.make_execution(), world.make_letter()
    manifest_id = world.manifest.pk
    world.manifest.delete()
    for kept in (row, run, letter):
        kept.refresh_from_db()
        assert kept.manifest_id == manifest_id


def test_a_group_with_members_cannot_go(world):
    with pytest.raises(models.ProtectedError):
        world.group.delete()


def test_a_loop_has_one_row(world):
    NamedLock.objects.create(name="spare")
    with one_of_a_kind("chainsched_namedlock_pkey", column="name"), transaction.atomic():
        NamedLock.objects.create(name="spare")


def test_an_hour_has_one_merged_statistic_of_a_kind():
    figures = {"executions": 1, "seconds": 1, "slowest_seconds": 1, "slowest_execution": 1}
    kind = {"hour": NOW, "group": 1, "workflow": "shop.copy", "state": "failed"}
    HourlyStatistic.objects.create(**kind, **figures)
    HourlyStatistic.objects.create(**kind, **figures)
    HourlyStatistic.objects.create(**kind, **figures, is_merged=True)
    with one_of_a_kind("chainsched_statistic_one_merged", column="hour"), transaction.atomic():
        HourlyStatistic.objects.create(**kind, **figures, is_merged=True)
    with refusing("chainsched_statistic_terminal_state"), transaction.atomic():
        HourlyStatistic.objects.create(**{**kind, "state": "pending"}, **figures)


def test_an_edge_is_there_once_leads_elsewhere_and_has_a_condition(world):
    child = world.make_manifest("child", **DEPENDENT)
    Dependency.objects.create(child=child, parent=world.manifest, condition=1)
    with one_of_a_kind("chainsched_dependency_once", column="child_id"), transaction.atomic():
        Dependency.objects.create(child=child, parent=world.manifest, condition=3)
    with refusing("chainsched_dependency_no_loop"), transaction.atomic():
        Dependency.objects.create(child=child, parent=child, condition=1)
    for condition in (0, 4):
        with refusing("chainsched_dependency_condition"), transaction.atomic():
            Dependency.objects.create(child=world.manifest, parent=child, condition=condition)


@pytest.mark.parametrize("end", ["parent", "child"])
def test_an_edge_goes_with_either_of_its_ends(end, world):
    child = world.make_manifest("child", **DEPENDENT)
    Dependency.objects.create(child=child, parent=world.manifest, condition=1)
    (world.manifest if end == "parent" else child).delete()
    assert not Dependency.objects.exists()


def test_a_join_ahead_is_named_once(world):
    Near.objects.create(manifest=world.manifest, join_id=0)
    with one_of_a_kind("chainsched_near_once", column="manifest_id"), transaction.atomic():
        Near.objects.create(manifest=world.manifest, join_id=0)


def test_a_join_waits_once_in_a_run_for_no_less_than_nothing(world):
    run = GraphRun.objects.create(head=world.manifest, scheduled_for=NOW, created_at=NOW)
    JoinState.objects.create(run=run, join_id=7)
    with one_of_a_kind("chainsched_joinstate_once", column="run_id"), transaction.atomic():
        JoinState.objects.create(run=run, join_id=7)
    with refusing("chainsched_joinstate_open"), transaction.atomic():
        JoinState.objects.create(run=run, join_id=8, open=-1)
    with refusing("chainsched_joinstate_outcome"), transaction.atomic():
        JoinState.objects.create(run=run, join_id=8, outcome="perhaps")


def test_an_execution_stands_for_a_further_run_once():
    TakenOver.objects.create(run_id=1, execution_id=2)
    with one_of_a_kind("chainsched_takenover_once", column="run_id"), transaction.atomic():
        TakenOver.objects.create(run_id=1, execution_id=2)
    TakenOver.objects.create(run_id=2, execution_id=2)


BULK_DECISION: dict[str, Any] = {"verb": "retry", "total": 2, "created_at": NOW}


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        ("chainsched_bulk_verb", {"verb": "delete"}),
        ("chainsched_bulk_status", {"status": "lost", "finished_at": NOW}),
        ("chainsched_bulk_finished_when_closed", {"status": "done"}),
        ("chainsched_bulk_finished_when_closed", {"status": "under_way", "finished_at": NOW}),
        ("chainsched_bulk_counts", {"done_count": 2, "skipped_count": 1}),
    ],
)
def test_a_bulk_decision_is_whole(name, columns):
    with refusing(name), transaction.atomic():
        BulkDecision.objects.create(**{**BULK_DECISION, **columns})


def test_a_letter_is_in_a_bulk_decision_once_and_has_its_outcome_with_its_time(world):
    row = {"bulk_decision": BulkDecision.objects.create(**BULK_DECISION), "dead_letter": world.make_letter()}
    BulkDecisionItem.objects.create(**row)
    with one_of_a_kind("chainsched_bulk_item_once", column="bulk_decision_id"), transaction.atomic():
        BulkDecisionItem.objects.create(**row)
    for name, columns in (
        ("chainsched_bulk_item_outcome", {"outcome": "lost", "decided_at": NOW}),
        ("chainsched_bulk_item_decided", {"outcome": "done"}),
        ("chainsched_bulk_item_decided", {"decided_at": NOW}),
    ):
        with refusing(name), transaction.atomic():
            BulkDecisionItem.objects.create(**{**row, "dead_letter": None, **columns})


def test_every_named_constraint_is_tried_here():
    tables = [*GROUPS, *MANIFESTS, *ROWS, *EXECUTIONS, *LETTERS]
    named = {name for name, _ in tables if name.startswith("chainsched_")} - set(EITHER.values())
    tried = named | {
        *EITHER,
        "chainsched_manifest_not_own_parent",
        "chainsched_state_due_not_behind",
        "chainsched_queue_one_per_manifest",
        "chainsched_execution_one_active",
        "chainsched_letter_one_awaiting",
        "chainsched_dependency_once",
        "chainsched_dependency_condition",
        "chainsched_dependency_no_loop",
        "chainsched_near_once",
        "chainsched_joinstate_once",
        "chainsched_joinstate_open",
        "chainsched_joinstate_outcome",
        "chainsched_takenover_once",
        "chainsched_statistic_one_merged",
        "chainsched_statistic_terminal_state",
        "chainsched_bulk_verb",
        "chainsched_bulk_status",
        "chainsched_bulk_finished_when_closed",
        "chainsched_bulk_counts",
        "chainsched_bulk_item_once",
        "chainsched_bulk_item_outcome",
        "chainsched_bulk_item_decided",
    }
    declared = {
        constraint.name
        for model in apps.get_app_config("chainsched").get_models()
        for constraint in model._meta.constraints
    }
    assert declared == tried
