"""A process counts as silent only for a watcher that has seen its heartbeat stand still, by its own clock."""

from datetime import UTC, datetime, timedelta

import pytest

from chainsched.domain.heartbeats import Watch, look_again

NOW = datetime(2026, 3, 2, 10, tzinfo=UTC)
EXPIRY = 30
GAP = 12


def beat(number):
    return NOW + timedelta(seconds=number)


def look_at(*looks, watch=None):
    """Look at each time, and see these heartbeats; a look takes no time."""
    watch = watch or Watch()
    for at, heartbeats in looks:
        watch = look_again(watch, heartbeats, asked_at=at, read_at=at, longest_gap=GAP)
    return watch


def silent(watch):
    return watch.silent(expiry=EXPIRY)


def steady(heartbeats, *, start=0, end):
    """A look every ten seconds."""
    return [(at, heartbeats) for at in range(start, end + 1, 10)]


def test_a_watcher_that_has_not_looked_knows_of_no_silence():
    assert silent(Watch()) == {}


@pytest.mark.parametrize(("end", "expected"), [(0, {}), (20, {}), (30, {7: beat(0)}), (60, {7: beat(0)})])
def test_a_heartbeat_has_to_stand_still_for_one_expiry_before_the_watcher(end, expected):
    assert silent(look_at(*steady({7: beat(0)}, end=end))) == expected


def test_the_age_of_the_heartbeat_does_not_count():
    assert silent(look_at(*steady({7: beat(-(10**6))}, end=20))) == {}
    assert silent(look_at(*steady({7: beat(10**6)}, end=30))) == {7: beat(10**6)}, "the database's clock may be wrong"


def test_each_heartbeat_begins_it_anew():
    watch = look_at(*steady({7: beat(0)}, end=20), (29, {7: beat(29)}), *steady({7: beat(29)}, start=30, end=50))
    assert silent(watch) == {}
    assert silent(look_at((59, {7: beat(29)}), watch=watch)) == {7: beat(29)}


def test_a_heartbeat_that_went_back_is_another_one():
    watch = look_at(*steady({7: beat(20)}, end=20), (30, {7: beat(0)}))
    assert silent(watch) == {}


def test_processes_are_watched_each_by_itself():
    watch = look_at(*steady({7: beat(0)}, end=10), *steady({7: beat(0), 8: beat(0)}, start=20, end=30))
    assert silent(watch) == {7: beat(0)}


def test_a_process_that_has_stopped_is_forgotten():
    watch = look_at(*steady({7: beat(0)}, end=20), (30, {}), (40, {7: beat(0)}))
    assert silent(watch) == {}


@pytest.mark.parametrize(("at", "is_late"), [(42, False), (43, True), (10_000, True)])
def test_a_watcher_that_is_late_begins_anew(at, is_late):
    watch = look_at(*steady({7: beat(0)}, end=30))
    assert watch.is_late(at, longest_gap=GAP) is is_late
    watch = look_at((at, {7: beat(0)}), watch=watch)
    assert (silent(watch) == {}) is is_late
    later = look_at(*((at + passed, {7: beat(0)}) for passed in (10, 20, 30)), watch=watch)
    assert silent(later) == {7: beat(0)}


def test_a_database_that_takes_its_time_makes_no_silence():
    """The first reply comes 10 s after the question: the heartbeat has stood still since then and not before."""
    watch = Watch()
    for asked_at in (0, 10, 20, 30):
        watch = look_again(watch, {7: beat(0)}, asked_at=asked_at, read_at=asked_at + 10, longest_gap=GAP)
    assert silent(watch) == {}
    assert silent(look_at((40, {7: beat(0)}), watch=watch)) == {7: beat(0)}
