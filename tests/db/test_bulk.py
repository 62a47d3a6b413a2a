"""Many rows in one statement: every kind of value comes back as it went in, on both databases."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import DataError, IntegrityError, connection, models, transaction
from django.test.utils import CaptureQueriesContext

from chainsched.db import bulk
from chainsched.models import Manifest, ManifestGroup, ManifestState, Metadata, NamedLock, Process, WorkQueue
from tests.factories import make_manifest

NOW = datetime(2026, 3, 2, 13, 5, 7, 123456, tzinfo=UTC)

pytestmark = pytest.mark.django_db


def execution_row(**columns: Any) -> dict[str, Any]:
    return {"workflow": "shop.copy", "source": "schedule", "scheduled_for": NOW, "created_at": NOW, **columns}


def queue_row(**columns: Any) -> dict[str, Any]:
    required = {"workflow": "shop.copy", "priority": 0, "turn": 1, "source": "schedule"}
    return {**required, "scheduled_for": NOW, "created_at": NOW, **columns}


def insert_one(row: dict[str, Any]) -> Metadata:
    (written,) = bulk.insert(Metadata, [row])
    return Metadata.objects.get(pk=written["id"])


JSON_VALUES: list[Any] = [
    None,
    True,
    False,
    0,
    -1.5,
    2**60,
    "",
    "text",
    "null",
    "über 日本 🚀",
    "quotes \" and \\ and ' and \n\t",
    r"a literal \u0000",
    "100 %s %% {}",
    [],
    {},
    [1, [2, [3, {"a": None}]]],
    {"a": {"b": {"c": [True, None, 1.5, "x"]}}, "ключ": "значение", "": 1},
]
TEXTS = [
    "",
    "plain",
    "über 日本 🚀",
    'it\'s "quoted" \\ and\nbroken\tup',
    "100 %s %%",
    '{"json": [1]}',
    "null",
    "1",
    "01",
]
TIMES = [
    NOW,
    datetime(2026, 3, 2, 13, 0, tzinfo=UTC),
    datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    datetime(2026, 3, 29, 3, 30, tzinfo=timezone(timedelta(hours=5, minutes=45))),
]


@pytest.mark.parametrize("value", JSON_VALUES, ids=repr)
def test_json_comes_back_as_it_went_in(value):
    row = insert_one(execution_row(input=value, output=value))
    assert row.input == row.output == value
    assert type(row.input) is type(value)
    bulk.update(Metadata, [{"id": row.pk, "progress": value}])
    row.refresh_from_db()
    assert row.progress == value


def test_no_json_is_null_in_the_database_as_django_writes_it():
    ours = insert_one(execution_row(input=None))
    django = Metadata.objects.create(**execution_row(input=None))
    assert set(Metadata.objects.filter(input__isnull=True)) == {ours, django}


@pytest.mark.parametrize("text", TEXTS)
def test_text_comes_back_as_it_went_in(text):
    row = insert_one(execution_row(failure_reason=text))
    assert row.failure_reason == text
    bulk.update(Metadata, [{"id": row.pk, "failure_traceback": text}])
    row.refresh_from_db()
    assert row.failure_traceback == text


@pytest.mark.parametrize("moment", TIMES, ids=str)
def test_times_come_back_to_the_microsecond_and_can_be_compared(moment):
    row = insert_one(execution_row(started_at=moment))
    assert row.started_at == moment
    bulk.update(Metadata, [{"id": row.pk, "claimed_at": moment}])
    assert Metadata.objects.filter(pk=row.pk, claimed_at=moment, started_at__lte=moment).exists()
    bulk.update(Metadata, [{"id": row.pk, "claimed_at": None}])
    row.refresh_from_db()
    assert row.claimed_at is None


def test_uuids_come_back_and_can_be_looked_up():
    wanted = uuid.uuid4()
    row = insert_one(execution_row(external_id=wanted))
    assert row.external_id == wanted
    assert Metadata.objects.get(external_id=wanted) == row


@pytest.mark.parametrize("flag", [True, False])
def test_truth_values_come_back_and_can_be_filtered(flag):
    row = insert_one(execution_row(cancel_requested=flag))
    assert row.cancel_requested is flag
    bulk.update(Metadata, [{"id": row.pk, "cancel_requested": not flag}])
    assert Metadata.objects.filter(pk=row.pk, cancel_requested=not flag).exists()


@pytest.mark.parametrize("number", [0, 1, 2**31, 2**62, 2**63 - 1])
def test_large_numbers_stay_exact(number):
    manifest = make_manifest(state={})
    bulk.update(ManifestState, [{"manifest": manifest.id, "due_execution": number}], key="manifest")
    assert ManifestState.objects.get().due_execution == number


@pytest.mark.parametrize("number", [1.0, 1.1, 2.675, 1e-7 + 1, 123456.789])
def test_fractions_stay_exact(number):
    (written,) = bulk.insert(WorkQueue, [queue_row(retry_multiplier=number)])
    assert WorkQueue.objects.get(pk=written["id"]).retry_multiplier == number


def test_columns_that_are_not_named_get_their_defaults_each_row_its_own():
    written = bulk.insert(Metadata, [execution_row(), execution_row()], returning=("id", "external_id", "state"))
    rows = [Metadata.objects.get(pk=row["id"]) for row in written]
    assert [(row.state, row.attempt, row.failure_reason, row.cancel_requested) for row in rows] == [
        ("pending", 1, "", False)
    ] * 2
    assert rows[0].external_id != rows[1].external_id


def test_a_reference_is_named_by_its_field():
    group = ManifestGroup.objects.create(name="etl")
    manifest = Manifest.objects.create(external_id="sync", group=group, workflow="shop.copy")
    (written,) = bulk.insert(WorkQueue, [queue_row(manifest=manifest.pk, group=group.pk)], returning=("id", "manifest"))
    assert written["manifest"] == manifest.pk
    row = WorkQueue.objects.get(pk=written["id"])
    assert (row.manifest, row.group) == (manifest, group)


def test_columns_are_matched_by_name_when_inserting():
    rows = [{"name": "a", "priority": 1}, {"priority": 2, "name": "b"}]
    bulk.insert(ManifestGroup, rows)
    assert dict(ManifestGroup.objects.values_list("name", "priority")) == {"a": 1, "b": 2}


def test_columns_are_matched_by_name_when_updating():
    first, second = (ManifestGroup.objects.create(name=name).pk for name in "ab")
    rows: list[dict[str, Any]] = [
        {"id": first, "priority": 1, "max_active_jobs": 11},
        {"id": second, "max_active_jobs": 22, "priority": 2},
    ]
    bulk.update(ManifestGroup, rows)
    assert list(ManifestGroup.objects.values_list("priority", "max_active_jobs")) == [(1, 11), (2, 22)]


@pytest.mark.parametrize("count", [1, 3, 2500])
def test_any_number_of_rows_is_one_statement(count):
    rows = [{"name": f"group {number}", "priority": number % 32} for number in range(count)]
    with CaptureQueriesContext(connection) as queries:
        written = bulk.insert(ManifestGroup, rows, returning=("id", "name"))
    assert len(queries) == 1
    assert {row["name"] for row in written} == {row["name"] for row in rows}
    with CaptureQueriesContext(connection) as queries:
        changed = bulk.update(ManifestGroup, [{"id": row["id"], "is_enabled": False} for row in written])
    assert len(queries) == 1
    assert sorted(changed) == sorted(row["id"] for row in written)
    assert ManifestGroup.objects.filter(is_enabled=False).count() == count


def test_no_rows_are_no_statement():
    with CaptureQueriesContext(connection) as queries:
        assert bulk.insert(ManifestGroup, []) == []
        assert bulk.update(ManifestGroup, []) == []
    assert len(queries) == 0


def test_a_conflict_is_skipped_and_absent_from_the_answer():
    ManifestGroup.objects.create(name="b", priority=9)
    written = bulk.insert(ManifestGroup, [{"name": name} for name in "abcb"], returning=("name",), skip_conflicts=True)
    assert sorted(row["name"] for row in written) == ["a", "c"]
    assert ManifestGroup.objects.get(name="b").priority == 9


def test_a_conflict_on_a_partial_constraint_is_skipped():
    group = ManifestGroup.objects.create(name="etl")
    manifest = Manifest.objects.create(external_id="sync", group=group, workflow="shop.copy")
    rows = [queue_row(manifest=manifest.pk), queue_row(manifest=manifest.pk), queue_row(manifest=None)]
    assert len(bulk.insert(WorkQueue, rows, skip_conflicts=True)) == 2


def test_a_conflict_is_an_error_unless_it_is_to_be_skipped():
    ManifestGroup.objects.create(name="b")
    with pytest.raises(IntegrityError), transaction.atomic():
        bulk.insert(ManifestGroup, [{"name": name} for name in "abc"])
    assert list(ManifestGroup.objects.values_list("name", flat=True)) == ["b"]


@pytest.mark.parametrize(
    ("model", "good", "bad"),
    [
        (ManifestGroup, {"name": "a", "priority": 1}, {"name": "b", "priority": 32}),
        (Metadata, execution_row(state="pending"), execution_row(state="asleep")),
        (WorkQueue, queue_row(), queue_row(workflow=None)),
    ],
    ids=["a check", "a choice", "a missing value"],
)
def test_a_broken_check_is_never_swallowed_as_a_conflict(
    model: type[models.Model], good: dict[str, Any], bad: dict[str, Any]
):
    with pytest.raises(IntegrityError), transaction.atomic():
        bulk.insert(model, [good, bad], skip_conflicts=True)
    assert model._default_manager.count() == 0


@pytest.mark.postgres
@pytest.mark.parametrize("name", ["x" * 201])
def test_text_that_is_too_long_is_refused_and_not_cut(name):
    with pytest.raises(DataError), transaction.atomic():
        bulk.insert(ManifestGroup, [{"name": name}])


def test_an_update_writes_only_the_named_columns_of_the_named_rows():
    first, second, third = (ManifestGroup.objects.create(name=name, priority=5, max_active_jobs=7) for name in "abc")
    changed = bulk.update(ManifestGroup, [{"id": first.pk, "priority": 1}, {"id": third.pk, "priority": 3}])
    assert sorted(changed) == [first.pk, third.pk]
    assert list(ManifestGroup.objects.values_list("name", "priority", "max_active_jobs")) == [
        ("a", 1, 7),
        ("b", 5, 7),
        ("c", 3, 7),
    ]
    assert second.pk not in changed


def test_an_update_of_a_row_that_is_gone_is_left_out_of_the_answer():
    there = ManifestGroup.objects.create(name="a")
    rows = [{"id": there.pk, "priority": 1}, {"id": there.pk + 999, "priority": 1}]
    assert bulk.update(ManifestGroup, rows) == [there.pk]


def test_an_update_may_go_by_another_key():
    group = ManifestGroup.objects.create(name="etl")
    manifest = Manifest.objects.create(external_id="sync", group=group, workflow="shop.copy")
    ManifestState.objects.create(manifest=manifest)
    assert bulk.update(ManifestState, [{"manifest": manifest.pk, "next_run_at": NOW}], key="manifest") == [manifest.pk]
    assert ManifestState.objects.get(manifest=manifest).next_run_at == NOW


def test_a_broken_check_refuses_the_whole_update():
    first, second = (ManifestGroup.objects.create(name=name) for name in "ab")
    with pytest.raises(IntegrityError), transaction.atomic():
        bulk.update(ManifestGroup, [{"id": first.pk, "priority": 1}, {"id": second.pk, "priority": 32}])
    assert set(ManifestGroup.objects.values_list("priority", flat=True)) == {0}


@pytest.mark.parametrize(
    ("where", "is_written"),
    [
        ({"state": "pending"}, True),
        ({"state": "in_progress"}, False),
        ({"state": "pending", "attempt": 1}, True),
        ({"state": "pending", "attempt": 2}, False),
        ({"cancel_requested": False}, True),
        ({"cancel_requested": True}, False),
        ({"workflow": "shop.copy"}, True),
        ({"workflow": "100 %s"}, False),
        (None, True),
        ({}, True),
    ],
)
def test_compare_and_set_writes_only_what_is_still_as_expected(where, is_written):
    row = insert_one(execution_row())
    changed = bulk.update(Metadata, [{"id": row.pk, "claims": 4}], where=where)
    row.refresh_from_db()
    assert (changed, row.claims) == (([row.pk], 4) if is_written else ([], 0))


def test_compare_and_set_answers_for_each_row():
    rows = [insert_one(execution_row()) for _ in range(3)]
    Metadata.objects.filter(pk=rows[1].pk).update(state="in_progress")
    answer = bulk.update(Metadata, [{"id": row.pk, "state": "in_progress"} for row in rows], where={"state": "pending"})
    assert sorted(answer) == [rows[0].pk, rows[2].pk]


LATENT = "update hands `where` to the driver as it is (bulk.py, update)"


@pytest.mark.parametrize(
    "column",
    [
        pytest.param("started_at"),
        pytest.param("scheduled_for"),
        pytest.param("external_id"),
    ],
)
def test_compare_and_set_knows_every_kind_of_value(column):
    row = insert_one(execution_row())
    assert bulk.update(Metadata, [{"id": row.pk, "claims": 4}], where={column: getattr(row, column)}) == [row.pk]


def test_a_list_of_names_is_kept():
    process = {"kind": "worker", "host": "a", "pid": 1, "started_at": NOW, "heartbeat_at": NOW}
    (written,) = bulk.insert(Process, [process | {"workflows": ["shop.copy", "shop.über"]}])
    assert Process.objects.get(pk=written["id"]).workflows == ["shop.copy", "shop.über"]


def test_values_are_parameters_and_never_sql():
    name = "a'); DROP TABLE chainsched_namedlock; --"
    bulk.insert(ManifestGroup, [{"name": name}])
    assert ManifestGroup.objects.get().name == name
    assert NamedLock.objects.count() == 0


def test_rows_can_be_unfolded_into_a_table():
    expression, parameters = bulk.expand(
        {"n": models.BigIntegerField(), "t": models.TextField()}, [[1, "a"], [2, None]]
    )
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT v.n, v.t FROM {expression} ORDER BY v.n", parameters)  # noqa: S608 - no outside text
        assert cursor.fetchall() == [(1, "a"), (2, None)]


def test_values_that_all_rows_share_are_written_to_all():
    shared = {"a": [1, None]}
    bulk.insert(Metadata, [execution_row(input=shared, output=None, attempt=number) for number in (1, 2, 3)])
    rows = list(Metadata.objects.order_by("attempt").values_list("attempt", "input", "output", "scheduled_for"))
    assert rows == [(number, shared, None, NOW) for number in (1, 2, 3)]
    bulk.update(Metadata, [{"id": id_, "progress": True} for id_ in Metadata.objects.values_list("id", flat=True)])
    assert [progress is True for progress in Metadata.objects.values_list("progress", flat=True)] == [True] * 3


def test_ids_follow_the_order_of_the_rows_however_the_copied_ones_lie():
    waiting = bulk.insert(WorkQueue, [queue_row() for _ in range(300)])
    # So PostgreSQL finds it best to go through the rows that are copied from, and not through those that are given.
    bulk.analyze(WorkQueue)
    wanted = [row["id"] for row in reversed(waiting)]
    copied = bulk.Copied.of(WorkQueue, by="work_queue", fields={"workflow": "workflow", "source": "source"})
    rows = [{"work_queue": id_, "scheduled_for": NOW, "created_at": NOW} for id_ in wanted]
    written = bulk.insert(Metadata, rows, returning=("id", "work_queue"), copied=copied)
    assert [row["work_queue"] for row in sorted(written, key=lambda row: row["id"])] == wanted


def test_values_that_are_equal_and_not_the_same_stay_apart():
    bulk.insert(Metadata, [execution_row(attempt=at, output=value) for at, value in ((1, 1), (2, True), (3, 1.0))])
    written = Metadata.objects.order_by("attempt").values_list("output", flat=True)
    assert [type(value) for value in written] == [int, bool, float]
