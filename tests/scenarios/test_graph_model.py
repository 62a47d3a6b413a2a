"""The reference model of the graph of runs holds its own oracle, and the oracle notices each rule that is left out."""

import random

import pytest

from tests.scenarios import graph_model
from tests.scenarios.graph_model import BREAKS, Broken, Engine, Graph, Item, life, overlap, starve

LIVES = 150


def live(seed: int, broken: str) -> None:
    rng = random.Random(seed)  # noqa: S311 - repeats a life
    life(rng, rng.choice([60, 150, 400]), broken)


def live_often(broken: str = "") -> None:
    for seed in range(LIVES):
        live(seed, broken)


def test_random_lives_keep_the_rules() -> None:
    live_often()


@pytest.mark.parametrize("rule", BREAKS)
def test_a_rule_that_is_left_out_is_noticed(rule: str) -> None:
    with pytest.raises(Broken):
        live_often(rule)


def test_a_join_of_two_members_that_are_slower_than_their_head_runs_for_ever() -> None:
    runs, joined, _ = starve("")
    assert runs == 1000
    assert joined >= runs // 4


def test_without_taking_over_that_join_runs_once_at_most() -> None:
    _, joined, _ = starve("merge")
    assert joined <= 1


@pytest.mark.parametrize("limit", [2, 3, 100])
def test_a_join_does_not_fall_behind_its_head_without_bound(limit: int) -> None:
    for seed in range(5):
        assert overlap(seed, limit=limit) > 1


def test_an_item_that_an_operator_asked_for_holds_its_tokens_while_its_manifest_is_disabled() -> None:
    engine = chain_into_join()
    engine.disable(1)
    fold_all(engine)
    assert engine.states[3, 1].outcome == "", "member 2 is still open"
    engine.request(1)
    engine.open[2].phase = "active"
    engine.end(2, graph_model.OK)
    fold_all(engine)
    assert engine.states[3, 1].outcome == "", "member 1 was asked for and is open"
    engine.open[1].phase = "active"
    engine.end(1, graph_model.OK)
    fold_all(engine)
    assert engine.states[3, 1].outcome == "fired"


def test_a_note_does_not_join_an_item_that_an_operator_asked_for() -> None:
    engine = chain_into_join()
    engine.disable(1)
    engine.request(1)
    engine.notes[1].append(Item(1, {1}, engine.take(1, {1}), engine.tick))
    engine.consume(1)
    assert engine.due[1].holds is False
    assert engine.open[1].holds is True


def chain_into_join() -> Engine:
    """Head 0, members 1 and 2 that are queued in run 1, and join 3 of both."""
    rng = random.Random(0)  # noqa: S311 - repeats a life
    graph = Graph(rng, 3)
    success = ["success", 0]
    graph.parents = {0: {}, 1: {0: success}, 2: {0: success}, 3: {1: success, 2: success}}
    graph.joins = {3: {"at_least": None, "eager": False, "deadline": False, "again": False}}
    graph.gate = {}
    engine = Engine(graph, rng)
    engine.start(0)
    engine.open[0].phase = "active"
    engine.end(0, graph_model.OK)
    engine.consume(1)
    engine.consume(2)
    fold_all(engine)
    return engine


def fold_all(engine: Engine) -> None:
    while engine.deltas:
        for key in list(engine.deltas):
            engine.fold(key)
