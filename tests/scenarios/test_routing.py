"""Jobs wait in queues, and workers name those that they take jobs from."""

import pytest

from chainsched import Every, ManifestItem, workflow
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished
from chainsched.exceptions import DeclarationError, InvalidInput, InvalidWorkflow
from chainsched.flow.inspect.health import check_health
from chainsched.flow.maintain.recall import give_back
from chainsched.flow.operate.take import take
from chainsched.flow.run.record import record
from chainsched.flow.schedule.declare import Schedules
from chainsched.flow.schedule.plan import plan
from chainsched.flow.schedule.queues import unused_among
from chainsched.flow.schedule.seed import seed
from chainsched.models import Manifest, ManifestGroup, Metadata, Process, WorkQueue
from chainsched.registry import registry
from chainsched.runtime.loops.dispatcher import Dispatcher
from chainsched.servers import get_server
from tests.drive import executions_of, manifest
from tests.factories import NOW, make_process
from tests.testapp import workflows

pytestmark = pytest.mark.django_db

HOURLY = Every.hours(1)


@pytest.fixture
def stated_queue(monkeypatch):
    """The workflow ``testapp.ping`` states the queue ``of-workflow``."""
    monkeypatch.setattr(registry.get("testapp.ping"), "queue", "of-workflow")


def worker(*queues, slots=2) -> Process:
    return make_process(workflows=registry.names(), queues=list(queues) or None, slots=slots, heartbeat_at=NOW)


def schedule(bench, name="job", **options) -> WorkQueue:
    Manifest.objects.schedule(workflows.ping, name, None, HOURLY, **options)
    bench.manage()
    return row_of(name)


def row_of(name="job") -> WorkQueue:
    return WorkQueue.objects.queued().get(manifest_external_id=name)


def take_by(process) -> list[str]:
    ids = [item.execution_id for item in take(process=process, limit=50).claims]
    return list(Metadata.objects.filter(id__in=ids).order_by("id").values_list("manifest_external_id", flat=True))


class TestTheQueueOfAJob:
    def test_is_default(self, bench):
        assert schedule(bench).queue == "default"

    def test_is_the_groups(self, bench):
        assert schedule(bench, group="g", group_queue="of-group").queue == "of-group"

    def test_is_the_workflows_before_the_groups(self, bench, stated_queue):
        assert schedule(bench, group="g", group_queue="of-group").queue == "of-workflow"

    def test_is_its_own_before_all_others(self, bench, stated_queue):
        assert schedule(bench, group="g", group_queue="of-group", queue="own").queue == "own"

    def test_stays_with_its_execution_its_retry_and_when_it_is_given_back(self, bench):
        schedule(bench, queue="heavy", max_retries=3)
        process = worker("heavy")
        take_by(process)
        (execution,) = executions_of("job")
        assert execution.queue == "heavy"
        give_back([execution.id], process=process, now=bench.now)
        assert row_of().queue == "heavy"
        take_by(process)
        (execution,) = executions_of("job")
        record([Finished(execution.id, outcomes.raised(RuntimeError("broken")))], by=process, now=bench.now)
        assert row_of().queue == "heavy"

    def test_of_a_row_that_waits_changes_with_its_manifest_and_its_group(self, bench):
        schedule(bench, group="g")
        assert schedule(bench, group="g", queue="heavy").queue == "heavy"
        schedule(bench, group="g", queue=None)
        assert row_of().queue == "default"
        ManifestGroup.objects.get(name="g").set_limits(max_active_jobs=None, priority=0, queue="light")
        assert row_of().queue == "light"
        ManifestGroup.objects.get(name="g").set_limits(max_active_jobs=3, priority=0)
        assert row_of().queue == "light", "it is left as it is"
        ManifestGroup.objects.get(name="g").set_limits(max_active_jobs=3, priority=0, queue="")
        assert row_of().queue == "default"

    def test_of_a_row_that_waits_follows_its_workflow(self, bench, monkeypatch):
        monkeypatch.setattr(registry.get("testapp.fail"), "queue", "of-fail")
        schedule(bench)
        Manifest.objects.schedule(workflows.fail, "job", None, HOURLY)
        assert (row_of().workflow, row_of().queue) == ("testapp.fail", "of-fail")

    def test_is_stated_for_each_member_of_a_batch(self, bench):
        items = [ManifestItem("a"), ManifestItem("b", queue="own")]
        Manifest.objects.schedule_many(workflows.ping, "bulk", items, HOURLY, queue="heavy")
        bench.manage()
        assert (row_of("bulk-a").queue, row_of("bulk-b").queue) == ("heavy", "own")


class TestWorkers:
    def test_take_jobs_from_their_queues_only(self, bench):
        schedule(bench, "light")
        schedule(bench, "heavy", queue="heavy")
        schedule(bench, "huge", queue="huge")
        assert take_by(worker("heavy", "huge")) == ["heavy", "huge"]
        assert take_by(worker()) == ["light"]

    def test_that_name_no_queue_take_all(self, bench):
        schedule(bench, "light")
        schedule(bench, "heavy", queue="heavy")
        assert take_by(worker()) == ["light", "heavy"]

    def test_that_are_busy_hold_up_no_other_queue(self, bench, settings):
        """A place under a shared limit goes to the row that comes first, whichever queue it waits in."""
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 2}
        light, heavy = worker("default", slots=2), worker("heavy", slots=2)
        for number in range(6):
            schedule(bench, f"light-{number}")
        schedule(bench, "urgent", queue="heavy", priority=31)
        took = [(name, take_by(process)) for name, process in (("light", light), ("heavy", heavy))]
        assert took == [("light", ["light-0"]), ("heavy", ["urgent"])]

    def test_that_are_idle_get_the_parked_row_of_a_full_group_that_they_take(self, bench):
        """However many rows of the group come before it, for a worker that is busy."""
        busy, idle = worker("busy", slots=1), worker("idle", slots=1)
        for name, queue in (("first", "busy"), ("second", "idle")):
            schedule(bench, name, group="g", queue=queue, group_max_active_jobs=2)
        assert (take_by(busy), take_by(idle)) == (["first"], ["second"])
        for number in range(30):
            schedule(bench, f"more-{number}", group="g", queue="busy")
        schedule(bench, "wanted", group="g", queue="idle")
        Dispatcher().turn(bench.now)
        assert row_of("wanted").parked_for == "group_full"
        (ended,) = executions_of("second")
        record([Finished(ended.id, outcomes.completed(None))], by=idle, now=bench.now)
        assert take_by(idle) == ["wanted"]

    def test_places_are_left_to_no_more_rows_than_their_group_may_start(self, bench, settings):
        settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 10}
        own, _ = worker("own", slots=10), worker("other", slots=10)
        for number in range(10):
            schedule(bench, f"other-{number}", group="g", queue="other", group_max_active_jobs=1, priority=9)
            schedule(bench, f"own-{number}", queue="own")
        assert len(take_by(own)) == 9

    def test_rows_in_a_queue_of_others_are_parked_and_let_in_for_a_new_worker(self, bench):
        worker("default")
        schedule(bench, queue="heavy")
        Dispatcher().turn(bench.now)
        assert row_of().parked_for == "no_worker"
        assert take_by(worker("heavy")) == ["job"]


class TestExplanations:
    def test_a_job_in_a_queue_that_no_worker_takes_says_so(self, bench):
        worker("default", "light")
        row = schedule(bench, queue="heavy")
        for found in (manifest("job").explain(), row.explain()):
            assert found.code == "no_worker_for_queue"
            assert found.reason == (
                "no worker takes queue 'heavy'; start one with --queues heavy (those that run take default, light)"
            )
        worker("heavy")
        assert manifest("job").explain().code == "queued"

    def test_a_workflow_that_no_worker_knows_comes_first(self, bench):
        make_process(workflows=["testapp.fail"], heartbeat_at=bench.now)
        schedule(bench, queue="heavy")
        assert manifest("job").explain().code == "no_capable_worker"

    def test_health_names_the_queue_while_jobs_wait_in_it(self, bench):
        worker("default")
        schedule(bench, queue="heavy")
        assert notes(bench) == []
        Dispatcher().turn(bench.now)
        (note,) = notes(bench)
        assert note.startswith("Jobs of workflow 'testapp.ping' wait: no worker takes queue 'heavy'; start one")
        worker("heavy")
        assert notes(bench) == []

    def test_health_names_the_workflow_that_no_worker_knows(self, bench):
        make_process(workflows=["testapp.fail"], heartbeat_at=bench.now)
        schedule(bench)
        Dispatcher().turn(bench.now)
        (note,) = notes(bench)
        assert note == (
            "Jobs of workflow 'testapp.ping' wait: no live process can run it; start a worker that knows it."
        )


def notes(bench) -> list[str]:
    found = check_health(pools=get_server().pools(now=bench.now), now=bench.now).notes
    return [note for note in found if note.startswith("Jobs")]


class TestWarnings:
    """A queue that no worker takes is no mistake: the worker may start later. It is named where it is declared."""

    def declared(self, **options) -> Schedules:
        schedules = Schedules()
        schedules.schedule(workflows.ping, "job", None, HOURLY, **options)
        return schedules

    def test_a_declaration_of_a_queue_that_no_worker_takes_warns_with_those_that_are_taken(self, bench, caplog):
        worker("default", "light")
        schedules = self.declared(queue="heavy")
        warning = (
            "No worker that runs now takes queue 'heavy' of job; they take default, light. "
            "Start one with --queues heavy."
        )
        assert plan(schedules).warnings == [warning]
        seed(schedules, now=bench.now)
        assert warning in caplog.messages
        assert plan(schedules).warnings == [], "once, when it is written"

    def test_so_does_the_queue_of_a_group_and_of_a_workflow(self, bench, stated_queue):
        worker("default")
        found = plan(self.declared(group="g", group_queue="of-group")).warnings
        assert [warning.split(";")[0] for warning in found] == [
            "No worker that runs now takes queue 'of-group' of group g",
            "No worker that runs now takes queue 'of-workflow' of job",
        ]

    def test_a_change_of_a_queue_warns_too(self, bench):
        worker("default")
        seed(self.declared(), now=bench.now)
        (warning,) = plan(self.declared(queue="heavy")).warnings
        assert "takes queue 'heavy' of job" in warning

    @pytest.mark.parametrize("queues", [[], ["heavy"]], ids=["a worker takes all", "a worker takes it"])
    def test_a_queue_that_is_taken_is_nothing_to_warn_of(self, bench, queues):
        worker(*queues)
        assert plan(self.declared(queue="heavy")).warnings == []

    def test_without_any_worker_nothing_is_known(self, bench):
        assert plan(self.declared(queue="heavy")).warnings == []

    def test_names_that_nothing_uses_are_found(self, bench, stated_queue):
        schedule(bench, queue="heavy", group="g", group_queue="of-group")
        unused, used = unused_among(["heavy", "heayv", "of-group", "of-workflow", "default"])
        assert unused == ["heayv"]
        assert used == ["default", "heavy", "of-group", "of-workflow"]


class TestWrongNames:
    def test_in_a_declaration(self):
        with pytest.raises(DeclarationError, match=r"'job'.*queue.*must be a text of the letters"):
            Schedules().schedule(workflows.ping, "job", None, HOURLY, queue="two words")

    def test_of_a_group(self):
        with pytest.raises(DeclarationError, match=r"'job'.*group_queue.*must be a text of the letters"):
            Schedules().schedule(workflows.ping, "job", None, HOURLY, group_queue="a,b")

    def test_in_set_limits(self, bench):
        schedule(bench, group="g")
        with pytest.raises(InvalidInput, match=r"The name of a queue must be a text of.*'a b' is none"):
            ManifestGroup.objects.get(name="g").set_limits(max_active_jobs=None, priority=0, queue="a b")

    def test_of_a_workflow(self):
        with pytest.raises(InvalidWorkflow, match=r"queue must be a text of .* \(it is 'a b'\)"):

            @workflow(queue="a b")
            def broken() -> None: ...

    def test_members_of_a_group_that_state_different_queues(self):
        schedules = Schedules()
        schedules.schedule(workflows.ping, "a", None, HOURLY, group="g", group_queue="x")
        schedules.schedule(workflows.ping, "b", None, HOURLY, group="g", group_queue="y")
        with pytest.raises(DeclarationError, match="queue"):
            seed(schedules, now=NOW)
