"""Which queue a job waits in, and who takes it from there."""

from __future__ import annotations

import pytest

from chainsched.domain.routing import (
    MAX_LISTED,
    MAX_QUEUE_LENGTH,
    Pool,
    are_taken,
    check_queue,
    effective_queue,
    no_worker_takes,
    queues_taken,
)


@pytest.mark.parametrize(
    ("own", "workflow", "group", "queue"),
    [
        ("own", "workflow", "group", "own"),
        ("", "workflow", "group", "workflow"),
        ("", "", "group", "group"),
        ("", "", "", "default"),
    ],
)
def test_the_manifest_comes_first_then_its_workflow_then_its_group(own, workflow, group, queue):
    assert effective_queue(own=own, workflow=workflow, group=group) == queue


@pytest.mark.parametrize(
    ("pool", "is_taken"),
    [
        (Pool(["job"]), True),
        (Pool(["job"], ["a", "b"]), True),
        (Pool(["job"], ["b"]), False),
        (Pool(["job"], []), False),
        (Pool(["other"]), False),
    ],
)
def test_a_pool_takes_the_jobs_that_it_knows_from_its_queues(pool, is_taken):
    assert pool.takes("job", "a") is is_taken
    assert are_taken("job", "a", pools=[Pool(["other"], ["a"]), pool]) is is_taken


@pytest.mark.parametrize(
    ("pools", "taken"),
    [([], set()), ([Pool([], ["a"]), Pool([], ["b", "a"])], {"a", "b"}), ([Pool([], ["a"]), Pool([])], None)],
)
def test_the_queues_that_are_taken(pools, taken):
    assert queues_taken(pools) == taken


@pytest.mark.parametrize("name", ["default", "a", "heavy-1", "gpu.v2", "team:x_y", "q" * MAX_QUEUE_LENGTH])
def test_names_of_queues(name):
    assert check_queue(name) == name


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("", "must be a text of"),
        ("two words", "must be a text of"),
        ("a,b", "must be a text of"),
        ("größe", "must be a text of"),
        ("a\n", "must be a text of"),
        (7, "must be a text of"),
        (None, "must be a text of"),
        ("q" * (MAX_QUEUE_LENGTH + 1), "at most 100 characters long, not 101"),
    ],
)
def test_what_is_no_name_of_a_queue(name, problem):
    with pytest.raises(ValueError, match=problem):
        check_queue(name)


def test_the_reason_names_the_queue_and_those_that_are_taken():
    found = no_worker_takes("gpu", pools=[Pool(["job"], ["b"]), Pool(["job"], ["a"])])
    assert found == "no worker takes queue 'gpu'; start one with --queues gpu (those that run take a, b)"
    many = [Pool(["job"], [f"q{number:02}" for number in range(MAX_LISTED + 5)])]
    assert no_worker_takes("gpu", pools=many).endswith("q08, q09, …)")
