"""Permits: each is taken by a child or taken back by its supervisor, never both."""

import threading

import pytest

from chainsched.runtime.permits import Licence


@pytest.fixture
def licence(permits):
    return Licence(permits.descriptor)


def test_each_permit_covers_one_job(permits, licence):
    permits.grant(2)
    assert [licence.covers(0) for _ in range(3)] == [True, True, False]


def test_what_is_taken_back_covers_nothing(permits, licence):
    permits.grant(3)
    assert licence.covers(0)
    assert permits.revoke() == 2
    assert not licence.covers(0)
    assert permits.revoke() == 0


def test_a_permit_is_for_its_own_round(permits, licence):
    permits.grant(2)
    permits.revoke()
    permits.grant(1)
    assert not licence.covers(0), "it was taken back, and the new permit is not for it"
    assert not licence.covers(0)
    assert licence.covers(1)


def test_a_permit_that_is_held_for_its_job_cannot_be_taken_back(permits, licence):
    permits.revoke()
    permits.grant(2)
    assert not licence.covers(0)
    assert permits.revoke() == 1
    assert licence.covers(1)


def test_no_permit_is_taken_twice_whoever_is_quicker(permits, licence):
    number = 500
    for given_in in range(50):
        used: list[bool] = []
        permits.grant(number)
        child = threading.Thread(target=use_up, args=(licence, given_in, used))
        child.start()
        taken_back = permits.revoke()
        child.join()
        assert len(used) + taken_back == number


def use_up(licence, given_in, used):
    while licence.covers(given_in):
        used.append(True)
