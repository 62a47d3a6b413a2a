"""A host whose clock is wrong is told of once, and once when it is right again."""

from datetime import timedelta

import pytest

from chainsched.db.clock import stop_clock
from chainsched.domain.routing import Pool
from chainsched.runtime.process import lease as lease_module
from chainsched.runtime.process.lease import Lease
from chainsched.runtime.support.clock_skew import ClockSkew
from tests.factories import NOW

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


@pytest.fixture(autouse=True)
def _at_now():
    stop_clock(NOW)
    yield
    stop_clock(None)


def skew_of(*seconds):
    """A host whose clock shows these differences from the database's, one after the other."""
    shown = iter(seconds)
    return ClockSkew(host_now=lambda: NOW + timedelta(seconds=next(shown)))


@pytest.mark.parametrize(("seconds", "words"), [(90, "90 s ahead of"), (-90, "90 s behind"), (6, "6 s ahead of")])
def test_a_clock_that_is_wrong_is_a_warning(caplog, seconds, words):
    assert skew_of(seconds, seconds).database_now() == NOW
    (record,) = caplog.records
    assert f"The clock of this host is {words} the database's." in record.getMessage()


@pytest.mark.parametrize("seconds", [(4, 4), (-5, -5), (-60, 3), (-3, 60), (-60, 60)])
def test_small_differences_and_slow_answers_are_not(caplog, seconds):
    skew_of(*seconds).database_now()
    assert not caplog.records


def test_it_is_told_once_when_it_begins_and_once_when_it_is_over(caplog):
    skew = skew_of(90, 90, 95, 95, 4, 4, 6, 6, 1, 1, 1, 1)
    for _ in range(6):
        skew.database_now()
    first, last = (record.getMessage() for record in caplog.records)
    assert "90 s ahead" in first
    assert last == "The clock of this host agrees with the database's again."


def test_every_beat_of_a_lease_compares(caplog, monkeypatch):
    monkeypatch.setattr(lease_module, "skew", skew_of(90, 90))
    lease = Lease("worker", pool=Pool([]), on_loss=lambda: None)
    assert lease.beat()
    assert "90 s ahead" in caplog.text
