"""The lease of a process: what ends it, and what does not."""

from datetime import timedelta

import pytest

from chainsched.conf import get_config
from chainsched.db.clock import database_now, stop_clock
from chainsched.domain.routing import Pool
from chainsched.models import Process
from chainsched.runtime.process.lease import Lease
from chainsched.runtime.support.hearing import hearing

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def lease():
    return Lease("worker", pool=Pool([]), on_loss=lambda: None)


@pytest.fixture
def jump():
    """Let the clock of the database jump; it stands still from then on."""
    yield lambda seconds: stop_clock(database_now() + timedelta(seconds=seconds))
    stop_clock(None)


@pytest.mark.parametrize("seconds", [3600, -3600])
def test_a_jump_of_the_databases_clock_takes_it_from_nobody(lease, jump, seconds):
    jump(seconds)
    assert lease.beat()
    assert Process.objects.get().heartbeat_at == database_now()


def test_a_beat_tells_since_when_no_notices_are_heard(lease):
    hearing.lose()
    assert lease.beat()
    since = Process.objects.get().deaf_since
    assert since is not None
    assert lease.beat()
    assert Process.objects.get().deaf_since == since
    hearing.regain()
    assert lease.beat()
    assert Process.objects.get().deaf_since is None


def test_it_is_over_when_others_took_it(lease):
    Process.objects.update(lost_at=database_now())
    assert not lease.beat()


def test_it_is_over_when_its_time_is_by_our_own_clock(lease):
    lease._renewed_at -= get_config().process_expiry
    assert not lease.beat()
    assert Process.objects.get().lost_at is None
