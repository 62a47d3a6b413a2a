"""The correlation scope: the four rules of propagation, nesting, isolation, and the stamp on log records."""

import asyncio
import contextlib
import logging
import threading
from typing import Any

import pytest
from django.test import override_settings

from chainsched import scope

ID, SEQUENCE = "chainsched-corr-id", "chainsched-corr-seq"
CAUSE, ROOT = "chainsched-causation-id", "chainsched-root-corr-id"


class TestTheFourRules:
    def test_without_a_scope_a_message_correlates_with_itself(self):
        assert scope.headers("m1") == {ID: "m1", SEQUENCE: "0"}

    def test_in_a_run_its_id_is_both_correlation_and_cause(self):
        with scope.begin("run", root_correlation_id="root"):
            assert scope.headers("m1") == {ID: "run", SEQUENCE: "1", CAUSE: "run", ROOT: "root"}

    def test_in_a_message_handler_the_message_is_the_cause(self):
        with scope.receive({ID: "run", SEQUENCE: "4", CAUSE: "run", ROOT: "root"}, message_id="m1"):
            assert scope.headers("m2") == {ID: "run", SEQUENCE: "5", CAUSE: "m1", ROOT: "root"}

    @pytest.mark.parametrize("name", [ID, SEQUENCE, CAUSE, ROOT, "anything-else"])
    @pytest.mark.parametrize("is_inside", [True, False])
    def test_what_the_caller_states_wins(self, name, is_inside):
        if is_inside:
            with scope.begin("run"):
                made = scope.headers("m1", explicit={name: "mine"})
        else:
            made = scope.headers("m1", explicit={name: "mine"})
        assert made[name] == "mine"


def test_a_scope_without_a_root_is_the_root():
    with scope.begin("run") as opened:
        assert (opened.correlation_id, opened.causation_id, opened.root_correlation_id) == ("run", "run", "run")


def test_a_message_that_came_without_headers_is_the_root_of_what_follows():
    with scope.receive({}, message_id="m1"):
        assert scope.headers("m2") == {ID: "m1", SEQUENCE: "1", CAUSE: "m1", ROOT: "m1"}


def test_a_message_without_a_root_makes_its_correlation_id_the_root():
    with scope.receive({ID: "m0"}, message_id="m1"):
        assert scope.headers("m2")[ROOT] == "m0"


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "٣", "9" * 400])
def test_a_sequence_that_is_no_number_counts_as_the_first(text):
    with scope.receive({SEQUENCE: text}, message_id="m1"):
        assert scope.headers("m2")[SEQUENCE] == "1"


def test_ids_from_outside_are_kept_as_rows_can_hold_them():
    with scope.receive({ID: "a\x00b" + "x" * 500}, message_id="m\ud8001") as opened:
        for id_ in (opened.correlation_id, opened.causation_id, opened.root_correlation_id):
            assert "\x00" not in id_
            assert "\ud800" not in id_
            assert len(id_) <= 200


def test_the_sequence_grows_with_each_message():
    with scope.begin("run", sequence=7):
        assert [scope.headers(f"m{number}")[SEQUENCE] for number in range(3)] == ["8", "9", "10"]


@override_settings(CHAINSCHED={"HEADERS": {"correlation_id": "X-Correlation-Id", "root_correlation_id": "X-Root"}})
def test_the_names_of_headers_can_be_set():
    with scope.receive({"X-Correlation-Id": "run", "X-Root": "root"}, message_id="m1"):
        assert scope.headers("m2") == {"X-Correlation-Id": "run", SEQUENCE: "1", CAUSE: "m1", "X-Root": "root"}


def test_scopes_nest_and_come_back_also_after_an_error():
    assert scope.current() is None
    with scope.begin("outer") as outer:
        with contextlib.suppress(RuntimeError), scope.begin("inner") as inner:
            assert scope.current() is inner
            raise RuntimeError
        assert scope.current() is outer
    assert scope.current() is None


def test_a_scope_does_not_leak_into_another_thread():
    seen: list[object] = []
    with scope.begin("run"):
        thread = threading.Thread(target=lambda: seen.append(scope.current()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_tasks_side_by_side_have_scopes_of_their_own():
    async def work(name: str, others: asyncio.Barrier) -> str:
        with scope.begin(name):
            await others.wait()
            return scope.headers("m")[ID]

    async def run_all() -> list[str]:
        barrier = asyncio.Barrier(3)
        return await asyncio.gather(*(work(name, barrier) for name in "abc"))

    assert asyncio.run(run_all()) == ["a", "b", "c"]
    assert scope.current() is None


def test_a_task_that_is_started_in_a_scope_keeps_it():
    async def inside() -> str:
        with scope.begin("run"):
            task = asyncio.create_task(asyncio.sleep(0, result=None))
            child = asyncio.create_task(publish())
        await task
        return await child

    async def publish() -> str:
        await asyncio.sleep(0)
        return scope.headers("m")[ID]

    assert asyncio.run(inside()) == "run"


class TestLogRecords:
    def stamped(self) -> Any:
        record = logging.LogRecord("name", logging.INFO, "path", 1, "text", None, None)
        assert scope.CorrelationFilter().filter(record)
        return record

    def test_they_carry_the_ids_of_the_scope(self):
        with scope.receive({ID: "run", ROOT: "root"}, message_id="m1"):
            record = self.stamped()
        assert (record.correlation_id, record.causation_id, record.root_correlation_id) == ("run", "m1", "root")

    def test_outside_a_scope_they_can_be_formatted_all_the_same(self):
        record = self.stamped()
        formatter = logging.Formatter("%(correlation_id)s %(causation_id)s %(root_correlation_id)s %(message)s")
        assert formatter.format(record) == "- - - text"
