"""How a run goes, what its joins wait for, and what a workflow learns about the runs before it."""

import json

import pytest
from django.core.management import CommandError, call_command

from chainsched import Every, GiveUp, ManifestItem
from chainsched.domain import outcomes
from chainsched.domain.joins import JoinOutcome
from chainsched.domain.outcomes import Finished, Outcome
from chainsched.domain.results import Answer
from chainsched.domain.states import ExecutionState
from chainsched.exceptions import InvalidInput
from chainsched.flow.run.claim import claim
from chainsched.flow.run.record import record
from chainsched.models import DeadLetter, GraphRun, JoinState, Metadata
from chainsched.models.join_reports import describe_join
from chainsched.models.run_reports import describe_run, find_arrivals
from chainsched.registry import registry
from tests.drive import executions_of, manifest
from tests.testapp import workflows

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]

GROUP = {"group": "g"}
FAILED = outcomes.raised(RuntimeError("broken"))
GIVEN_UP = outcomes.raised(GiveUp("the source is gone"))
# Of a whole run with all its joins.
MAX_QUERIES = 16


@pytest.fixture
def diamond(bench):
    """A head with four members, and a join that needs all of them."""
    chain = bench.schedules.schedule(workflows.ping, "head", None, Every.hours(1), **GROUP)
    for name in "abcd":
        chain.include(workflows.ping, name, **GROUP, max_retries=1)
    chain.include(workflows.ping, "join", depends_on=list("abcd"), **GROUP)
    bench.seed()
    finish(bench, "head")
    return bench


def start_all(bench):
    bench.manage()
    bench.dispatch()
    claim(process=bench.process, workflows=registry.names(), limit=100, now=bench.now)


def finish(bench, name, outcome=None):
    start_all(bench)
    execution = Metadata.objects.in_progress().get(manifest_external_id=name)
    record([Finished(execution.id, outcome or outcomes.completed({"of": name}))], by=bench.process, now=bench.now)
    bench.manage()


def join_state():
    return JoinState.objects.get(join_id=manifest("join").id)


def reasons(state):
    return {missing.external_id: missing.reason for missing in describe_join(state).missing}


class TestAJoinThatWaits:
    def test_it_says_how_many_arrived_and_who_is_missing_and_why(self, diamond):
        finish(diamond, "a")
        report = describe_join(join_state())
        assert (report.needed, report.expected, report.arrived, report.open) == (4, 4, 1, 3)
        assert reasons(join_state()) == {"b": "running", "c": "running", "d": "running"}
        assert "1 of 4 arrived, it needs 4, 3 open; missing: b (running)" in report.in_words

    def test_explain_says_the_same(self, diamond):
        finish(diamond, "a")
        explanation = manifest("join").explain()
        assert explanation.code == "waits_for_parents"
        assert "1 of 4 arrived" in explanation.reason


class TestAShortJoin:
    def test_it_names_the_failed_the_cancelled_and_the_disabled(self, diamond):
        finish(diamond, "a")
        finish(diamond, "b", FAILED)
        finish(diamond, "c", Outcome(ExecutionState.CANCELLED))
        manifest("d").disable()
        finish(diamond, "d", FAILED)
        state = join_state()
        assert state.outcome == JoinOutcome.SHORT
        found = reasons(state)
        assert found["b"].startswith("failed in execution")
        assert "its dead letter awaits a decision" in found["b"]
        assert found["c"].startswith("cancelled in execution")
        assert "a" not in found
        explanation = manifest("join").explain()
        assert explanation.code == "too_few_arrived"
        assert "b (failed in execution" in explanation.reason

    def test_a_disabled_member_and_one_that_an_old_letter_stops_are_named(self, diamond):
        for name in "abc":
            finish(diamond, name)
        finish(diamond, "d", FAILED)
        manifest("c").disable()
        diamond.advance(hours=1)
        finish(diamond, "head")
        for name in "ab":
            finish(diamond, name)
        state = JoinState.objects.filter(join_id=manifest("join").id).latest("id")
        assert state.outcome == JoinOutcome.SHORT
        assert reasons(state) == {"c": "disabled", "d": "stopped by a dead letter of an earlier run"}

    def test_a_member_that_was_not_reached_is_named(self, bench):
        chain = bench.schedules.schedule(workflows.ping, "head", None, Every.hours(1), **GROUP)
        chain.include(workflows.give_up, "a", **GROUP).then_include(workflows.ping, "b", **GROUP)
        chain.include(workflows.ping, "c", **GROUP)
        chain.include(workflows.ping, "join", depends_on=["b", "c"], **GROUP)
        bench.seed()
        bench.drain()
        assert reasons(join_state()) == {"b": "not reached"}

    def test_a_member_with_a_row_that_was_cancelled_is_named(self, diamond):
        """It stood for two runs, and was an execution in neither."""
        start_all(diamond)
        for _ in range(2):
            diamond.advance(hours=1)
            finish(diamond, "head")
        finish(diamond, "d")
        manifest("d").cancel()
        for name in "abcabc":
            finish(diamond, name)
        for state in JoinState.objects.filter(join_id=manifest("join").id).order_by("id")[1:]:
            assert state.outcome == JoinOutcome.SHORT
            assert reasons(state) == {"d": "cancelled before it began"}

    def test_a_due_member_whose_parent_is_disabled_and_one_that_nobody_activated_are_named(self, bench):
        chain = bench.schedules.schedule(workflows.ping, "head", None, Every.hours(1), **GROUP)
        chain.include(workflows.ping, "m", **GROUP).then_include(workflows.ping, "child", **GROUP)
        chain.include(workflows.ping, "asleep", dormant=True, **GROUP)
        chain.include(workflows.ping, "join", depends_on=["child", "asleep"], **GROUP)
        bench.seed()
        finish(bench, "head")
        start_all(bench)
        manifest("m").disable()
        finish(bench, "m")
        assert join_state().outcome == JoinOutcome.SHORT
        assert reasons(join_state()) == {"child": "parent disabled", "asleep": "not activated"}
        assert describe_run(GraphRun.objects.get()).open_work == (), "it waits for neither"


class TestArrivals:
    def test_a_member_that_arrived_and_failed_later_in_the_run_has_arrived(self, diamond):
        finish(diamond, "a")
        (arrived,) = executions_of("a")
        assert arrived.run_from_here() is Answer.QUEUED
        finish(diamond, "a", GIVEN_UP)
        assert set(reasons(join_state())) == {"b", "c", "d"}
        for name in "bcd":
            finish(diamond, name)
        start_all(diamond)
        (joined,) = executions_of("join")
        assert [parent.external_id for parent in find_arrivals(joined)] == list("abcd")
        assert arrived.id in {parent.execution_id for parent in find_arrivals(joined)}

    @pytest.mark.parametrize("options", [{"fan_in": True}, {"depends_on": ["m-0", "m-1"], "at_least": 1}])
    def test_more_joins_and_members_take_no_more_queries(self, bench, options, django_assert_max_num_queries):
        chain = bench.schedules.schedule(workflows.ping, "head", None, Every.hours(1), **GROUP)
        chain = chain.include_many(workflows.ping, None, [ManifestItem(f"m-{at}") for at in range(20)], **GROUP)
        for at in range(5):
            chain.include(workflows.ping, f"join-{at}", **options, **GROUP)
        bench.seed()
        finish(bench, "head")
        with django_assert_max_num_queries(MAX_QUERIES):
            report = describe_run(GraphRun.objects.get())
        assert len(report.joins) == 5
        assert {len(join.missing) for join in report.joins} == {2 if "at_least" in options else 20}


class TestRunFromHere:
    def test_it_makes_a_short_join_enough(self, diamond):
        for name in "abc":
            finish(diamond, name)
        finish(diamond, "d", FAILED)
        DeadLetter.objects.get().acknowledge()
        assert join_state().outcome == JoinOutcome.SHORT
        assert executions_of("d")[0].run_from_here() is Answer.QUEUED
        assert diamond.drain() == ["d", "join"]
        again = executions_of("d")[-1]
        assert (again.run_id, again.is_again) == (executions_of("d")[0].run_id, True)
        assert again.parent_execution_id == executions_of("head")[0].id
        assert GraphRun.objects.get().state == "closed"

    def test_it_is_refused_while_the_manifest_is_busy(self, diamond):
        start_all(diamond)
        assert executions_of("a")[0].run_from_here() is Answer.BUSY

    def test_it_is_refused_without_a_run(self, bench):
        bench.schedules.schedule(workflows.ping, "alone", None, Every.hours(1), **GROUP)
        bench.seed()
        bench.drain()
        with pytest.raises(InvalidInput, match="belongs to no run"):
            executions_of("alone")[0].run_from_here()

    def test_it_is_refused_in_a_cancelled_run(self, diamond):
        for name in "abcd":
            finish(diamond, name)
        GraphRun.objects.get().cancel()
        with pytest.raises(InvalidInput, match="its run was cancelled"):
            executions_of("a")[0].run_from_here()


class TestTheWorkflow:
    def test_a_join_learns_what_arrived_and_who_is_missing(self, bench):
        chain = bench.schedules.schedule(workflows.ping, "head", None, Every.hours(1), **GROUP)
        chain.include(workflows.ping, "a", **GROUP).include(workflows.give_up, "b", **GROUP)
        chain.include(workflows.describe_run, "join", depends_on=["a", "b"], at_least=1, **GROUP)
        bench.seed()
        bench.drain()
        seen = executions_of("join")[0].output
        assert seen["join"] == [1, 1, JoinOutcome.FIRED, ["b"]]
        assert seen["parents"] == [["a", "pong"]]

    def test_a_plain_dependent_has_one_parent_and_no_join(self, bench):
        head = bench.schedules.schedule(workflows.ping, "head", None, Every.hours(1), **GROUP)
        head.include(workflows.describe_run, "child", **GROUP)
        bench.seed()
        bench.drain()
        run = GraphRun.objects.get().id
        assert executions_of("child")[0].output == {"run": run, "join": None, "parents": [["head", "pong"]]}


class TestTheRun:
    def test_it_counts_executions_by_state_and_workflow_and_lists_what_is_open(self, diamond):
        finish(diamond, "a")
        report = describe_run(GraphRun.objects.get())
        assert report.executions == {"completed": {"testapp.ping": 2}, "in_progress": {"testapp.ping": 3}}
        assert {(work.external_id, work.standing) for work in report.open_work} == {
            ("b", "running"),
            ("c", "running"),
            ("d", "running"),
        }
        assert [join.external_id for join in report.joins] == ["join"]
        assert report.state == "open"

    def test_it_lists_what_waits_for_a_newer_run_too(self, diamond):
        """Under the name of that one; an execution that stands for both is listed in both."""
        start_all(diamond)
        for _ in range(2):
            diamond.advance(hours=1)
            finish(diamond, "head")
        first, second, third = GraphRun.objects.order_by("id")
        assert {work.standing for work in describe_run(first).open_work} == {"running"}
        assert {(work.external_id, work.standing) for work in describe_run(second).open_work} == {
            (name, "due") for name in "abcd"
        }
        finish(diamond, "a")
        diamond.manage()
        assert ("a", "queued") in {(work.external_id, work.standing) for work in describe_run(second).open_work}
        start_all(diamond)
        for run in (second, third):
            assert ("a", "running") in {(work.external_id, work.standing) for work in describe_run(run).open_work}

    def test_the_command_lists_runs_and_shows_one(self, diamond, capsys):
        run = GraphRun.objects.get()
        call_command("chainsched", "runs")
        assert f"{run.id}  open" in capsys.readouterr().out
        call_command("chainsched", "runs", str(run.id))
        shown = capsys.readouterr().out
        assert f"Run {run.id} of head" in shown
        assert "join join: 0 of 4 arrived" in shown
        call_command("chainsched", "runs", "--json", "--open", "--head", "head", "--limit", "1")
        assert [row["id"] for row in json.loads(capsys.readouterr().out)] == [run.id]
        call_command("chainsched", "runs", str(run.id), "--json")
        assert json.loads(capsys.readouterr().out)["state"] == "open"

    def test_an_unknown_run_and_an_unknown_head_are_refused(self, diamond):
        with pytest.raises(CommandError, match="no run"):
            call_command("chainsched", "runs", "99999")
        with pytest.raises(CommandError, match="nothing-like-it"):
            call_command("chainsched", "runs", "--head", "nothing-like-it")
