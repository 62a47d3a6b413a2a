"""Faults that are none of the engine's: when they begin, and when it is looked at whether they held up jobs."""

import random
import time
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import OperationalError

from chainsched.models import Metadata, WorkQueue
from chaos import bystanders, receivers, refusals, rows
from chaos.bystanders import Bystanders
from chaos.faults import Fault

BLOCK = Fault(1.0, "receiver", seconds=12)
HOLD = Fault(1.0, "hold", seconds=12)


@pytest.fixture
def looks(monkeypatch):
    """For how long nothing happened, of each look; each finds one sign."""
    found = []

    def held_up(*, seconds, besides):
        found.append((seconds, set(besides)))
        return ["job was due"]

    monkeypatch.setattr(rows, "held_up", held_up)
    return found


@pytest.fixture
def beside(tmp_path):
    fleet = SimpleNamespace(signals=tmp_path / "signals.jsonl")
    return Bystanders(fleet, random.Random(1))  # noqa: S311 - not for secrets


def blocker(beside):
    return receivers.blocker(beside.fleet.signals)


def test_receivers_are_blocked_until_the_end_and_it_is_looked_at_before(beside, looks):
    end = beside.begin(BLOCK)
    assert blocker(beside).exists()
    assert beside.begin(BLOCK) is None, "they are blocked already"
    end()
    assert not blocker(beside).exists()
    assert looks == [(6, set())]
    assert (beside.held_up, beside.looked) == (["job was due, while receivers blocked"], 1)


def test_they_begin_only_when_other_faults_are_over_for_a_while(beside, looks):
    beside.note_disturbance(until=time.monotonic())
    assert beside.begin(BLOCK) is None
    assert not blocker(beside).exists()
    beside.note_disturbance(until=float("-inf"))
    beside._calm_from = time.monotonic()
    assert beside.begin(BLOCK) is not None


def test_others_wait_until_all_of_them_have_ended(beside, looks, monkeypatch):
    monkeypatch.setattr(rows, "coming_due", lambda **_: ["a"])
    monkeypatch.setattr(refusals, "refuse", list)
    monkeypatch.setattr(refusals, "allow_all", lambda: None)
    ends = [beside.begin(BLOCK), beside.begin(Fault(1.0, "refuse", seconds=12))]
    for end in ends:
        assert beside.are_lasting
        end()
    assert not beside.are_lasting


def test_a_fault_ends_although_the_database_is_away(beside, monkeypatch):
    def fail(**_):
        raise OperationalError("gone")

    monkeypatch.setattr(rows, "held_up", fail)
    beside.begin(BLOCK)()
    assert not blocker(beside).exists()
    assert beside.looked == 0


def test_manifests_that_are_about_to_come_due_are_held(beside, looks, monkeypatch):
    class Hold:
        def __init__(self, manifests):
            self.manifests = manifests
            holds.append(self)
            self.steps = []

        def start(self):
            self.steps.append("start")

        def release(self):
            self.steps.append("release")

    holds: list[Hold] = []
    due: list[str] = []
    monkeypatch.setattr(bystanders, "Hold", Hold)
    monkeypatch.setattr(rows, "coming_due", lambda **_: due)
    assert beside.begin(HOLD) is None, "there is none"
    due += ["a", "b", "c", "d"]
    beside.begin(HOLD)()
    (hold,) = holds
    assert len(hold.manifests) == bystanders.CONCERNED
    assert hold.steps == ["start", "release"]
    assert looks == [(6, set(hold.manifests))]


def test_rows_are_refused_until_the_end_and_no_manifest_is_concerned_twice(beside, looks, monkeypatch):
    steps: list[Any] = []
    monkeypatch.setattr(rows, "coming_due", lambda **_: ["a", "b", "c"])
    monkeypatch.setattr(refusals, "refuse", lambda refused: steps.append(dict(refused)))
    monkeypatch.setattr(refusals, "allow_all", lambda: steps.append("allow"))
    end = beside.begin(Fault(1.0, "refuse", seconds=12))
    (refused,) = steps
    assert sorted(refused) == ["a", "b", "c"]
    assert set(refused.values()) == {WorkQueue, Metadata}
    end()
    assert steps[1:] == ["allow"]
    assert beside.begin(HOLD) is None
