"""The turn of the manager: when it has something to do next."""

from datetime import timedelta

import pytest
from django.db import connection

from chainsched.conf import get_config
from chainsched.runtime.loops import manager
from tests.factories import NOW, make_manifest

pytestmark = pytest.mark.django_db

SOON = NOW + timedelta(seconds=2)


def set_alarm_by_sql(manifest, text):
    """SQL may store times that no datetime can hold."""
    with connection.cursor() as cursor:
        cursor.execute(
            "UPDATE chainsched_manifeststate SET next_run_at = %s WHERE manifest_id = %s", [text, manifest.id]
        )


def test_it_turns_again_at_the_next_alarm():
    make_manifest(state={"next_run_at": SOON})
    assert manager.turn(NOW).next_at == SOON


def test_an_alarm_beyond_its_interval_is_left_to_later_turns():
    beyond = NOW + timedelta(seconds=get_config().manager_interval + 1)
    make_manifest(state={"next_run_at": beyond})
    assert manager.turn(NOW).next_at is None


def test_an_alarm_that_never_comes_stops_nobody_elses():
    set_alarm_by_sql(make_manifest(state={}), "infinity")
    assert manager.turn(NOW).next_at is None
    make_manifest(state={"next_run_at": SOON})
    assert manager.turn(NOW).next_at == SOON


def test_a_turn_queues_a_page_so_that_the_dispatcher_can_begin_with_it():
    for _ in range(3):
        make_manifest(state={"next_run_at": NOW}, schedule_type="interval", interval_seconds=60)
    first = manager.turn(NOW, page=2)
    assert (first.did, first.has_more) == (2, True)
    second = manager.turn(NOW, page=2)
    assert (second.did, second.has_more) == (1, False)
