"""Runs of a graph step by step: everything that may start is under way, and the test says what ends next."""

from typing import Any

from chainsched import Every, GiveUp
from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished, Outcome
from chainsched.domain.states import ExecutionState
from chainsched.flow.maintain.fsck import run_fsck
from chainsched.flow.run.claim import claim
from chainsched.flow.run.record import record
from chainsched.models import DueNote, GraphRun, JoinNote, JoinState, Manifest, Metadata
from chainsched.registry import registry
from chainsched.testing import Workbench
from tests.drive import executions_of, manifest
from tests.testapp.workflows import ping

# Edges inside one group cannot close a circle of groups.
GROUP = {"group": "g"}

DONE = outcomes.completed(None)
FAILED = outcomes.raised(RuntimeError("row 17 is broken"))
GIVEN_UP = outcomes.raised(GiveUp("the source is gone"))
CANCELLED = Outcome(ExecutionState.CANCELLED)


def make_diamond(**options: Any) -> None:
    """A head every hour, three members, and a join that names them, with these options."""
    Manifest.objects.schedule(ping, "head", None, Every.hours(1), **GROUP)
    for name in "abc":
        Manifest.objects.schedule_dependent(ping, name, None, depends_on="head", **GROUP)
    declare_join(**options)


def declare_join(**options: Any) -> None:
    """The join of a diamond with other options, or other parents."""
    Manifest.objects.schedule_dependent(ping, "join", None, **{"depends_on": ["a", "b", "c"], **GROUP, **options})


def next_run(bench: Workbench) -> None:
    """Let the head of a diamond end once more."""
    bench.advance(hours=1)
    end(bench, "head")


def start(bench: Workbench) -> None:
    """Let all that may start be under way."""
    bench.manage()
    bench.dispatch()
    claim(process=bench.process, workflows=registry.names(), limit=1000, now=bench.now)


def end(bench: Workbench, *names: str, outcome: Outcome = DONE) -> None:
    """End the running executions of these manifests, in one batch."""
    start(bench)
    running = dict(Metadata.objects.in_progress().values_list("manifest_external_id", "id"))
    finished = [Finished(running[name], outcome) for name in names]
    assert len(record(finished, by=bench.process, now=bench.now).ended) == len(names)


def end_all(bench: Workbench) -> list[str]:
    """End what is under way and all that follows from it, one at a time; returns the names in their order."""
    ended: list[str] = []
    start(bench)
    while execution := Metadata.objects.in_progress().order_by("id").first():
        assert record([Finished(execution.id, DONE)], by=bench.process, now=bench.now).ended
        ended.append(execution.manifest_external_id)
        start(bench)
    return ended


def is_running(name: str) -> bool:
    return Metadata.objects.in_progress().filter(manifest_external_id=name).exists()


def starts_of(bench: Workbench, name: str) -> int:
    """How often a manifest has started, once all that may start is under way."""
    start(bench)
    return len(executions_of(name))


def runs() -> list[GraphRun]:
    return list(GraphRun.objects.order_by("id"))


def state_of(join: str, run: GraphRun) -> JoinState:
    """How the join stands in the run."""
    return JoinState.objects.get(join_id=manifest(join).id, run=run)


def coverage(join: str) -> dict[int, list[int]]:
    """The executions of a join that stood for each run."""
    return {
        run.id: list(run.executions().filter(manifest_external_id=join).values_list("id", flat=True)) for run in runs()
    }


def check_all_closed(bench: Workbench) -> None:
    """Nothing is under way: all runs are closed, nothing is counted as open, and the rows agree."""
    bench.manage()
    notes = [str(note) for model in (DueNote, JoinNote) for note in model.objects.all()]
    not_closed = [str(run) for run in runs() if run.closed_at is None]
    counted = [f"{state}: {state.open} open" for state in JoinState.objects.exclude(open=0)]
    findings = [f"{found.check}: {found.subject}: {found.evidence}" for found in run_fsck(now=bench.now)]
    problems = [*notes, *not_closed, *counted, *findings]
    assert not problems, problems
