"""A project's own transaction that is held open after a call: it delays what it holds, and nothing else."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple

import pytest
from django.db import connections, transaction

from chainsched import GiveUp, RunCondition
from chainsched.domain import outcomes
from chainsched.domain.joins import JoinOutcome
from chainsched.domain.states import ExecutionState
from chainsched.models import DeadLetter, GraphRun, Manifest, Metadata, WorkQueue
from tests.concurrency.gathering import Gathering
from tests.concurrency.interleaving import PATIENCE, Actor, Call, actors
from tests.concurrency.rules import check_rules
from tests.drive import executions_of, manifest, new_bench
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("patience"),
]

STRANGERS = 7


@pytest.fixture
def gathering() -> Iterator[Gathering]:
    """Four members, of which m-0 has a dependent; beside them a group that has nothing to do with them."""
    with new_bench() as bench:
        gathering = Gathering(bench, members=4)
        gathering.add("below", on="m-0", run_condition=RunCondition.COMPLETION)
        for at in range(STRANGERS):
            Manifest.objects.schedule(workflows.ping, f"stranger-{at}", None, None, group="strangers")
        yield gathering


@pytest.fixture
def other() -> Iterator[Actor]:
    with actors(1) as (other,):
        yield other


class Holder:
    """A thread of the project: it makes a call inside a transaction of its own, which it holds until it is told."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._called, self._may_commit = threading.Event(), threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(self._hold, call)
        self._future.add_done_callback(lambda _: self._called.set())
        assert self._called.wait(PATIENCE)
        if self._future.done():
            self._future.result()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_error: object) -> None:
        self._may_commit.set()
        self._future.result(PATIENCE)
        self._pool.shutdown()

    def _hold(self, call: Callable[[], Any]) -> None:
        try:
            with transaction.atomic():
                call()
                self._called.set()
                assert self._may_commit.wait(PATIENCE)
        finally:
            connections.close_all()


def let(other: Actor, call: Call) -> Any:
    """Another connection makes a call, which must not wait for any lock."""
    other.start(call)
    wait_until(lambda: other.is_done or other.is_held(), interval=0.001)
    assert other.is_done, "it waits for the open transaction"
    return other.result()


def record_each(other: Actor, gathering: Gathering, *names: str) -> None:
    """Each of these ends in a transaction of its own, without waiting."""
    for name in names:
        assert len(let(other, gathering.recording(name))) == 1, name


def dispatch_strangers(other: Actor, gathering: Gathering) -> None:
    """The unrelated group is queued, and all of its rows are dispatched."""
    for at in range(STRANGERS):
        let(other, manifest(f"stranger-{at}").trigger)
    let(other, gathering.bench.manage)
    let(other, gathering.bench.dispatch)
    started = Metadata.objects.filter(manifest_external_id__startswith="stranger-")
    assert started.count() == STRANGERS
    assert not WorkQueue.objects.queued().filter(group__name="strangers").exists()


def come_to_rest(gathering: Gathering) -> None:
    """All that runs ends well, and the loops do what is left."""
    gathering.claim()
    gathering.recording_of(list(Metadata.objects.in_progress().values_list("id", flat=True)))()
    gathering.bench.drain()
    check_rules(gathering.bench)
    assert not GraphRun.objects.open().exists()


def test_a_trigger_of_the_continuation_delays_nothing(gathering, other):
    gathering.members_run()
    with Holder(gathering.join.trigger):
        record_each(other, gathering, "m-0", "m-1", "m-2", "m-3")
        dispatch_strangers(other, gathering)
        gathering.claim()
        record_each(other, gathering, "below")
        let(other, gathering.bench.manage)
        assert gathering.state().outcome == JoinOutcome.FIRED, "it is decided, and waits for its manifest"
        assert executions_of("join") == []
    come_to_rest(gathering)
    assert gathering.firings() == 1
    asked_for, for_the_run = (execution.run for execution in executions_of("join"))
    assert asked_for.head_external_id == "join", "as it was asked for, a run of its own"
    assert for_the_run == gathering.run


@pytest.mark.parametrize("stands", [Gathering.members_wait, Gathering.members_are_dispatched, Gathering.members_run])
def test_a_cancel_of_a_member_delays_no_other(gathering, other, stands):
    """Its dependent runs for an earlier run: that end is not delayed either."""
    manifest("below").trigger()
    gathering.start()
    stands(gathering)
    with Holder(gathering.member(0).cancel):
        let(other, gathering.bench.dispatch)
        gathering.claim()
        record_each(other, gathering, "m-1", "m-2", "m-3", "below")
        dispatch_strangers(other, gathering)
        assert gathering.state().outcome == JoinOutcome.WAITING
    come_to_rest(gathering)
    assert (gathering.state().outcome, gathering.firings(), len(executions_of("join"))) == (JoinOutcome.FIRED, 1, 1)


def test_a_cancel_of_a_run_delays_the_work_of_no_other_run(gathering, other):
    """The head runs again meanwhile, and another graph goes all its way."""
    elsewhere = Gathering(gathering.bench, members=3, name="other-")
    elsewhere.members_run()
    gathering.members_run()
    cancelled = gathering.run
    gathering.head_runs()
    with Holder(cancelled.cancel):
        record_each(other, gathering, "head")
        record_each(other, elsewhere, "m-0", "m-1", "m-2")
        dispatch_strangers(other, gathering)
        let(other, gathering.bench.manage)
        let(other, gathering.bench.dispatch)
        assert [row.state for row in executions_of("other-join")] == [ExecutionState.PENDING]
    come_to_rest(gathering)
    assert gathering.state(cancelled).outcome == JoinOutcome.CANCELLED
    assert gathering.state().outcome == JoinOutcome.FIRED
    assert [execution.run_id for execution in executions_of("join")] == [gathering.run.id]


def test_disabling_a_member_delays_no_other(gathering, other):
    """Not even its dependent, which runs for an earlier run."""
    manifest("below").trigger()
    gathering.members_run()
    with Holder(gathering.member(0).disable):
        record_each(other, gathering, "m-1", "m-2", "m-3", "below")
        dispatch_strangers(other, gathering)
    come_to_rest(gathering)
    assert (gathering.state().outcome, gathering.firings(), len(executions_of("join"))) == (JoinOutcome.FIRED, 1, 1)


def test_a_row_of_a_cancelled_run_whose_manifest_is_held_delays_no_dispatch(gathering, other, settings):
    """Queued by a transaction that did not see the mark: the dispatcher cancels it as soon as it is free."""
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": STRANGERS + 1}
    gathering.members_wait()
    GraphRun.objects.update(cancelled_at=gathering.bench.now)
    with Holder(gathering.member(0).enable):
        dispatch_strangers(other, gathering)
        assert gathering.bench.queued() == ["m-0"]
    gathering.bench.dispatch()
    assert gathering.bench.queued() == []
    come_to_rest(gathering)


@pytest.mark.parametrize("is_enabled", [True, False])
def test_enabling_or_disabling_a_parent_delays_none_of_its_members(gathering, other, is_enabled):
    gathering.members_run()
    if is_enabled:
        gathering.head.disable()
    with Holder(gathering.head.enable if is_enabled else gathering.head.disable):
        record_each(other, gathering, "m-0", "m-1", "m-2", "m-3")
        dispatch_strangers(other, gathering)
    come_to_rest(gathering)
    assert (gathering.state().outcome, gathering.firings(), len(executions_of("join"))) == (JoinOutcome.FIRED, 1, 1)


def schedule(name: str, on: str | list[str]) -> Call:
    return lambda: Manifest.objects.schedule_dependent(workflows.ping, name, None, depends_on=on, group="group")


def add_child(parent: str) -> Call:
    return lambda: Manifest.objects.schedule_child(workflows.ping, "once", None, parent=parent, group="group")


CHANGES: dict[str, Call] = {
    "a member is deleted": lambda: manifest("m-0").delete(),
    "the head is deleted": lambda: manifest("head").delete(),
    "the join is deleted": lambda: manifest("join").delete(),
    "a member comes": schedule("m-4", "head"),
    "a member moves": schedule("m-0", "below"),
    "a join comes": schedule("second", ["m-1", "m-2"]),
    "the join names its parents": schedule("join", ["m-1", "m-2"]),
    "a one-time child comes": add_child("head"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_change_of_the_graph_delays_no_member_that_it_does_not_name(gathering, other, change):
    gathering.members_run()
    if change is CHANGES["a member moves"]:
        schedule("below", "head")()
    with Holder(change):
        record_each(other, gathering, "m-1", "m-2", "m-3")
        dispatch_strangers(other, gathering)
    gathering.start()
    come_to_rest(gathering)


def test_disabling_their_group_delays_no_other_group(gathering, other):
    gathering.members_run()
    with Holder(gathering.head.group.disable):
        dispatch_strangers(other, gathering)
    gathering.head.group.enable()
    come_to_rest(gathering)


@pytest.mark.parametrize("decide", ["retry", "run_from_here"])
def test_a_member_that_is_run_again_delays_no_other(gathering, other, decide):
    gathering.members_run()
    gathering.end("m-0", result=outcomes.raised(GiveUp("the source is gone")))
    letter = DeadLetter.objects.get()
    if decide == "run_from_here":
        letter.acknowledge()
    with Holder(letter.retry if decide == "retry" else executions_of("m-0")[0].run_from_here):
        record_each(other, gathering, "m-1", "m-2", "m-3")
        dispatch_strangers(other, gathering)
    gathering.start()
    come_to_rest(gathering)
    assert len(executions_of("m-0")) == 2


class Held(NamedTuple):
    """A row that another connection holds: its table, and which of them."""

    table: str
    where: str


# What the end of m-0 concerns, and record may not wait for.
ALONE = [
    Held("manifeststate", "manifest_id = (SELECT id FROM chainsched_manifest WHERE external_id = 'below')"),
    Held("workqueue", "manifest_external_id = 'below'"),
    Held("joinstate", "true"),
    Held("graphrun", "true"),
]
ROWS = [
    *ALONE,
    Held("manifest", "true"),
    Held("metadata", "manifest_external_id <> 'm-0'"),
    Held("joinnote", "true"),
    Held("duenote", "true"),
    Held("dependency", "true"),
    Held("near", "true"),
    Held("namedlock", "true"),
    Held("manifestgroup", "true"),
]


def hold(*rows: Held) -> Callable[[], None]:
    """Lock these rows, as a transaction that writes them does."""

    def lock() -> None:
        with connections["default"].cursor() as cursor:
            for row in rows:
                cursor.execute(f"SELECT FROM chainsched_{row.table} WHERE {row.where} FOR NO KEY UPDATE")

    return lock


@pytest.mark.parametrize("rows", [*([row] for row in ALONE), ROWS], ids=[*(row.table for row in ALONE), "all"])
def test_record_waits_for_no_row_but_the_states_of_what_ended(gathering, other, rows):
    """The dependent waits in the queue for an earlier run, so that there is a row that takes this one over."""
    gathering.members_run()
    gathering.end("m-0")
    gathering.bench.manage()
    waiting = WorkQueue.objects.queued().filter(manifest_external_id="below")
    assert waiting.update(not_before=gathering.bench.now + timedelta(minutes=1)) == 1
    gathering.head_runs()
    gathering.end("head")
    gathering.start()
    with Holder(hold(*rows)):
        assert len(let(other, gathering.recording("m-0"))) == 1
    gathering.bench.advance(minutes=1)
    come_to_rest(gathering)
    assert [state.outcome for state in gathering.runs_of_join()] == [JoinOutcome.FIRED] * 2
    for run in GraphRun.objects.all():
        assert run.executions().filter(manifest_external_id="below").count() == 1, "alone or with the other run"


def test_record_waits_for_no_one_time_child_whose_depth_a_removal_changes(gathering, other):
    """The child ends a moment later; what ends with it in one batch does not wait."""
    Manifest.objects.schedule_child(workflows.ping, "once", None, parent="m-1", group="group")
    gathering.members_run()
    gathering.end("m-1")
    gathering.start()
    with Holder(gathering.member(1).delete):
        assert len(let(other, gathering.recording("once", "m-0", "m-2"))) == 2
    come_to_rest(gathering)
    assert manifest("once").done_at is not None


def test_record_waits_for_the_state_of_what_ended(gathering, other):
    gathering.members_run()
    own = Held("manifeststate", "manifest_id = (SELECT id FROM chainsched_manifest WHERE external_id = 'm-0')")
    with Holder(hold(own)):
        other.start(gathering.recording("m-0"))
        wait_until(lambda: other.is_done or other.is_held(), interval=0.001)
        assert not other.is_done
    assert len(other.result()) == 1
