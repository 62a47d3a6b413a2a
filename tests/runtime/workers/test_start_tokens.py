"""StartTokens: each is taken by a child or taken back by its supervisor, never both."""

import math
import threading

import pytest

from chainsched.runtime.workers.start_tokens import StartTokenReader

UNTIL = 812.25


class Reader(StartTokenReader):
    def covers(self, given_in):
        """Whether there is a token for a job that was assigned in this round, which is used."""
        return self.use(given_in) is not None


@pytest.fixture
def reader(tokens):
    return Reader(tokens.descriptor)


@pytest.mark.parametrize("until", [UNTIL, math.inf])
def test_a_token_says_until_when_its_job_may_begin(tokens, reader, until):
    tokens.grant(1, until=until)
    assert reader.use(0) == until
    assert reader.use(0) is None


def test_each_token_covers_one_job(tokens, reader):
    tokens.grant(2, until=UNTIL)
    assert [reader.covers(0) for _ in range(3)] == [True, True, False]


def test_what_is_taken_back_covers_nothing(tokens, reader):
    tokens.grant(3, until=UNTIL)
    assert reader.covers(0)
    assert tokens.revoke() == 2
    assert not reader.covers(0)
    assert tokens.revoke() == 0


def test_a_token_is_for_its_own_round(tokens, reader):
    tokens.grant(2, until=UNTIL)
    tokens.revoke()
    tokens.grant(1, until=UNTIL)
    assert not reader.covers(0), "it was taken back, and the new token is not for it"
    assert not reader.covers(0)
    assert reader.covers(1)


def test_a_token_that_is_held_for_its_job_cannot_be_taken_back(tokens, reader):
    tokens.revoke()
    tokens.grant(2, until=UNTIL)
    assert not reader.covers(0)
    assert tokens.revoke() == 1
    assert reader.covers(1)


def test_no_token_is_taken_twice_whoever_is_quicker(tokens, reader):
    number = 500
    for given_in in range(50):
        used: list[bool] = []
        tokens.grant(number, until=UNTIL)
        child = threading.Thread(target=use_up, args=(reader, given_in, used))
        child.start()
        taken_back = tokens.revoke()
        child.join()
        assert len(used) + taken_back == number


def use_up(reader, given_in, used):
    while reader.covers(given_in):
        used.append(True)
