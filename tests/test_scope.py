"""The correlation scope: the four rules of propagation, nesting, isolation, and the stamp on log records."""

import asyncio
import contextlib
import logging
import threading
from typing import Any

import pytest
from django.test import override_settings

from chainsched import correlation

ID, SEQUENCE = "chainsched-corr-id", "chainsched-corr-seq"
CAUSE, ROOT = "chainsched-causation-id", "chainsched-root-corr-id"


class TestTheFourRules:
    def test_without_a_scope_a_message_correlates_with_itself(self):
        assert correlation.headers("m1") == {ID: "m1", SEQUENCE: "0"}

    def test_in_a_run_its_id_is_both_correlation_and_cause(self):
        with correlation.begin("run", root_correlation_id="root"):
            assert correlation.headers("m1") == {ID: "run", SEQUENCE: "1", CAUSE: "run", ROOT: "root"}

    def test_in_a_message_handler_the_message_is_the_cause(self):
        with correlation.receive({ID: "run", SEQUENCE: "4", CAUSE: "run", ROOT: "root"}, message_id="m1"):
            assert correlation.headers("m2") == {ID: "run", SEQUENCE: "5", CAUSE: "m1", ROOT: "root"}

    @pytest.mark.parametrize("name", [ID, SEQUENCE, CAUSE, ROOT, "anything-else"])
    @pytest.mark.parametrize("is_inside", [True, False])
    def test_what_the_caller_states_wins(self, name, is_inside):
        if is_inside:
            with correlation.begin("run"):
                made = correlation.headers("m1", explicit={name: "mine"})
        else:
            made = correlation.headers("m1", explicit={name: "mine"})
        assert made[name] == "mine"


def test_a_scope_without_a_root_is_the_root():
    with correlation.begin("run") as opened:
        assert (opened.correlation_id, opened.causation_id, opened.root_correlation_id) == ("run", "run", "run")


def test_a_message_that_came_without_headers_is_the_root_of_what_follows():
    with correlation.receive({}, message_id="m1"):
        assert correlation.headers("m2") == {ID: "m1", SEQUENCE: "1", CAUSE: "m1", ROOT: "m1"}


def test_a_message_without_a_root_makes_its_correlation_id_the_root():
    with correlation.receive({ID: "m0"}, message_id="m1"):
        assert correlation.headers("m2")[ROOT] == "m0"


@pytest.mark.parametrize("text", ["", "x", "-1", "1.5", "٣", "9" * 400])
def test_a_sequence_that_is_no_number_counts_as_the_first(text):
    with correlation.receive({SEQUENCE: text}, message_id="m1"):
        assert correlation.headers("m2")[SEQUENCE] == "1"


def test_ids_from_outside_are_kept_as_rows_can_hold_them():
    with correlation.receive({ID: "a\x00b" + "x" * 500}, message_id="m\ud8001") as opened:
        for id_ in (opened.correlation_id, opened.causation_id, opened.root_correlation_id):
            assert "\x00" not in id_
            assert "\ud800" not in id_
            assert len(id_) <= 200


def test_the_sequence_grows_with_each_message():
    with correlation.begin("run", sequence=7):
        assert [correlation.headers(f"m{number}")[SEQUENCE] for number in range(3)] == ["8", "9", "10"]


@override_settings(CHAINSCHED={"HEADERS": {"correlation_id": "X-Correlation-Id", "root_correlation_id": "X-Root"}})
def test_the_names_of_headers_can_be_set():
    with correlation.receive({"X-Correlation-Id": "run", "X-Root": "root"}, message_id="m1"):
        assert correlation.headers("m2") == {"X-Correlation-Id": "run", SEQUENCE: "1", CAUSE: "m1", "X-Root": "root"}


def test_scopes_nest_and_come_back_also_after_an_error():
    assert correlation.current() is None
    with correlation.begin("outer") as outer:
        with contextlib.suppress(RuntimeError), correlation.begin("inner") as inner:
            assert correlation.current() is inner
            raise RuntimeError
        assert correlation.current() is outer
    assert correlation.current() is None


def test_a_scope_does_not_leak_into_another_thread():
    seen: list[object] = []
    with correlation.begin("run"):
        thread = threading.Thread(target=lambda: seen.append(correlation.current()))
        thread.start()
        thread.join()
    assert seen == [None]


def test_tasks_side_by_side_have_scopes_of_their_own():
    async def work(name: str, others: asyncio.Barrier) -> str:
        with correlation.begin(name):
            await others.wait()
            return correlation.headers("m")[ID]

    async def run_all() -> list[str]:
        barrier = asyncio.Barrier(3)
        return await asyncio.gather(*(work(name, barrier) for name in "abc"))

    assert asyncio.run(run_all()) == ["a", "b", "c"]
    assert correlation.current() is None


def test_a_task_that_is_started_in_a_scope_keeps_it():
    async def inside() -> str:
        with correlation.begin("run"):
            task = asyncio.create_task(asyncio.sleep(0, result=None))
            child = asyncio.create_task(publish())
        await task
        return await child

    async def publish() -> str:
        await asyncio.sleep(0)
        return correlation.headers("m")[ID]

    assert asyncio.run(inside()) == "run"


class TestLogRecords:
    def stamped(self) -> Any:
        record = logging.LogRecord("name", logging.INFO, "path", 1, "text", None, None)
        assert correlation.CorrelationFilter().filter(record)
        return record

    def test_they_carry_the_ids_of_the_scope(self):
        with correlation.receive({ID: "run", ROOT: "root"}, message_id="m1"):
            record = self.stamped()
        assert (record.correlation_id, record.causation_id, record.root_correlation_id) == ("run", "m1", "root")

    def test_outside_a_scope_they_can_be_formatted_all_the_same(self):
        record = self.stamped()
        formatter = logging.Formatter("%(correlation_id)s %(causation_id)s %(root_correlation_id)s %(message)s")
        assert formatter.format(record) == "- - - text"
