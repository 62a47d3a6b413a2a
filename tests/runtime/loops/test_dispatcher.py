"""The turn of the dispatcher: when it has something to do next."""

from datetime import timedelta

import pytest
from django.db import connection

from chainsched.conf import get_config
from chainsched.runtime.loops import dispatcher
from tests.factories import NOW, make_queue_row

pytestmark = pytest.mark.django_db

SOON = NOW + timedelta(seconds=2)


@pytest.fixture(autouse=True)
def _at_now(monkeypatch):
    monkeypatch.setattr("chainsched.db.clock._stopped_at", NOW)


def let_wait_by_sql(row, text):
    """SQL may store times that no datetime can hold."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE chainsched_workqueue SET not_before = %s, parked_for = 'time' WHERE id = %s", [text, row.id]
        )


def test_it_turns_again_when_a_waiting_row_may_start():
    make_queue_row(not_before=SOON)
    assert dispatcher.Dispatcher().turn(NOW).next_at == SOON


def test_a_row_that_waits_beyond_its_interval_is_left_to_later_turns():
    make_queue_row(not_before=NOW + timedelta(seconds=get_config().dispatcher_interval + 1))
    assert dispatcher.Dispatcher().turn(NOW).next_at is None


def test_a_row_that_waits_for_ever_stops_nobody_else():
    let_wait_by_sql(make_queue_row(), "infinity")
    assert dispatcher.Dispatcher().turn(NOW).next_at is None
    make_queue_row(not_before=SOON)
    assert dispatcher.Dispatcher().turn(NOW).next_at == SOON


def test_workers_of_all_processes_are_woken_for_rows_that_are_ready(monkeypatch):
    woken: list[str] = []
    monkeypatch.setattr("chainsched.db.notify.send", woken.append)
    row = make_queue_row(not_before=SOON)
    assert (dispatcher.Dispatcher().turn(NOW).did, woken) == (0, [])
    assert dispatcher.Dispatcher().turn(row.not_before).did == 1
    assert woken == ["worker"]
