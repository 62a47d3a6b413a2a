"""The reconciler beside open transactions, and with rows that it cannot repair: it passes over these alone."""

from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import connection, transaction

from chainsched.domain.states import ScheduleType
from chainsched.flow.maintain.fsck import reconcile
from chainsched.models import Manifest, ManifestState, WorkQueue
from tests.concurrency.threads import at_once
from tests.drive import manifest, new_bench
from tests.factories import NOW, make_manifest, make_queue_row
from tests.testapp import workflows

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres, pytest.mark.usefixtures("patience")]

OTHERS = 5
SECOND = timedelta(seconds=1)


def make_unarmed(number: int = OTHERS) -> list[int]:
    return [make_manifest(state={}).id for _ in range(number)]


def unarmed() -> set[int]:
    return set(ManifestState.objects.filter(next_run_at__isnull=True).values_list("manifest_id", flat=True))


@contextmanager
def held(rows):
    """Another transaction holds these rows; the test fails if the reconciler waits for it."""
    with transaction.atomic():
        assert list(rows.select_for_update())
        yield


def test_a_manifest_that_is_held_is_passed_over_and_the_others_are_armed():
    mine, *_ = make_unarmed()
    with held(ManifestState.objects.filter(manifest=mine)):
        assert at_once(lambda: reconcile(now=NOW)) == [OTHERS - 1]
        assert unarmed() == {mine}
    assert reconcile(now=NOW) == 1
    assert unarmed() == set()


def test_parts_of_items_that_are_held_are_passed_over_and_the_others_are_put_right():
    bench = new_bench()
    root = bench.schedules.schedule(workflows.ping, "root", None, None, group="g")
    for name in "abc":
        root = root.include(workflows.ping, name, group="g")
    root.include(workflows.ping, "join", fan_in=True, group="g")
    bench.seed()
    manifest("root").trigger()
    bench.turn()
    bench.manage()
    Manifest.objects.filter(external_id__in=["a", "b", "c"]).update(is_enabled=False)
    rows = WorkQueue.objects.queued()
    with held(rows.filter(manifest__external_id="a")), held(ManifestState.objects.filter(manifest__external_id="b")):
        assert at_once(lambda: reconcile(now=bench.now)) == [1]
    assert not rows.get(manifest__external_id="c").has_tokens
    assert reconcile(now=bench.now) == 2


def test_rows_that_are_put_aside_and_held_are_tried_again_later(settings):
    settings.CHAINSCHED = {"RECONCILE_INTERVAL": 0.001}
    rows = [make_queue_row(make_manifest(state={}, schedule_type=ScheduleType.ON_DEMAND)) for _ in range(OTHERS)]
    states = [make_manifest().id for _ in range(OTHERS)]
    WorkQueue.objects.put_aside({row.id: "it does not fit" for row in rows}, now=NOW - 2 * SECOND)
    ManifestState.objects.put_aside(dict.fromkeys(states, "it does not fit"), now=NOW - 2 * SECOND)
    with held(WorkQueue.objects.filter(id=rows[0].id)), held(ManifestState.objects.filter(manifest=states[0])):
        at_once(lambda: reconcile(now=NOW))
    assert WorkQueue.objects.aside().get().id == rows[0].id
    assert ManifestState.objects.aside().get().manifest_id == states[0]


@pytest.mark.parametrize("error", ["P0001", "23514", "XX000", "55P03"])
def test_a_manifest_that_cannot_be_armed_keeps_no_other_waiting(error, caplog):
    bad, *_ = make_unarmed()
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            f"IF NEW.manifest_id = {bad} THEN RAISE 'never' USING ERRCODE = '{error}'; END IF; RETURN NEW; END $$"
        )
        cursor.execute(
            "CREATE TRIGGER refuse BEFORE UPDATE ON chainsched_manifeststate FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
    try:
        assert reconcile(now=NOW) == OTHERS - 1
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refuse CASCADE")
    assert unarmed() == {bad}
    assert f"Manifest {bad} cannot be checked or repaired" in caplog.text
