"""H of the acceptance list: execution without child processes: outcomes, retries, letters, cancelling."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.db import connection

from chainsched import Cron, Every, ManifestItem, RunCondition, RunContext, workflow
from chainsched.api import acknowledge_letters, retry_letters
from chainsched.domain.due import Reason
from chainsched.domain.outcomes import Finished, Outcome, completed
from chainsched.domain.results import Answer, Cancelled
from chainsched.domain.states import ExecutionState, Source
from chainsched.exceptions import ChainschedError
from chainsched.flow.run.record import record
from chainsched.models import DeadLetter, Manifest, Metadata, WorkQueue
from chainsched.testing import Workbench
from tests.drive import alarm_of, executions_of, manifest, reap_silent, run_on, start_running
from tests.factories import NOW, make_letter, make_process
from tests.testapp.workflows import Slice, copy, copy_async, fail, give_up, ping

pytestmark = pytest.mark.django_db


@workflow(name="tests.tell")
def tell(job: Slice, run: RunContext) -> dict[str, Any]:
    """Say what it was called with, and fail the first time."""
    told = {
        "input": [type(job).__name__, job.table, job.size],
        "scheduled_for": run.scheduled_for.isoformat(),
        "external_id": run.external_id,
        "workflow": run.workflow,
        "attempt": run.attempt,
        "cron_expression": run.cron_expression,
        "execution_id": run.execution_id,
        "correlation_id": str(run.correlation_id),
        "parent_manifest_id": run.parent_manifest_id,
        "parent_execution_id": run.parent_execution_id,
        "root_execution_id": run.root_execution_id,
        "causation_id": run.causation_id,
        "root_correlation_id": run.root_correlation_id,
        "is_cancelled": run.is_cancelled(),
    }
    if run.attempt == 1 and job.table == "again":
        raise RuntimeError("the first time")
    return told


class TestRunContext:
    """The workflow gets its typed input and the RunContext of seed 004."""

    def test_a_scheduled_run_is_told_everything(self, bench):
        Manifest.objects.schedule(tell, "job", Slice("t", 3), Cron.hourly())
        bench.run_for(hours=1)
        (run,) = executions_of("job")
        assert run.output == {
            "input": ["Slice", "t", 3],
            "scheduled_for": (NOW + timedelta(hours=1)).isoformat(),
            "external_id": "job",
            "workflow": "tests.tell",
            "attempt": 1,
            "cron_expression": "0 * * * *",
            "execution_id": run.id,
            "correlation_id": str(run.external_id),
            "parent_manifest_id": None,
            "parent_execution_id": None,
            "root_execution_id": None,
            "causation_id": "",
            "root_correlation_id": str(run.external_id),
            "is_cancelled": False,
        }

    def test_the_retry_of_a_caused_run_is_told_its_own_id_and_the_same_causes(self, bench):
        Manifest.objects.schedule(ping, "root", None, Every.hours(9))
        Manifest.objects.schedule_dependent(ping, "parent", None, depends_on="root")
        Manifest.objects.schedule_dependent(tell, "job", Slice("again"), depends_on="parent", retry_delay=60)
        due_at = bench.now
        bench.drain()
        bench.run_for(minutes=2)
        root, parent = executions_of("root")[0], executions_of("parent")[0]
        first, second = executions_of("job")
        assert second.output == {
            "input": ["Slice", "again", 500],
            "scheduled_for": due_at.isoformat(),
            "external_id": "job",
            "workflow": "tests.tell",
            "attempt": 2,
            "cron_expression": "",
            "execution_id": second.id,
            "correlation_id": str(second.external_id),
            "parent_manifest_id": manifest("parent").id,
            "parent_execution_id": parent.id,
            "root_execution_id": root.id,
            "causation_id": str(parent.external_id),
            "root_correlation_id": str(root.external_id),
            "is_cancelled": False,
        }
        assert first.external_id != second.external_id

    @pytest.mark.parametrize(
        ("function", "given", "output"),
        [
            (copy, Slice("t"), {"table": "t", "rows": 500}),
            (copy, {"table": "t", "size": 2}, {"table": "t", "rows": 2}),
            (copy_async, Slice("t"), "t"),
            (ping, None, "pong"),
        ],
        ids=["typed", "as a mapping", "async", "without input"],
    )
    def test_success_is_stored_and_resets_what_failed_before(self, bench, function, given, output):
        Manifest.objects.schedule(fail, "job", None, Every.minutes(5), max_retries=3, retry_delay=60)
        bench.drain()
        assert manifest("job").consecutive_failures == 1
        WorkQueue.objects.queued().update(workflow="testapp.ping")
        bench.run_for(minutes=2)
        Manifest.objects.schedule(function, "job", given, Every.minutes(5))
        assert bench.run_for(minutes=5) == ["job"]
        run = executions_of("job")[-1]
        assert (run.state, run.output, run.failure_type) == (ExecutionState.COMPLETED, output, "")
        state = manifest("job").state
        assert (state.consecutive_failures, state.last_successful_run) == (0, run.ended_at)


# What user code may do to us. Each is called by the workflow below in a run of its own.


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("not even this")

    __repr__ = __str__


def in_a_circle() -> None:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def raises(error: BaseException) -> Callable[[], None]:
    def call() -> None:
        raise error

    return call


def returns(make: Callable[[], Any]) -> Callable[[], Any]:
    return make


def a_cycle() -> list[Any]:
    cycle: list[Any] = []
    cycle.append(cycle)
    return cycle


def deep(levels: int) -> list[Any]:
    nested: list[Any] = []
    for _ in range(levels):
        nested = [nested]
    return nested


MISDEEDS: dict[str, tuple[Callable[[], Any], str, str]] = {
    "NUL in the message": (raises(ValueError("a\0b")), "ValueError", "a\N{REPLACEMENT CHARACTER}b"),
    "a lone surrogate": (raises(ValueError("a\ud800b")), "ValueError", "a\N{REPLACEMENT CHARACTER}b"),
    "ten megabytes of message": (raises(ValueError("x" * 10_000_000)), "ValueError", "cut: the text was 10,000,000"),
    "markup": (raises(ValueError("<script>alert(1)</script>")), "ValueError", "<script>alert(1)</script>"),
    "a __str__ that raises": (raises(Unspeakable()), "Unspeakable", "its message cannot be read"),
    "no message": (raises(ValueError()), "ValueError", "ValueError"),
    "causes in a circle": (in_a_circle, "ValueError", "first"),
    "a group of errors": (raises(ExceptionGroup("both", [ValueError("a"), OSError("b")])), "ExceptionGroup", "both"),
    "sys.exit": (raises(SystemExit(0)), "SystemExit", "0"),
    "an interrupt": (raises(KeyboardInterrupt()), "KeyboardInterrupt", "KeyboardInterrupt"),
    "an object": (returns(object), "bad_output", "output"),
    "not a number": (returns(lambda: float("nan")), "bad_output", "output"),
    "infinity": (returns(lambda: {"a": [float("-inf")]}), "bad_output", "output"),
    "too much": (returns(lambda: "x" * (1024 * 1024 + 1)), "bad_output", "output"),
    "a cycle": (returns(a_cycle), "bad_output", "output"),
    "too deep": (returns(lambda: deep(5_000)), "bad_output", "output"),
    "NUL in the output": (returns(lambda: {"a": "x\0y"}), "bad_output", "output"),
    "a lone surrogate in the output": (returns(lambda: ["\udfff"]), "bad_output", "output"),
    "NUL in a key": (returns(lambda: {"x\0y": 1}), "bad_output", "output"),
}


@workflow(name="tests.misbehave")
def misbehave(misdeed: str) -> Any:
    return MISDEEDS[misdeed][0]()


class TestMisdeeds:
    """Failed with a readable reason; the worker lives, and so do the others' results."""

    @pytest.mark.parametrize("misdeed", MISDEEDS)
    def test_a_misdeed_is_a_failure_that_people_can_read_and_costs_nobody_else(self, bench, misdeed):
        _, failure_type, words = MISDEEDS[misdeed]
        Manifest.objects.schedule(ping, "before", None, Every.hours(9))
        Manifest.objects.schedule(misbehave, "job", misdeed, Every.hours(9), max_retries=1)
        Manifest.objects.schedule(ping, "after", None, Every.hours(9))
        assert sorted(bench.drain()) == ["after", "before", "job"]
        (run,) = executions_of("job")
        assert (run.state, run.failure_type, run.output) == (ExecutionState.FAILED, failure_type, None)
        assert words in run.failure_reason
        assert len(run.failure_reason) <= 66_000
        assert DeadLetter.objects.get().reason.startswith("Max retries exceeded (1 failures >= 1 max retries): ")
        ended = {name: executions_of(name)[0].state for name in ("before", "after")}
        assert set(ended.values()) == {ExecutionState.COMPLETED}

    @pytest.mark.parametrize("stored", [{"table": 7}, {"colour": "red"}, None, [], "t", {"table": "t", "more": 1}])
    def test_input_that_was_edited_by_hand_fails_as_bad_input_without_retries(self, bench, stored):
        Manifest.objects.schedule(copy, "job", Slice("t"), Every.hours(9))
        Manifest.objects.update(input=stored)
        assert bench.drain() == ["job"]
        (run,) = executions_of("job")
        assert (run.state, run.failure_type) == (ExecutionState.FAILED, "bad_input")
        assert DeadLetter.objects.get().reason.startswith("Trying again cannot help: ")

    @pytest.mark.parametrize("table", ["a\0b", "a\ud800b"], ids=["NUL", "surrogate"])
    def test_an_input_that_no_database_takes_is_refused_when_it_is_declared(self, bench, table):
        with pytest.raises(ChainschedError):
            Manifest.objects.schedule(copy, "job", Slice(table), Every.hours(9))
        Manifest.objects.schedule(copy, "job", Slice("t"), Every.hours(9))
        with pytest.raises(ChainschedError):
            manifest("job").trigger(input=Slice(table))
        assert bench.drain() == ["job"]

    def test_three_bad_results_among_a_hundred_cost_the_others_nothing(self, bench):
        """Unwritable text, a second letter, a broken cron."""
        names = [f"job-{number:02}" for number in range(100)]
        items = [ManifestItem(name) for name in names]
        Manifest.objects.schedule_many(ping, None, items, Cron.minutely(), max_retries=1, group="g")
        bench.advance(minutes=1)
        bench.manage()
        bench.dispatch()
        start_running(bench)
        Manifest.objects.filter(external_id="job-17").update(cron_expression="not a cron")
        make_letter(manifest("job-42"))
        results = {run.manifest_external_id: Finished(run.id, completed("fine")) for run in Metadata.objects.all()}
        unwritable: Any = "a\0b" if connection.vendor == "postgresql" else object()
        results["job-08"] = Finished(results["job-08"].execution_id, completed(unwritable))
        failed = Outcome(ExecutionState.FAILED, failure_type="Error", failure_reason="again")
        results["job-42"] = Finished(results["job-42"].execution_id, failed)
        recorded = record(list(results.values()), by=bench.process, now=bench.now)
        assert len(recorded.ended) == 100
        assert Metadata.objects.filter(state=ExecutionState.COMPLETED).count() == 98
        assert executions_of("job-08")[0].failure_reason.startswith("The result could not be stored")
        assert DeadLetter.objects.filter(manifest=manifest("job-42")).count() == 1
        assert (executions_of("job-17")[0].state, alarm_of("job-17")) == (ExecutionState.COMPLETED, None)
        others = Manifest.objects.exclude(external_id__in=["job-08", "job-17", "job-42"])
        assert set(others.values_list("state__next_run_at", flat=True)) == {NOW + timedelta(minutes=2)}


class TestRetries:
    """Retry after the backoff with the same input, parent and root; at max_retries one dead letter."""

    @pytest.mark.parametrize(("max_retries", "attempts"), [(None, 3), (0, 1), (1, 1), (2, 2), (5, 5)])
    def test_at_the_limit_there_is_one_letter_and_then_nothing(self, bench, max_retries, attempts):
        Manifest.objects.schedule(fail, "job", None, Every.minutes(5), max_retries=max_retries)
        assert bench.run_for(days=2) == ["job"] * attempts
        (letter,) = DeadLetter.objects.all()
        assert letter.execution_id == executions_of("job")[-1].id
        assert letter.failure_count == attempts
        assert letter.reason.endswith(f"({attempts} failures >= {attempts} max retries): row 17 is broken")
        assert manifest("job").explain().code == Reason.AWAITING_DEAD_LETTER
        assert manifest("job").trigger() is Answer.AWAITS_DEAD_LETTER

    def test_the_waits_grow_to_their_limit_and_vary_by_a_tenth(self, bench):
        options: dict[str, Any] = {"retry_delay": 100, "retry_multiplier": 3, "max_retry_delay": 500}
        Manifest.objects.schedule(fail, "job", None, Every.minutes(5), max_retries=6, **options)
        bench.run_for(hours=2)
        started = [run.started_at for run in executions_of("job")]
        waits = [(later - earlier).total_seconds() for earlier, later in pairwise(started)]
        for wait, expected in zip(waits, [100, 300, 500, 500, 500], strict=True):
            assert 0.9 * expected <= wait <= 1.1 * expected

    def test_every_attempt_keeps_input_time_parent_and_root(self, bench):
        Manifest.objects.schedule(ping, "parent", None, Every.hours(9))
        Manifest.objects.schedule_dependent(fail, "job", None, depends_on="parent")
        bench.run_for(hours=2)
        runs = executions_of("job")
        assert [run.attempt for run in runs] == [1, 2, 3]
        assert [run.source for run in runs] == [Source.DEPENDENCY, Source.RETRY, Source.RETRY]
        kept = {
            (run.scheduled_for, run.parent_execution_id, run.root_execution_id, run.root_correlation_id) for run in runs
        }
        (parent,) = executions_of("parent")
        assert kept == {(NOW, parent.id, parent.id, str(parent.external_id))}
        assert len({run.external_id for run in runs}) == 3

    def test_a_retry_keeps_the_input_that_a_trigger_came_with(self, bench):
        Manifest.objects.schedule(tell, "job", Slice("own"), None, retry_delay=60)
        manifest("job").trigger(input=Slice("again"))
        bench.run_for(minutes=2)
        assert [run.input["table"] for run in executions_of("job")] == ["again", "again"]

    def test_an_edited_input_is_used_by_the_next_run_not_by_the_retry(self, bench):
        Manifest.objects.schedule(tell, "job", Slice("again"), Every.hours(1), retry_delay=60)
        bench.drain()
        Manifest.objects.schedule(tell, "job", Slice("new"), Every.hours(1))
        bench.run_for(minutes=90)
        assert [run.input["table"] for run in executions_of("job")] == ["again", "again", "new"]

    def test_a_lost_run_is_made_again_at_once_the_first_time_only(self, bench):
        Manifest.objects.schedule(ping, "job", None, Every.hours(9), retry_delay=60)
        waits = []
        for _ in range(2):
            bench.manage()
            bench.dispatch()
            dead = make_process(heartbeat_at=bench.now - timedelta(hours=1))
            Metadata.objects.pending().update(
                state=ExecutionState.IN_PROGRESS, process=dead, claimed_at=bench.now, started_at=bench.now
            )
            assert reap_silent(now=bench.now).lost == 1
            not_before = WorkQueue.objects.queued().get().not_before
            assert not_before is not None
            waits.append((not_before - bench.now).total_seconds())
        assert waits[0] == 0
        assert 54 <= waits[1] * 0.5 <= 66, "the second failure waits twice the delay"
        assert executions_of("job")[0].failure_type == "lost"


class TestLetters:
    """Retried or acknowledged, once, with who, when and why; resolving resets the count."""

    @pytest.fixture
    def letter(self, bench: Workbench) -> DeadLetter:
        Manifest.objects.schedule(fail, "job", None, Every.minutes(5), max_retries=2, retry_delay=60)
        bench.run_for(minutes=5)
        bench.advance(hours=1)
        return DeadLetter.objects.get()

    @pytest.mark.parametrize("decision", ["retry", "acknowledge"])
    def test_resolving_resets_the_count_so_that_the_next_failures_are_counted_anew(self, bench, letter, decision):
        assert manifest("job").consecutive_failures == 2
        getattr(letter, decision)()
        assert manifest("job").consecutive_failures == 0
        if decision == "acknowledge":
            bench.advance(minutes=5)
        assert bench.drain() == ["job"]
        assert not DeadLetter.objects.awaiting().exists(), "one failure is not enough"
        bench.run_for(minutes=5)
        assert DeadLetter.objects.awaiting().count() == 1

    def test_a_retry_says_who_and_when_and_names_the_execution_it_made(self, bench, letter):
        ann = get_user_model().objects.create_user("ann")
        assert letter.retry(by=ann, note="mended").done == (letter.id,)
        bench.dispatch()
        letter.refresh_from_db()
        made = executions_of("job")[-1]
        assert (letter.status, letter.resolved_by, letter.resolved_at) == ("retried", ann, bench.now)
        assert (letter.note, letter.retry_execution_id, made.source) == ("mended", made.id, Source.DEAD_LETTER)

    @pytest.mark.parametrize("first", ["retry", "acknowledge"])
    @pytest.mark.parametrize("second", ["retry", "acknowledge"])
    def test_a_second_decision_has_no_effect_and_names_the_first(self, bench, letter, first, second):
        ann, bob = (get_user_model().objects.create_user(name) for name in ("ann", "bob"))
        getattr(letter, first)(by=ann)
        answer = getattr(DeadLetter.objects.get(), second)(by=bob, note="me too")
        verb = {"retry": "retried", "acknowledge": "acknowledged"}[first]
        assert answer.done == ()
        assert answer.skipped[letter.id].startswith(f"already {verb} by ann at ")
        letter.refresh_from_db()
        assert (letter.status, letter.resolved_by, letter.note) == (verb, ann, "")
        assert WorkQueue.objects.queued().count() == (1 if first == "retry" else 0)

    def test_bulk_decisions_fold_letters_of_one_manifest_and_name_what_they_skipped(self, bench, letter):
        """Letters that were decided before, the same one twice, and one that does not exist."""
        letter.retry()
        bench.run_for(minutes=5)
        newest = DeadLetter.objects.awaiting().get()
        ghost = DeadLetter(id=987_654)
        answer = retry_letters([letter, newest, newest, ghost])
        assert answer.done == (newest.id,)
        assert set(answer.skipped) == {letter.id, ghost.id}
        assert "no such dead letter" in answer.skipped[ghost.id]
        assert WorkQueue.objects.queued().count() == 1
        assert acknowledge_letters([newest]).done == ()

    @pytest.mark.parametrize(
        ("obstruct", "runs"), [("disable", ["job"]), ("group", [])], ids=["a disabled manifest", "a disabled group"]
    )
    def test_a_retry_runs_a_disabled_manifest_but_waits_for_its_group(self, bench, letter, obstruct, runs):
        Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
        if obstruct == "disable":
            manifest("job").disable()
        else:
            manifest("job").group.disable()
        letter.retry()
        assert bench.drain() == runs
        manifest("job").group.enable()
        manifest("job").enable()
        assert bench.drain() == ([] if runs else ["job"])


def cancel_queued(bench: Workbench) -> Cancelled:
    return manifest("job").cancel()


def cancel_pending(bench: Workbench) -> Cancelled:
    bench.dispatch()
    return manifest("job").cancel()


def cancel_running(bench: Workbench) -> Cancelled:
    """It is told, and breaks off."""
    bench.dispatch()
    start_running(bench)
    answer = manifest("job").cancel()
    run_on(bench)
    bench.work()
    return answer


class TestCancelling:
    """A queued row never runs, a pending one ends without running, a running one is told; nothing is retried."""

    @pytest.mark.parametrize(
        ("cancel", "answer", "states"),
        [
            (cancel_queued, Cancelled(queued=1), []),
            (cancel_pending, Cancelled(pending=1), [ExecutionState.CANCELLED]),
            (cancel_running, Cancelled(running=1), [ExecutionState.CANCELLED]),
        ],
    )
    @pytest.mark.parametrize("by", ["the manifest", "its group"])
    def test_cancelled_work_ends_without_retry_or_letter(self, bench, monkeypatch, cancel, answer, states, by):  # noqa: PLR0917
        Manifest.objects.schedule(fail, "job", None, Every.minutes(5))
        bench.manage()
        if by == "its group":
            monkeypatch.setattr(Manifest, "cancel", lambda self: self.group.cancel())
        assert cancel(bench) == answer
        assert [run.state for run in executions_of("job")] == states
        assert not WorkQueue.objects.queued().exists()
        assert not DeadLetter.objects.exists()
        assert manifest("job").consecutive_failures == 0
        assert alarm_of("job") == bench.now + timedelta(minutes=5)

    def test_a_run_that_is_told_and_succeeds_all_the_same_is_a_success(self, bench):
        Manifest.objects.schedule(ping, "job", None, Every.minutes(5))
        Manifest.objects.schedule_dependent(
            ping, "on-success", None, depends_on="job", run_condition=RunCondition.SUCCESS
        )
        bench.manage()
        assert cancel_running(bench) == Cancelled(running=1)
        assert executions_of("job")[0].state == ExecutionState.COMPLETED
        assert bench.drain() == ["on-success"]

    def test_a_run_is_told_once_and_can_ask(self, bench):
        Manifest.objects.schedule(tell, "job", Slice("t"), None)
        manifest("job").trigger()
        bench.dispatch()
        start_running(bench)
        assert [manifest("job").cancel().total for _ in range(2)] == [1, 0]
        run_on(bench)
        bench.work()
        assert executions_of("job")[0].output["is_cancelled"] is True

    def test_cancelling_what_has_nothing_open_or_awaits_a_decision_changes_nothing(self, bench):
        Manifest.objects.schedule(give_up, "job", None, Every.minutes(5))
        assert manifest("job").cancel() == Cancelled()
        assert alarm_of("job") == NOW
        bench.drain()
        assert manifest("job").cancel() == Cancelled()
        assert DeadLetter.objects.awaiting().count() == 1


class TestRemoving:
    """RELIABILITY 33: disabled waits, removed is cancelled, what runs finishes, history stays."""

    @pytest.mark.parametrize("stage", ["queued", "pending", "running", "waiting for its retry", "given up"])
    def test_a_manifest_that_is_removed_leaves_no_open_work(self, bench, stage):
        workflow = {"waiting for its retry": fail, "given up": give_up}.get(stage, ping)
        Manifest.objects.schedule(workflow, "job", None, Every.minutes(5))
        bench.manage()
        if stage != "queued":
            bench.dispatch()
        if stage in ("waiting for its retry", "given up"):
            bench.work()
        if stage == "running":
            start_running(bench)
        manifest("job").delete()
        run_on(bench)
        bench.run_for(days=1)
        assert not WorkQueue.objects.queued().exists()
        assert not Metadata.objects.active().exists()
        assert not DeadLetter.objects.awaiting().exists()
        assert len(executions_of("job")) == (0 if stage == "queued" else 1)
        if stage in ("pending", "running"):
            assert executions_of("job")[0].state == ExecutionState.COMPLETED
