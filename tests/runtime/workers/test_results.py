"""What has become of claims, between the thread that watches them and the one that writes it down."""

from __future__ import annotations

import pytest

from chainsched.domain.outcomes import completed
from chainsched.runtime.workers import results
from chainsched.runtime.workers.child_state import Job
from chainsched.runtime.workers.results import Results
from tests.runtime.workers.claims import claim


def job(number: int, *, began_at: float | None = 11.5) -> Job:
    return Job(claim(number), claimed_at=10.0, began_at=began_at)


@pytest.fixture
def three() -> Results:
    gathered = Results()
    gathered.expect(3)
    return gathered


def test_a_claim_is_outstanding_until_its_result_is_collected(three: Results) -> None:
    three.finish(job(1), completed("done"))
    assert three.outstanding == 3
    (finished,) = three.collect().finished
    assert (finished.execution_id, finished.outcome.output, finished.began_after) == (1, "done", 1.5)
    assert three.outstanding == 2
    assert not three.collect().finished


def test_what_is_given_back_is_outstanding_no_more(three: Results) -> None:
    three.withdraw([job(1, began_at=None), job(2, began_at=None)])
    assert three.collect().withdrawn == [1, 2]
    assert three.outstanding == 1


def test_one_result_of_many_waits_for_others(three: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "GATHER_SECONDS", 60)
    three.finish(job(1), completed(None))
    assert three.has_results
    assert not three.is_ready()


@pytest.mark.parametrize(("seconds", "number", "finished"), [(0, 200, 1), (60, 2, 2), (60, 200, 3)])
def test_results_are_handed_on_once_it_is_time(
    three: Results, monkeypatch: pytest.MonkeyPatch, seconds: float, number: int, finished: int
) -> None:
    """After a while, when there are many, or when there is nothing more to come."""
    monkeypatch.setattr(results, "GATHER_SECONDS", seconds)
    monkeypatch.setattr(results, "GATHER_RESULTS", number)
    for id_ in range(finished):
        three.finish(job(id_), completed(None))
    assert three.is_ready()
    assert not three.is_ready()


def test_what_is_given_back_is_handed_on_at_once(three: Results) -> None:
    three.withdraw([job(1, began_at=None)])
    assert three.is_ready()


def test_the_last_word_on_progress_is_that_of_the_result(three: Results) -> None:
    three.progress(1, {"done": 1})
    three.progress(2, {"done": 5})
    three.finish(job(1), completed(None), progress={"done": 9})
    three.finish(job(2), completed(None))
    assert three.collect().progress == {1: {"done": 9}, 2: {"done": 5}}


def test_what_was_running_when_the_lease_was_lost_is_forgotten(three: Results) -> None:
    three.finish(job(2), completed(None))
    three.discard_all(held=1)
    collected = three.collect()
    assert collected.finished == []
    # The third was not there yet.
    assert three.outstanding == 1
