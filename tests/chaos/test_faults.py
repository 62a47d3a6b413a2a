"""The faults that are drawn for a run, and its workload."""

import random
from collections import Counter
from datetime import UTC, datetime

from chaos import faults, workload
from chaos.faults import BYSTANDERS, Amounts
from chaos.workload import MIX

AMOUNTS = Amounts(kills=50, freezes=20, restarts=5, pauses=4, terminations=3, receivers=2, holds=6, refusals=1)
START = datetime(2026, 3, 1, tzinfo=UTC)


def dice(seed):
    return random.Random(seed)  # noqa: S311 - not for secrets


def draw(seed=1):
    return faults.draw(AMOUNTS, seconds=100, expiry=4, rng=dice(seed))


def build(jobs=500, *, seed=1, kinds=tuple(MIX)):
    return workload.build(jobs, start=START, seconds=60, rng=dice(seed), poisons=["exit"], kinds=kinds)


def test_there_are_as_many_faults_as_were_asked_for():
    kinds = Counter(fault.kind for fault in draw())
    assert kinds == {name: number for name, number in AMOUNTS.by_kind().items() if number}
    assert kinds.total() == 91


def test_faults_happen_in_their_order_and_within_the_time():
    moments = [fault.at for fault in draw()]
    assert moments == sorted(moments)
    assert all(0 < moment < 100 for moment in moments)


def test_a_freeze_outlasts_the_lease():
    assert all(fault.seconds > 4 for fault in draw() if fault.kind == "freeze")


def test_slow_receivers_and_open_transactions_outlast_the_lease_and_end_in_time():
    lasting = [fault for fault in draw() if fault.kind in BYSTANDERS]
    assert {fault.seconds for fault in lasting} == {12}
    assert max(fault.at for fault in lasting) <= 40


def test_the_same_seed_draws_the_same_run_and_another_one_another():
    assert draw() == draw()
    assert draw() != draw(seed=2)
    assert build().expected == build().expected
    assert build().schedules.expand() == build().schedules.expand()
    assert build().schedules.expand() != build(seed=2).schedules.expand()


def test_a_workload_has_about_as_many_runs_as_were_asked_for_and_all_kinds_of_jobs():
    built = build()
    assert 500 <= built.size <= 510
    assert {name.partition("-")[0] for name in built.expected} == set(MIX)


def test_everything_declared_is_expected_and_the_other_way_round():
    built = build()
    declared = {declaration.external_id: declaration for declaration in built.schedules.expand()}
    assert set(declared) == set(built.expected)
    for name, item in built.expected.items():
        assert list(declared[name].parents) == ([item.parent] if item.parent else sorted(item.members))
        assert declared[name].group.name == item.group


def test_a_workload_may_be_of_one_kind_only():
    assert {name.partition("-")[0] for name in build(20, kinds=["chain"]).expected} == {"chain"}
