"""The checker of a chaos run, on invented rows and witness lines: violations it must notice, cases it must allow."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from chaos import figures
from chaos.checker import INVARIANTS, judge
from chaos.evidence import Evidence, Execution, Letter, Passage, Queued, Waiting
from chaos.fleet import Exit, Freeze
from chaos.receivers import Heard
from chaos.witness import Run
from chaos.workload import Expected

START = datetime(2026, 3, 1, tzinfo=UTC)


def at(seconds):
    return START + timedelta(seconds=seconds)


def execution(id, manifest="job", *, begin=0.0, end=1.0, state="completed", parent=None, due=0.0, **options):
    return Execution(
        id=id,
        manifest=manifest,
        group=options.get("group", "tight"),
        state=state,
        attempt=options.get("attempt", 1),
        source=options.get("source", "schedule"),
        parent=parent,
        pid=options.get("pid", 100),
        scheduled_for=at(due),
        created_at=at(begin),
        ended_at=None if end is None else at(end),
        failure_type=options.get("failure", ""),
        output={"pid": options.get("worker", 7), "woken": options.get("woken", [])} if state == "completed" else None,
        run=options.get("run", 1),
        taken_over=options.get("taken_over", ()),
    )


def waiting(join="joined", *, run=1, open=0, outcome="fired", decided=3.0):
    decided_at = None if decided is None else at(decided)
    return Waiting(run, join, open, outcome, firings=int(outcome == "fired"), decided_at=decided_at)


def passage(id=1, *, head="parent", closed=9.0, cancelled=None):
    closed_at, cancelled_at = (None if moment is None else at(moment) for moment in (closed, cancelled))
    return Passage(id, head, closed_at, cancelled_at)


def run(execution_id, manifest="job", *, begin=0.0, end=1.0, member="worker-1", pid=7):
    return Run(execution_id, manifest, 1, pid, member, began=begin, ended=end, is_whole=end is not None)


def evidence(*expected, **parts):
    """The evidence of a run; completed executions were witnessed, unless the runs are stated."""
    items = expected or (Expected("job", "tight"),)
    completed = [row for row in parts.get("executions", ()) if row.is_completed]
    parts.setdefault("runs", sorted(map(witnessed, completed), key=lambda run: run.began))
    return Evidence(
        expected={item.manifest: item for item in items},
        limits={"tight": 2, "broad": None},
        max_active=3,
        pids={"worker-1": 100, "worker-2": 200},
        **parts,
    )


def witnessed(row):
    """The run of a completed execution, in the process that holds it."""
    begin, end = ((moment - START).total_seconds() for moment in (row.created_at, row.ended_at))
    return run(row.id, row.manifest, begin=begin, end=end, member={100: "worker-1", 200: "worker-2"}[row.pid])


def violated(given):
    return {verdict.invariant for verdict in judge(given) if verdict.violations}


def held(*extra, **parts):
    """A run of one job in which all went well."""
    return evidence(*extra, **{"executions": [execution(1)], "runs": [run(1)], **parts})


def test_a_run_in_which_all_went_well_violates_nothing():
    assert violated(held()) == set()


def test_a_verdict_shows_how_many_violations_there_are_and_some_of_them():
    names = [f"job-{number}" for number in range(7)]
    given = evidence(*(Expected(name, "tight") for name in names))
    (lost,) = (verdict for verdict in judge(given) if verdict.invariant == "nothing is lost")
    assert lost.as_dict()["violations"] == 7
    assert len(lost.as_dict()["evidence"]) == 5


def family(*children, **parts):
    """A parent that succeeded as #1 from 0 to 1, and children of it."""
    return evidence(
        Expected("parent", "broad"),
        *children,
        executions=[execution(1, "parent", group="broad"), *parts.pop("executions", [])],
        **parts,
    )


def joined(*, letters=(), passages=None, **rows):
    """A parent, a child of it that ran from 2 to 3, and a fan-in over both that ran from 4 to 5; rows as stated."""
    child = rows.pop("child", execution(2, "child", begin=2, end=3, parent=1))
    after = rows.pop("after", execution(3, "joined", begin=4, end=5, parent=2))
    return family(
        rows.pop("expected_child", CHILD),
        rows.pop("expected", JOINED),
        executions=[row for row in (child, after) if row is not None],
        passages=[passage()] if passages is None else passages,
        waiting=rows.pop("waiting", [waiting()]),
        letters=letters,
        **rows,
    )


CHILD = Expected("child", "broad", parent="parent", head="parent")
JOINED = Expected("joined", "broad", parent="parent", head="parent", members=["child"])
BOTH = Expected("joined", "broad", head="parent", members=["child", "other"])
WOKEN = Expected("child", "broad", parent="parent", head="parent", is_activated=True, is_exact=False)
NEVER = replace(JOINED, runs=0)
GIVEN_UP = Letter("child", 2, "awaiting_intervention", at(3))
POISON = Expected("job", "tight", is_poison=True)
LETTER = Letter("job", 1, "awaiting_intervention", at(1))

STARTED, ENDED = (Heard(signal, 1, 7) for signal in ("execution_started", "execution_ended"))

NOTICED = [
    pytest.param("nothing is lost", evidence(), id="a job that never ran"),
    pytest.param(
        "nothing is lost", evidence(executions=[execution(1, state="failed")]), id="a job that failed and was dropped"
    ),
    pytest.param("nothing is lost", evidence(POISON), id="poison that left nothing"),
    pytest.param(
        "completed exactly once",
        evidence(executions=[execution(1), execution(2, begin=2, end=3)]),
        id="one occurrence that completed twice",
    ),
    pytest.param(
        "completed exactly once",
        evidence(executions=[execution(1), execution(2, begin=2, end=3, due=2)]),
        id="an occurrence too many",
    ),
    pytest.param("completed exactly once", evidence(POISON, executions=[execution(1)]), id="poison that completed"),
    pytest.param("completions are witnessed", held(runs=[]), id="a completion without a witness"),
    pytest.param(
        "completions are witnessed", held(runs=[run(1, end=None)]), id="a completion of a run that was cut off"
    ),
    pytest.param(
        "completions are witnessed",
        held(executions=[execution(1, pid=200)]),
        id="the result of another process than the one that holds it",
    ),
    pytest.param(
        "completions are witnessed", held(executions=[execution(1, worker=8)]), id="the result of another run"
    ),
    pytest.param(
        "failures have a cause",
        held(executions=[execution(1, state="failed", failure="ValueError"), execution(2, begin=2, end=3)]),
        id="a job that failed by itself and is no poison",
    ),
    pytest.param(
        "runs have their rows",
        held(executions=[execution(2, begin=2, end=3)], runs=[run(1), run(2)]),
        id="a run that began and has no row",
    ),
    pytest.param(
        "overlong runs are ended",
        held(Expected("job", "tight", is_too_long=True), runs=[run(1, end=40.0)]),
        id="a job that stayed as long as it liked",
    ),
    pytest.param(
        "no overlap of a manifest with itself, by rows",
        evidence(executions=[execution(1, end=2, state="failed"), execution(2, begin=1, end=3)]),
        id="an execution dispatched before the last one ended",
    ),
    pytest.param(
        "no overlap of a manifest with itself, by witness",
        held(runs=[run(1, end=2.0), run(1, begin=1.0, end=3.0, member="worker-2", pid=8)]),
        id="one execution that two workers ran at once",
    ),
    pytest.param(
        "no overlap of a manifest with itself, by witness",
        held(runs=[run(1, end=None), run(2, begin=1.0, end=2.0)], seen={7: 1.5}),
        id="a run in a process that was seen alive after the next began",
    ),
    pytest.param(
        "no overlap of a manifest with itself, by witness",
        held(runs=[run(1, end=9.0), run(2, begin=1.0, end=2.0), run(3, begin=5.0, end=6.0)]),
        id="a long run together with short ones",
    ),
    pytest.param(
        "no overlap of a manifest with itself, by witness",
        held(
            runs=[run(1, end=9.0), run(2, begin=5.0, end=6.0, member="worker-2", pid=8)],
            freezes=[Freeze("worker-1", 1.0, 8.0)],
        ),
        id="a frozen run that was recorded all the same",
    ),
    pytest.param(
        "fenced runs recorded nothing",
        family(WOKEN, queue=[Queued(1, "child", "dispatched", "activation", 1, at(2))]),
        id="an activation after its run had ended",
    ),
    pytest.param(
        "limits hold, by rows",
        evidence(
            *(Expected(name, "tight") for name in "abc"),
            executions=[execution(number, name) for number, name in enumerate("abc", 1)],
        ),
        id="a group with one execution too many",
    ),
    pytest.param(
        "limits hold, by witness",
        evidence(
            *(Expected(name, "broad") for name in "abcd"),
            executions=[execution(number, name, group="broad") for number, name in enumerate("abcd", 1)],
        ),
        id="all groups with one execution too many",
    ),
    pytest.param(
        "limits hold, by witness",
        evidence(
            *(Expected(name, "tight") for name in "abc"),
            runs=[run(number, name, pid=number) for number, name in enumerate("abc", 1)],
        ),
        id="a group with one run too many",
    ),
    pytest.param("dependents are not lost", family(CHILD), id="a success that no dependent followed"),
    pytest.param(
        "dependents are not lost",
        family(CHILD, executions=[execution(2, "child", begin=0.5, parent=1)]),
        id="a dependent that was dispatched before its parent ended",
    ),
    pytest.param(
        "dependents are not doubled",
        family(CHILD, executions=[execution(n, "child", begin=n, end=n + 0.5, parent=1, due=n) for n in (2, 3)]),
        id="a dependent that completed twice for one success",
    ),
    pytest.param(
        "dependents are not doubled",
        family(CHILD, executions=[execution(2, "child", begin=2, end=3, parent=99)]),
        id="a dependent without a cause",
    ),
    pytest.param(
        "dependents are not doubled",
        family(
            CHILD,
            executions=[execution(n, "child", begin=n, end=n + 0.5, parent=1, due=n, run=1) for n in (2, 3)],
        ),
        id="a dependent that completed twice in one run",
    ),
    pytest.param(
        "dependents are not doubled",
        joined(after=execution(3, "joined", begin=4, end=5, parent=99)),
        id="a join without a cause",
    ),
    pytest.param(
        "dependents are not lost",
        evidence(
            replace(Expected("parent", "broad"), runs=2),
            replace(CHILD, is_exact=False),
            executions=[
                execution(1, "parent", group="broad"),
                execution(2, "parent", group="broad", begin=2, end=3, due=2, run=2),
                execution(3, "child", group="broad", begin=4, end=5, parent=2, run=2),
            ],
        ),
        id="a run that the dependent's execution does not name",
    ),
    pytest.param(
        "dependents are not lost",
        evidence(Expected("parent", "broad"), CHILD, executions=[execution(1, "parent", run=None)]),
        id="a success in no run",
    ),
    pytest.param(
        "dependents are not lost",
        evidence(
            Expected("parent", "broad", is_poison=True),
            replace(CHILD, follows_any_outcome=True),
            executions=[execution(1, "parent", state="failed")],
            letters=[Letter("parent", 1, "awaiting_intervention", at(1))],
        ),
        id="a failure that no dependent followed that should",
    ),
    pytest.param(
        "dependents begin after their parents",
        family(
            CHILD,
            executions=[execution(2, "child", begin=2, end=3, parent=1)],
            runs=[run(1, "parent", end=2.0), run(2, "child", begin=1.0)],
        ),
        id="a dependent that began while its parent ran",
    ),
    pytest.param(
        "activations are kept",
        evidence(Expected("parent", "broad"), WOKEN, executions=[execution(1, "parent", woken=["child"])]),
        id="a child that was woken and never ran",
    ),
    pytest.param(
        "joins wait for all parts",
        joined(child=execution(2, "child", begin=2, end=4.5, parent=1)),
        id="a join before its member's part",
    ),
    pytest.param(
        "joins wait for all parts",
        joined(child=execution(2, "child", begin=2, end=3, parent=1, run=9)),
        id="a join after a member's part in another run",
    ),
    pytest.param(
        "joins wait for all parts",
        joined(
            child=execution(2, "child", begin=2, end=4.5, parent=1, state="failed"),
            letters=[replace(GIVEN_UP, dead_lettered_at=at(4.5))],
        ),
        id="a join before its member was given up",
    ),
    pytest.param(
        "joins wait for all parts",
        joined(
            expected_child=replace(CHILD, parent=None, members=["parent"]),
            child=None,
            waiting=[waiting(), waiting("child", outcome="short", decided=4.5)],
        ),
        id="a join before a join inside of it was decided",
    ),
    pytest.param(
        "joins run with enough",
        joined(expected=replace(JOINED, at_least=2)),
        id="a join with too few arrivals",
    ),
    pytest.param(
        "joins run with enough",
        joined(
            expected=replace(JOINED, at_least=1, is_early=True),
            child=execution(2, "child", begin=2, end=4.5, parent=1),
        ),
        id="an early join before its first arrival",
    ),
    pytest.param(
        "joins run with enough",
        evidence(
            Expected("parent", "broad", is_poison=True),
            replace(CHILD, follows_any_outcome=True),
            JOINED,
            executions=[
                execution(1, "parent", state="failed"),
                execution(2, "child", begin=2, end=3, parent=1),
                execution(3, "joined", begin=4, end=5, parent=2),
            ],
        ),
        id="a fan-in without its gate",
    ),
    pytest.param(
        "joins run with enough",
        joined(after=execution(3, "joined", begin=4, parent=2, run=None)),
        id="a join in no run",
    ),
    pytest.param("joins cover every run", joined(after=None), id="a join that never ran"),
    pytest.param("joins cover every run", joined(waiting=[]), id="a run without the join"),
    pytest.param("joins cover every run", joined(waiting=[waiting(outcome="waiting")]), id="a join that still waits"),
    pytest.param("joins cover every run", joined(waiting=[waiting(outcome="short")]), id="a join that had enough"),
    pytest.param(
        "joins cover every run",
        joined(expected=replace(NEVER, at_least=2), after=None),
        id="a join that ran by its row and had too little",
    ),
    pytest.param(
        "joins cover every run",
        joined(after=execution(3, "joined", begin=4, end=5, parent=2, run=2)),
        id="a run that the join's execution does not name",
    ),
    pytest.param("runs come to their end", joined(passages=[passage(closed=None)]), id="a run that is open"),
    pytest.param("runs come to their end", joined(waiting=[waiting(), waiting("", open=1)]), id="an item that is open"),
    pytest.param("runs come to their end", held(notes=["note to manifest 7"]), id="a note"),
    pytest.param("dead letters are for poison", evidence(POISON), id="poison without a letter"),
    pytest.param("dead letters are for poison", held(letters=[LETTER]), id="a job that is no poison with a letter"),
    pytest.param("terminal rows are final", held(changed=["execution #1 was changed"]), id="a row that changed"),
    pytest.param(
        "nothing is left open", held(executions=[execution(1, state="in_progress", end=None)]), id="an execution"
    ),
    pytest.param("nothing is left open", held(queue=[Queued(1, "job", "queued", "retry", None, at(0))]), id="a row"),
    pytest.param("nothing is left open", held(is_quiet=False), id="no quiet"),
    pytest.param("fsck finds nothing", held(findings=["alarm_missing: job"]), id="a finding"),
    pytest.param("reconciler repaired nothing", held(repaired=["Repaired: job"]), id="a repair"),
    pytest.param("processes survive", held(exits=[Exit("worker-1", 1)]), id="a process that ended by itself"),
    pytest.param("processes survive", held(exits=[Exit("worker-1", 0)]), id="a process that ended well by itself"),
    pytest.param(
        "processes survive", held(exits=[Exit("worker-1", 1, was_stopped=True)]), id="a process that did not drain"
    ),
    pytest.param(
        "processes survive",
        held(exits=[Exit("worker-1", 1, was_frozen=True)]),
        id="a process that did not outlive a freeze",
    ),
    pytest.param("no process is idle", held(idle_processes=["worker-1 has no heartbeat"]), id="a process that hangs"),
    pytest.param(
        "all faults happened", held(requested={"kill": 2}, happened={"kill": 1}), id="a fault that did not happen"
    ),
    pytest.param("no process is left over", held(left_over=["process 7: worker"]), id="a child without a supervisor"),
    pytest.param("work resumes", held(runs=[run(1, begin=20.0, end=21.0)], returned_at=[1.0]), id="a late return"),
    pytest.param("work resumes", held(returned_at=[5.0], is_quiet=False), id="a return after which nothing went on"),
    pytest.param(
        "work resumes",
        held(runs=[run(1, begin=40.0, end=41.0)], returned_at=[1.0, 20.0]),
        id="a late return after another",
    ),
    pytest.param("work goes on", held(held_up=["job was due for 6 s, while receivers blocked"]), id="a blocked loop"),
    pytest.param("work goes on", held(happened={"hold": 2}), id="a fault at the end of which nobody looked"),
    pytest.param("signals are sent once", held(heard=[ENDED, Heard("execution_ended", 1, 8)]), id="a second signal"),
]


@pytest.mark.parametrize(("invariant", "given"), NOTICED)
def test_the_checker_notices(invariant, given):
    assert invariant in violated(given)


def test_every_invariant_has_a_case_that_it_notices():
    assert {case.values[0] for case in NOTICED} == set(INVARIANTS)


FENCED = pytest.param(
    held(
        executions=[
            execution(1, state="failed", end=5, failure="lost"),
            execution(2, begin=6, end=7, pid=200, worker=8),
        ],
        runs=[run(1, end=9.0), run(2, begin=6.0, end=7.0, member="worker-2", pid=8)],
        freezes=[Freeze("worker-1", 0.5, 8.0)],
    ),
    id="a frozen run that goes on while it is done again elsewhere",
)

EXCUSED = [
    pytest.param(
        held(
            Expected("job", "tight", failures=["RuntimeError"]),
            executions=[
                execution(1, state="failed", failure="RuntimeError"),
                execution(2, begin=2, end=3, state="failed", failure="killed"),
                execution(3, begin=4, end=5),
            ],
            runs=[run(1), run(3, begin=4.0, end=5.0)],
        ),
        id="a job that failed as it is meant to, and was killed before its first line",
    ),
    pytest.param(
        held(
            Expected("job", "tight", is_too_long=True, failures=["timeout"]),
            runs=[run(1, end=30.0)],
            freezes=[Freeze("worker-1", 1.0, 9.0)],
        ),
        id="a long job while its supervisor was frozen",
    ),
    pytest.param(
        evidence(
            Expected("parent", "broad"),
            CHILD,
            executions=[
                execution(1, "parent", group="broad", pid=200, worker=8),
                execution(2, "child", begin=2, end=3, parent=1),
            ],
            runs=[
                run(1, "parent", member="worker-2", pid=8),
                run(2, "child", begin=2.0, end=3.0),
                run(1, "parent", begin=2.5, end=2.6),
            ],
            freezes=[Freeze("worker-1", -9.0, 2.4)],
        ),
        id="a claim of the parent that begins once more in a process that wakes",
    ),
    pytest.param(held(requested={"kill": 2, "pause": 0}, happened={"kill": 2}), id="faults that all happened"),
    FENCED,
    pytest.param(
        held(
            executions=[execution(1, pid=200, worker=8)],
            runs=[run(1, begin=3.0, end=4.0, member="worker-2", pid=8), run(1, begin=3.5, end=5.0)],
            freezes=[Freeze("worker-1", 0.5, 9.0)],
        ),
        id="a claim of a frozen process that begins after it was given to another",
    ),
    pytest.param(
        held(
            executions=[execution(1, end=9, worker=9)],
            runs=[
                run(1, begin=0.0, end=5.0),
                run(1, begin=3.0, end=None, member="worker-2", pid=8),
                run(1, begin=7.0, end=8.0, pid=9),
            ],
            seen={8: 4.0},
            freezes=[Freeze("worker-1", 0.5, 5.0)],
        ),
        id="a claim that a process lost to another, got back and recorded",
    ),
    pytest.param(
        held(
            executions=[execution(1, state="failed", end=1), execution(2, begin=1, end=2)],
            runs=[run(1, end=None), run(2, begin=1.0, end=2.0)],
            seen={7: 0.9},
        ),
        id="a run that was killed and made again",
    ),
    pytest.param(held(POISON, executions=[execution(1, state="failed")], letters=[LETTER]), id="poison in a letter"),
    pytest.param(
        family(
            replace(CHILD, is_poison=True),
            JOINED,
            executions=[
                execution(2, "child", begin=2, end=3, parent=1, state="failed"),
                execution(3, "joined", begin=4, end=5, parent=1),
            ],
            letters=[GIVEN_UP],
        ),
        id="a join after a member that was dead-lettered",
    ),
    pytest.param(joined(), id="a join that ran after its members"),
    pytest.param(
        joined(expected=replace(JOINED, is_early=True), after=execution(3, "joined", begin=2.5, end=2.8, parent=1)),
        id="an early join before its last member",
    ),
    pytest.param(
        family(
            replace(CHILD, is_poison=True),
            replace(CHILD, manifest="other", parent="child", runs=0),
            replace(JOINED, members=["other"]),
            executions=[
                execution(2, "child", begin=2, end=3, parent=1, state="failed"),
                execution(3, "joined", begin=4, end=5, parent=1),
            ],
            letters=[GIVEN_UP],
            passages=[passage()],
            waiting=[waiting()],
        ),
        id="a join after a chain that broke",
    ),
    pytest.param(
        family(
            replace(CHILD, is_poison=True),
            replace(CHILD, manifest="other"),
            replace(BOTH, runs=0),
            executions=[
                execution(2, "child", begin=2, end=3, parent=1, state="failed"),
                execution(3, "other", begin=2, end=3, parent=1),
            ],
            letters=[GIVEN_UP],
            passages=[passage()],
            waiting=[waiting(outcome="short")],
        ),
        id="a join that needs all and is short of one",
    ),
    pytest.param(
        joined(
            expected=NEVER,
            after=None,
            passages=[passage(cancelled=3.0)],
            waiting=[waiting(outcome="cancelled")],
        ),
        id="a join in a run that was cancelled",
    ),
    pytest.param(
        evidence(
            replace(Expected("parent", "broad"), runs=2),
            replace(CHILD, is_exact=False),
            executions=[
                execution(1, "parent", group="broad"),
                execution(2, "parent", group="broad", begin=2, end=3, due=2, run=2),
                execution(3, "child", group="broad", begin=4, end=5, parent=2, run=2, taken_over=[1]),
            ],
        ),
        id="one run for two successes of the parent",
    ),
    pytest.param(
        held(
            exits=[
                Exit("worker-1", -9, was_killed=True),
                Exit("worker-2", 0, was_frozen=True, was_stopped=True),
                Exit("worker-3", 0, was_stopped=True),
            ]
        ),
        id="processes that were killed, frozen or stopped",
    ),
    pytest.param(held(returned_at=[5.0]), id="a return after which there was nothing to do"),
    pytest.param(held(heard=[STARTED, STARTED, ENDED]), id="an execution that was begun twice"),
]


@pytest.mark.parametrize("given", EXCUSED)
def test_the_checker_excuses(given):
    assert violated(given) == set()


def test_fenced_overlaps_are_counted():
    assert figures.fenced_overlaps(*FENCED.values) == 1
    assert figures.fenced_overlaps(held()) == 0


def test_runs_that_a_process_begins_when_it_wakes_are_counted_and_excused():
    given = held(
        executions=[execution(1, pid=200, worker=8)],
        runs=[run(1, begin=6.0, end=8.0, member="worker-2", pid=8), run(1, begin=7.2, end=7.4)],
        freezes=[Freeze("worker-1", 0.5, 7.0)],
    )
    assert violated(given) == set()
    assert figures.begun_after_freezes(given) == 1
    assert "no overlap of a manifest with itself, by witness" in violated(replace(given, freezes=()))


def test_runs_that_were_not_recorded_are_counted():
    assert figures.repeated_runs(held(runs=[run(1), run(1, begin=2.0, end=3.0, member="worker-2", pid=8)])) == 1
    assert figures.repeated_runs(held()) == 0


def test_the_largest_number_of_attempts_is_counted():
    failing = Expected("failing", "tight", failures=["RuntimeError"])
    rows = [execution(1), execution(2, attempt=3), execution(3, "failing", attempt=9)]
    assert figures.highest_attempt(evidence(Expected("job", "tight"), failing, executions=rows)) == 3


def test_the_most_runs_at_once_are_counted():
    given = evidence(
        *(Expected(name, "tight") for name in "ab"),
        executions=[execution(number, name) for number, name in enumerate("ab", 1)],
    )
    assert figures.most_at_once(given) == {"tight": [2, 2], "broad": [0, None], "all groups": [2, 3]}


def test_the_time_until_work_resumed_is_measured():
    given = held(runs=[run(1, begin=3.0), run(2, begin=9.0)], returned_at=[1.0, 5.0, 20.0])
    assert figures.resumed_after(given) == [2.0, 4.0]


def test_a_return_before_another_one_is_not_judged():
    """The database was away again before a job could begin."""
    evidence = held(runs=[run(1, begin=40.0, end=41.0)], returned_at=[1.0, 20.0, 39.0])
    assert figures.resumed_after(evidence) == [1.0]
