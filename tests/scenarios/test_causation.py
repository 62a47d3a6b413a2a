"""What caused what: ids on runs, on what they trigger, and on what comes of messages; and the words for it."""

import pytest
from django.contrib.auth.models import User

from chainsched import Every, correlation
from chainsched.domain.states import ExecutionState, Source
from chainsched.exceptions import UnknownExecution
from chainsched.flow.inspect.causes import find_causes
from chainsched.models import DeadLetter, Metadata
from tests.drive import executions_of, manifest
from tests.factories import make_execution
from tests.testapp import workflows

pytestmark = pytest.mark.django_db

GROUP = {"group": "g"}


@pytest.fixture
def publishing(bench):
    bench.schedules.schedule(workflows.publish, "publisher", None, Every.hours(1), **GROUP)
    bench.schedules.schedule(workflows.ping, "triggered", None, None, **GROUP)
    bench.seed()
    return bench


@pytest.fixture
def quiet(bench):
    """A manifest that only runs when triggered."""
    bench.schedules.schedule(workflows.ping, "triggered", None, None, **GROUP)
    bench.seed()
    return bench


def test_a_run_is_the_cause_of_what_it_publishes_and_triggers(publishing):
    publishing.drain()
    run = executions_of("publisher")[0]
    own = str(run.external_id)
    assert run.output == {
        "chainsched-corr-id": own,
        "chainsched-corr-seq": "1",
        "chainsched-causation-id": own,
        "chainsched-root-corr-id": own,
    }
    caused = executions_of("triggered")[0]
    assert (caused.causation_id, caused.root_correlation_id) == (own, own)
    assert (caused.parent_execution_id, caused.root_execution_id) == (None, None)


def test_run_message_child_run_carry_one_root(publishing):
    publishing.drain()
    run = executions_of("publisher")[0]
    root = str(run.external_id)
    with correlation.receive(run.output, message_id="m1"):
        manifest("triggered").trigger()
    publishing.drain()
    by_message = executions_of("triggered")[1]
    assert (by_message.causation_id, by_message.root_correlation_id) == ("m1", root)
    assert by_message.external_id != run.external_id


@pytest.mark.parametrize("way", ["delayed", "while running"])
def test_a_trigger_that_waits_remembers_what_caused_it(quiet, way):
    target = manifest("triggered")
    with correlation.receive({"chainsched-root-corr-id": "root"}, message_id="m7"):
        if way == "delayed":
            target.trigger(60)
        else:
            target.trigger()
            quiet.manage()
            quiet.dispatch()
            target.trigger()
    quiet.run_for(minutes=2)
    newest = executions_of("triggered")[-1]
    assert (newest.causation_id, newest.root_correlation_id) == ("m7", "root")
    state = manifest("triggered").state
    assert (state.trigger_causation_id, state.trigger_root_correlation_id) == ("", "")


def test_a_trigger_outside_of_any_scope_is_its_own_root(quiet):
    manifest("triggered").trigger()
    quiet.drain()
    run = executions_of("triggered")[0]
    assert (run.causation_id, run.root_correlation_id) == ("", str(run.external_id))


def test_a_dependent_is_caused_by_its_parents_execution_and_a_retry_keeps_that(bench):
    bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), **GROUP).include(
        workflows.fail, "child", **GROUP
    )
    bench.seed()
    bench.run_for(minutes=20)
    root = executions_of("root")[0]
    attempts = executions_of("child")
    assert len({row.external_id for row in attempts}) == len(attempts) == 3
    assert {(row.causation_id, row.root_correlation_id) for row in attempts} == {(str(root.external_id),) * 2}


def test_the_scope_ends_with_the_run_also_when_it_fails(bench):
    bench.schedules.schedule(workflows.fail, "failing", None, Every.hours(1), **GROUP)
    bench.seed()
    bench.drain()
    assert correlation.current() is None


def test_async_runs_have_their_scope(bench):
    bench.schedules.schedule(workflows.tell_scope, "async", None, Every.hours(1), **GROUP)
    bench.seed()
    bench.drain()
    run = executions_of("async")[0]
    assert run.output == str(run.external_id)


def test_log_records_of_a_run_can_be_stamped(publishing, caplog):
    caplog.handler.addFilter(stamp := correlation.CorrelationFilter())
    try:
        publishing.drain()
    finally:
        caplog.handler.removeFilter(stamp)
    (record,) = [record for record in caplog.records if record.name == workflows.__name__]
    assert record.correlation_id == str(executions_of("publisher")[0].external_id)


class TestExplainingAnExecution:
    def reasons(self, execution: Metadata) -> list[tuple[str, str]]:
        return [(cause.name, cause.reason) for cause in execution.explain().chain]

    def test_a_chain_is_followed_up_to_the_schedule(self, bench):
        root = bench.schedules.schedule(workflows.ping, "a", None, Every.hours(1), **GROUP)
        root.then_include(workflows.ping, "b", **GROUP).then_include(workflows.ping, "c", **GROUP)
        bench.seed()
        bench.drain()
        a, b, c = (executions_of(name)[0] for name in "abc")
        assert self.reasons(c) == [
            (f"c #{c.id}", f"b #{b.id} completed"),
            (f"b #{b.id}", f"a #{a.id} completed"),
            (f"a #{a.id}", f"its schedule called for it at {a.scheduled_for.isoformat()}"),
        ]
        ancestry = c.explain()
        assert ancestry.root.execution_id == a.id
        assert ancestry.root_correlation_id == str(a.external_id)
        assert ancestry.as_dict()["chain"][0]["state"] == "completed"
        assert f"c #{c.id} (completed) ran because b #{b.id} completed." in ancestry.in_words

    def test_a_dependent_on_failure_names_the_dead_letter(self, bench):
        bench.schedules.schedule(workflows.give_up, "parent", None, Every.hours(1), **GROUP).include(
            workflows.ping, "rescue", run_condition=2, **GROUP
        )
        bench.seed()
        bench.drain()
        assert "went to the dead letter" in self.reasons(executions_of("rescue")[0])[0][1]

    def test_a_retry_names_the_attempt_before(self, bench):
        bench.schedules.schedule(workflows.fail, "failing", None, Every.hours(1), **GROUP)
        bench.seed()
        bench.run_for(minutes=6)
        assert self.reasons(executions_of("failing")[1])[0][1] == "attempt 1 had failed"

    def test_a_retried_letter_names_who_retried_it(self, bench):
        bench.schedules.schedule(workflows.give_up, "failing", None, Every.hours(1), **GROUP)
        bench.seed()
        bench.drain()
        letter = DeadLetter.objects.get()
        letter.retry(by=User.objects.create(username="ada"))
        bench.drain()
        assert self.reasons(executions_of("failing")[1])[0][1] == f"dead letter {letter.id} was retried by ada"

    def test_what_a_run_triggered_leads_to_that_run(self, publishing):
        publishing.drain()
        publisher, triggered = executions_of("publisher")[0], executions_of("triggered")[0]
        assert self.reasons(triggered)[0][1] == f"it was triggered by publisher #{publisher.id}"
        assert triggered.explain().root.execution_id == publisher.id

    def test_what_a_message_triggered_names_the_message(self, quiet):
        with correlation.receive({}, message_id="m7"):
            manifest("triggered").trigger()
        quiet.drain()
        assert self.reasons(executions_of("triggered")[0])[0][1] == "it was triggered while message m7 was handled"

    def test_what_a_person_triggered_or_activated_says_so(self, bench):
        chain = bench.schedules.schedule(workflows.ping, "parent", None, None, **GROUP)
        chain.include(workflows.copy, "child", workflows.Slice("t"), dormant=True, **GROUP)
        bench.seed()
        manifest("parent").trigger()
        manifest("child").activate()
        bench.drain()
        assert self.reasons(executions_of("parent")[0])[0][1] == "it was triggered by hand"
        assert self.reasons(executions_of("child")[0])[0][1] == "it was activated by hand"

    def test_an_activation_names_the_run_behind_it(self, bench):
        bench.schedules.schedule(workflows.activate_copy, "parent", None, Every.hours(1), **GROUP).include(
            workflows.copy, "child", workflows.Slice("t"), dormant=True, **GROUP
        )
        bench.seed()
        bench.drain()
        parent = executions_of("parent")[0]
        assert self.reasons(executions_of("child")[0])[0][1] == f"it was activated by parent #{parent.id}"

    @pytest.mark.parametrize("source", Source)
    def test_every_source_has_its_words_with_and_without_a_cause(self, source):
        cause = make_execution(state=ExecutionState.COMPLETED)
        for parent in (cause, None):
            execution = make_execution(source=source, state=ExecutionState.COMPLETED, parent_execution=parent)
            assert find_causes(execution.id).chain[0].reason

    def test_a_parent_that_retention_removed_ends_the_chain(self):
        execution = make_execution(source=Source.DEPENDENCY, parent_execution_id=10**9, root_execution_id=10**9)
        assert self.reasons(execution)[0][1] == "its parent's outcome called for it"

    def test_causes_in_a_circle_made_by_hand_end(self):
        first = make_execution(None)
        second = make_execution(None, parent_execution=first)
        Metadata.objects.filter(id=first.id).update(parent_execution=second)
        assert len(find_causes(first.id).chain) == 2

    def test_a_cancelled_run_is_told(self, bench):
        chain = bench.schedules.schedule(workflows.ping, "a", None, Every.hours(1), **GROUP)
        chain.then_include(workflows.ping, "b", **GROUP)
        bench.seed()
        bench.drain()
        executions_of("a")[0].cancel(tree=True)
        for name in "ab":
            assert "nothing more follows from it" in executions_of(name)[0].explain().in_words

    def test_an_execution_that_was_cancelled_with_what_it_would_lead_to_is_told(self, bench):
        chain = bench.schedules.schedule(workflows.ping, "a", None, Every.hours(1), **GROUP)
        chain.then_include(workflows.ping, "b", **GROUP).then_include(workflows.ping, "c", **GROUP)
        bench.seed()
        while bench.queued() != ["b"]:
            bench.manage()
            bench.dispatch() if bench.queued() == ["a"] else bench.work()
        bench.dispatch()
        executions_of("b")[0].cancel(tree=True)
        assert "nothing more follows from it" in executions_of("b")[0].explain().in_words
        assert "nothing more follows from it" not in executions_of("a")[0].explain().in_words

    def test_a_join_ran_because_of_the_newest_that_arrived_below_the_head(self, bench):
        root = bench.schedules.schedule(workflows.ping, "root", None, Every.hours(1), **GROUP)
        for name in "ab":
            root.include(workflows.ping, name, **GROUP)
        root.include(workflows.ping, "join", depends_on=["a", "b"], **GROUP)
        bench.seed()
        bench.drain()
        head, join = executions_of("root")[0], executions_of("join")[0]
        newest = max(executions_of("a")[0].id, executions_of("b")[0].id)
        assert (join.parent_execution_id, join.root_execution_id) == (newest, head.id)
        assert join.root_correlation_id == str(head.external_id)
        assert [cause.name for cause in join.explain().chain][::2] == [f"join #{join.id}", f"root #{head.id}"]

    def test_an_unknown_execution_is_a_clear_error(self):
        with pytest.raises(UnknownExecution, match="no execution 17"):
            find_causes(17)
