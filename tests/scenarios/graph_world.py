"""The engine with a random graph of its own, and everything that can happen to it, one step at a time.

A step takes its choices from a ``random.Random``: from Hypothesis, which finds short lives, or from a seed. After every
step the rows are looked at; ``finish`` lets everything end and looks at the whole history.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from random import Random
from typing import Any
from unittest import mock

from django.db import connection, transaction
from django.test import override_settings

from chainsched import Every, GiveUp
from chainsched.db.clock import stop_clock
from chainsched.domain import outcomes
from chainsched.domain.declarations import Declaration
from chainsched.domain.inputs import OWN_INPUT
from chainsched.domain.outcomes import Finished, Outcome
from chainsched.domain.routing import Pool
from chainsched.domain.states import ExecutionState, RunCondition
from chainsched.exceptions import DeclarationError
from chainsched.flow.maintain.fsck import run_fsck
from chainsched.flow.operate.cancel_run import cancel_late
from chainsched.flow.run.claim import claim
from chainsched.flow.run.consume import consume
from chainsched.flow.run.dispatch import dispatch
from chainsched.flow.run.evaluate import evaluate
from chainsched.flow.run.fold_notes import fold_notes, settle
from chainsched.flow.run.park import release
from chainsched.flow.run.record import record
from chainsched.flow.schedule.batches import declaration
from chainsched.flow.schedule.plan import Origin
from chainsched.flow.schedule.seed import write_declarations
from chainsched.models import (
    DeadLetter,
    DueNote,
    GraphRun,
    JoinNote,
    Manifest,
    ManifestGroup,
    Metadata,
    Process,
    WorkQueue,
)
from chainsched.models.join_state import JoinStateQuerySet
from chainsched.models.manifest_state import ManifestStateQuerySet
from tests.drive import keep_line
from tests.factories import NOW, make_process
from tests.scenarios import graph_model, graph_oracle
from tests.scenarios.graph_oracle import History, Rows, find_unsettled
from tests.testapp.workflows import Slice, copy

WORKFLOWS = ["testapp.copy"]
CONFIG = {"RETRY_DELAY": 1, "RETRY_MULTIPLIER": 1.0}
PERIOD = 60
DEADLINES = (20, 100)
CONDITIONS = {
    "success": RunCondition.SUCCESS,
    "failure": RunCondition.FAILURE,
    "completion": RunCondition.COMPLETION,
}
OK, DEAD, CANCELLED, RETRY = "ok", "dead", "cancelled", "retry"
GRAPH_CHECKS = ("parts", "members", "joins_ahead", "edges")
WHAT_IS_TO_DO = """SELECT EXISTS (SELECT 1 FROM chainsched_joinnote), EXISTS (SELECT 1 FROM chainsched_duenote),
    EXISTS (SELECT 1 FROM chainsched_manifeststate WHERE next_run_at <= %s),
    EXISTS (SELECT 1 FROM chainsched_workqueue WHERE status = 'queued')
        OR EXISTS (SELECT 1 FROM chainsched_metadata WHERE state = 'pending'),
    EXISTS (SELECT 1 FROM chainsched_metadata WHERE state = 'in_progress')"""
# The checks that read whole tables are made after each of so many steps.
SELDOM = 10


class Broken(AssertionError):
    """A rule did not hold."""


def outcome_of(kind: str) -> Outcome:
    if kind == OK:
        return outcomes.completed(None)
    if kind == CANCELLED:
        return Outcome(ExecutionState.CANCELLED)
    return outcomes.raised(GiveUp("no") if kind == DEAD else RuntimeError("no"))


class Errors(logging.Handler):
    """Collects the errors that are logged."""

    def __init__(self, found: list[str]) -> None:
        super().__init__(logging.ERROR)
        self.found = found

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


class World:
    """Rows of one life. What it leaves in the database is rolled back."""

    def __init__(self, rng: Random) -> None:
        self.now = NOW
        self.looks = 0
        self.is_edited = False
        # Manifests of which an operator cancelled something that waited, which then never ran.
        self.cancelled: set[int] = set()
        self.errors: list[str] = []
        self.held_manifests: Collection[int] = ()
        self.held_joins: Collection[int] = ()
        self.stack = ExitStack()
        try:
            self._open(rng)
        except BaseException:
            self.close()
            raise

    def _open(self, rng: Random) -> None:
        self.stack.callback(stop_clock, None)
        stop_clock(NOW)
        self._begin_transaction()
        self._listen_for_errors()
        limit = rng.choice([1, 2, 4, None])
        self.stack.enter_context(override_settings(CHAINSCHED={**CONFIG, "MAX_OPEN_RUNS": limit}))
        self._let_rows_be_held()
        self.process = make_process(workflows=WORKFLOWS)
        self._declare(rng)
        self.rows = Rows(self.graph)

    def close(self) -> None:
        self.stack.close()

    def _begin_transaction(self) -> None:
        atomic = transaction.atomic()
        # A test's, not a caller's, who would keep stages from making dependents due at once.
        atomic._from_testcase = True  # type: ignore[attr-defined]
        self.stack.enter_context(atomic)
        self.stack.callback(transaction.set_rollback, True)

    def _listen_for_errors(self) -> None:
        """The stages go on after an error of one row, and log it."""
        logger, handler = logging.getLogger("chainsched"), Errors(self.errors)
        logger.addHandler(handler)
        self.stack.callback(logger.removeHandler, handler)

    def _let_rows_be_held(self) -> None:
        """Let some rows look as if another transaction held them: notes to them wait."""
        lock_states, lock_joins = ManifestStateQuerySet.lock_free, JoinStateQuerySet.lock_free

        def free_states(rows: Any, ids: Collection[int]) -> Any:
            return lock_states(rows, [id_ for id_ in ids if id_ not in self.held_manifests])

        def free_joins(rows: Any, ids: Collection[int]) -> Any:
            return lock_joins(rows, [id_ for id_ in ids if id_ not in self.held_joins])

        self.stack.enter_context(mock.patch.object(ManifestStateQuerySet, "lock_free", free_states))
        self.stack.enter_context(mock.patch.object(JoinStateQuerySet, "lock_free", free_joins))

    # The graph.

    def _declare(self, rng: Random) -> None:
        while True:
            drawn = graph_model.Graph(rng, rng.randint(3, rng.choice([5, 9])))
            try:
                made = [self._declaration(drawn, m, rng) for m in drawn.parents]
                write_declarations(made, origin=Origin("tests", is_declared=False), now=NOW)
            except DeclarationError:
                continue
            break
        self.heads = [f"m{m}" for m in drawn.parents if not drawn.parents[m]]
        self.slow = {f"m{m}" for m in drawn.parents if rng.random() < 0.3}
        self.reload()

    def _declaration(self, drawn: graph_model.Graph, m: int, rng: Random) -> Declaration:
        parents, options = self._link(drawn, m, rng)
        return declaration(
            copy,
            f"m{m}",
            Slice(f"m{m}"),
            schedule=None if parents else Every.seconds(PERIOD),
            depends_on=parents or None,
            options={"max_retries": 2, **options},
        )

    def _link(self, drawn: graph_model.Graph, m: int, rng: Random) -> tuple[list[str], dict[str, Any]]:
        """The parents that a manifest names, and its options as a dependent."""
        if not drawn.parents[m]:
            return [], {}
        named = [drawn.gate[m]] if m in drawn.gate else list(drawn.parents[m])
        options: dict[str, Any] = {"run_condition": CONDITIONS[drawn.parents[m][named[0]][0]]}
        if m in drawn.gate:
            options["fan_in"] = "tree" if drawn.fan[m] == "tree" else True
        if m in drawn.joins:
            options |= self._join_options(drawn.joins[m], rng)
        return [f"m{parent}" for parent in named], options

    def _join_options(self, drawn: dict[str, Any], rng: Random) -> dict[str, Any]:
        options: dict[str, Any] = {"eager": drawn["eager"], "again_on_late": drawn["again"]}
        if drawn["at_least"]:
            number = drawn["at_least"]
            options["at_least"] = f"{number:.0%}" if isinstance(number, float) else number
        if drawn["deadline"]:
            options["deadline"] = rng.choice(DEADLINES)
        return options

    def reload(self) -> None:
        """Look at the manifests and edges anew, after they were changed."""
        self.graph = graph_oracle.Graph.load()

    # What the loops do.

    def go_on(self, rng: Random) -> None:
        """Loops do what there is to do, some of it, in any order; if there is nothing, a head begins."""
        for _ in range(rng.choice([1, 2, 4])):
            possible = self._possible()
            rng.shuffle(possible)
            if not any(loop(rng) for loop in possible):
                self.begin(rng)

    def _possible(self) -> list[Callable[[Random], int]]:
        """The loops that find something to do: one statement, because it is asked so often."""
        with connection.cursor() as cursor:
            cursor.execute(WHAT_IS_TO_DO, [connection.ops.adapt_datetimefield_value(self.now)])
            found = cursor.fetchone()
        loops = [self.fold, self.consume, self.evaluate, self.start, self.end]
        return [loop for loop, is_possible in zip(loops, found, strict=True) if is_possible]

    def fold(self, rng: Random) -> int:
        """A manager adds up the notes to joins: to all of them, or to one."""
        noted = sorted(set(JoinNote.objects.values_list("state_id", flat=True)))
        self.held_joins = _all_but_one(noted, rng)
        folded = fold_notes(now=self.now)
        self.held_joins = ()
        return folded

    def consume(self, rng: Random) -> int:
        """A manager takes the notes to dependents: to all of them, or to one."""
        noted = sorted(set(DueNote.objects.values_list("child_id", flat=True)))
        self.held_manifests = _all_but_one(noted, rng)
        taken = consume(now=self.now) if noted else 0
        self.held_manifests = ()
        return taken

    def evaluate(self, rng: Random) -> int:
        return evaluate(now=self.now).queued

    def start(self, rng: Random) -> int:
        """A worker takes some of what is queued; or a dispatcher starts it, and a worker claims some of that."""
        limit = rng.choice([1, 3, 100])
        return self._take(limit) if rng.random() < 0.5 else self._start(limit)

    def _take(self, limit: int) -> int:
        release([Pool(WORKFLOWS)], now=self.now)
        dispatched = dispatch(workflows=WORKFLOWS, now=self.now, limit=limit, taker=self.process)
        cancel_late(dispatched.cancelled_rows, now=self.now)
        return len(dispatched.claims) + len(dispatched.cancelled_rows)

    def _start(self, limit: int = 100) -> int:
        keep_line(WORKFLOWS, now=self.now)
        dispatched = dispatch(workflows=WORKFLOWS, now=self.now)
        cancel_late(dispatched.cancelled_rows, now=self.now)
        claimed = claim(process=self.process, workflows=WORKFLOWS, limit=limit, now=self.now)
        return len(dispatched.execution_ids) + len(dispatched.cancelled_rows) + len(claimed)

    def end(self, rng: Random) -> int:
        """Some of what runs ends; slow ones seldom."""
        running = [row for row in self._running() if row[1] not in self.slow or rng.random() < 0.2]
        some = rng.sample(running, min(len(running), rng.choice([1, 1, 2, 4])))
        return self._end(some, rng, [8, 2, 1, 2])

    def _running(self) -> list[tuple[int, str, bool]]:
        rows = Metadata.objects.in_progress().order_by("id")
        return list(rows.values_list("id", "manifest_external_id", "cancel_requested"))

    def _end(self, rows: Collection[tuple[int, str, bool]], rng: Random, weights: list[int]) -> int:
        if not rows:
            return 0
        kinds = [
            CANCELLED if is_told else rng.choices([OK, DEAD, CANCELLED, RETRY], weights)[0] for _, _, is_told in rows
        ]
        finished = [Finished(row[0], outcome_of(kind)) for row, kind in zip(rows, kinds, strict=True)]
        with self._others_hold(rng):
            recorded = record(finished, by=self.process, now=self.now, opens=rng.random() < 0.5)
        if len(recorded.ended) < len(rows):
            raise Broken(f"of {finished} only {recorded} was written")
        return len(rows)

    @contextmanager
    def _others_hold(self, rng: Random) -> Iterator[None]:
        """Other transactions hold none, some or all of the manifests while a step is made; or a caller makes it."""
        kind = rng.choice(["none", "none", "some", "all", "caller"])
        if kind == "caller":
            with transaction.atomic():
                yield
            return
        ids = sorted(self.graph.manifests)
        self.held_manifests = {"none": [], "all": ids, "some": [id_ for id_ in ids if rng.random() < 0.5]}[kind]
        try:
            yield
        finally:
            self.held_manifests = ()

    # Time and heads.

    def pass_time(self, rng: Random) -> None:
        self._pass_time(rng.choice([1, 5, 30, 120]))

    def _pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        stop_clock(self.now)
        Process.objects.update(heartbeat_at=self.now)

    def begin(self, rng: Random) -> None:
        """A head begins: by its schedule, or because an operator triggers it."""
        if rng.random() < 0.5:
            Manifest.objects.get(external_id=rng.choice(self.heads)).trigger()
            return
        self._pass_time(PERIOD)
        evaluate(now=self.now)

    # Operators.

    def trigger(self, rng: Random) -> None:
        """Any manifest, in the middle of the graph too."""
        with self._others_hold(rng):
            self._any(rng).trigger(input=rng.choice([OWN_INPUT, OWN_INPUT, Slice("another", 7)]))

    def disable(self, rng: Random) -> None:
        """Any manifest or group, or one with a row that waits."""
        waiting = list(WorkQueue.objects.queued().order_by("id").values_list("manifest_id", flat=True))
        manifest = self._any(rng, among=waiting if rng.random() < 0.5 else ())
        with self._others_hold(rng):
            (manifest.group if rng.random() < 0.2 else manifest).disable()
        self.reload()

    def enable(self, rng: Random) -> None:
        off: list[Manifest | ManifestGroup] = [
            *Manifest.objects.filter(is_enabled=False).order_by("id"),
            *ManifestGroup.objects.filter(is_enabled=False).order_by("id"),
        ]
        if off:
            with self._others_hold(rng):
                rng.choice(off).enable()
            self.reload()

    def request(self, rng: Random) -> None:
        """An operator asks for a row that waits on a disabled manifest."""
        held = WorkQueue.objects.queued().filter(manifest__is_enabled=False).order_by("id")
        if names := list(held.values_list("manifest_external_id", flat=True)):
            Manifest.objects.get(external_id=rng.choice(names)).trigger()

    def resolve(self, rng: Random) -> None:
        letters = list(DeadLetter.objects.awaiting().order_by("id"))
        if letters:
            letter = rng.choice(letters)
            with self._others_hold(rng):
                rng.choice([letter.retry, letter.retry, letter.acknowledge])()

    def cancel_run(self, rng: Random) -> None:
        runs = list(GraphRun.objects.open().order_by("-id")[:5])
        if runs:
            with self._others_hold(rng):
                rng.choice(runs).cancel()

    def cancel(self, rng: Random) -> None:
        """What one manifest has open, or an execution with all that follows from it."""
        active = list(Metadata.objects.active().order_by("id"))
        with self._others_hold(rng):
            if active and rng.random() < 0.5:
                chosen = rng.choice(active)
                self.cancelled |= {chosen.manifest_id, *self.graph.descendants(chosen.manifest_id)}
                chosen.cancel(tree=True)
            else:
                manifest = self._any(rng)
                self.cancelled.add(manifest.pk)
                manifest.cancel()

    def edit(self, rng: Random) -> None:
        """A join of several parents gets another one, or loses one."""
        joins = [manifest for manifest in self.graph.manifests.values() if manifest.is_join and not manifest.fan_in]
        if not joins:
            return
        join = rng.choice(joins)
        parents = {edge.parent for edge in self.graph.edges if edge.child == join.pk}
        others = sorted(set(self.graph.manifests) - parents - self.graph.descendants(join.pk) - {join.pk})
        if rng.random() < 0.5 and len(parents) > 2:
            parents.remove(rng.choice(sorted(parents)))
        elif others:
            parents.add(rng.choice(others))
        self._give_parents(join, parents)

    def _give_parents(self, join: Manifest, parents: Collection[int]) -> None:
        """Declare a join with these parents; refused if these have no head in common, or it closes a circle."""
        options: dict[str, Any] = {
            "run_condition": RunCondition(join.run_condition),
            "eager": join.is_eager,
            "again_on_late": join.runs_again_on_late,
        }
        if join.at_least or join.at_least_percent:
            options["at_least"] = min(join.at_least, len(parents)) if join.at_least else f"{join.at_least_percent}%"
        if join.deadline_seconds:
            options["deadline"] = join.deadline_seconds
        names = [self.graph.manifests[id_].external_id for id_ in sorted(parents)]
        try:
            Manifest.objects.schedule_dependent(
                copy, join.external_id, Slice(join.external_id), depends_on=names, **options
            )
        except DeclarationError:
            return
        self.is_edited = True
        self.reload()

    def _any(self, rng: Random, among: Sequence[int] = ()) -> Manifest:
        return Manifest.objects.select_related("group").get(pk=rng.choice(among or sorted(self.graph.manifests)))

    # What must hold after every step.

    def step(self, do: Callable[[Random], None], rng: Random) -> None:
        # Longer than the delay of a retry, which varies: a life can be repeated.
        self._pass_time(2)
        do(rng)
        self.look()

    def look(self) -> None:
        self.looks += 1
        if self.errors:
            raise Broken(f"an error was logged: {self.errors}")
        before, self.rows = self.rows, Rows(self.graph)
        if problem := (
            self.rows.decided_too_early(before, now=self.now)
            or self.rows.fired_too_early(before)
            or self.rows.closed_too_early()
        ):
            raise Broken(problem)
        self._check_rows("tokens", *(GRAPH_CHECKS if self.looks % SELDOM == 0 else ()))

    def _check_rows(self, *checks: str) -> None:
        findings = run_fsck(now=self.now, checks=checks)
        if not findings:
            return
        # A sign to look at its obstacles again is under way to some manifests.
        noted = set(DueNote.objects.filter(parent_execution_id=0).values_list("child_id", flat=True))
        names = {self.graph.manifests[id_].external_id for id_ in noted}
        if wrong := [found for found in findings if found.check != "parts" or found.subject not in names]:
            raise Broken(f"fsck finds {wrong}")

    # The end.

    def finish(self, rng: Random) -> None:
        """Let all that is under way end; then enable everything, and then resolve all letters; and look at it all."""
        self._stop_heads()
        self._drive(rng, [8, 1, 1, 1])
        for row in (*ManifestGroup.objects.filter(is_enabled=False), *Manifest.objects.filter(is_enabled=False)):
            row.enable()
        self.reload()
        self._drive(rng, [8, 1, 0, 1])
        while letters := list(DeadLetter.objects.awaiting().order_by("id")):
            for letter in letters:
                rng.choice([letter.retry, letter.acknowledge])()
            self._acknowledge_refused()
            self._drive(rng, [1, 0, 0, 0])
        self._check_end()

    def _acknowledge_refused(self) -> None:
        """The letter of a cancelled run is not retried."""
        for letter in DeadLetter.objects.awaiting():
            letter.acknowledge()

    def _stop_heads(self) -> None:
        for name in self.heads:
            Manifest.objects.schedule(copy, name, Slice(name), None)
        self.reload()

    def _drive(self, rng: Random, weights: list[int]) -> None:
        """Until nothing is under way; then every join of every run is decided, whatever is disabled or failed."""
        is_waited = False
        while True:
            moved = settle(now=self.now) + evaluate(now=self.now).queued + self._start()
            moved += self._end(self._running(), rng, weights)
            self.look()
            if moved:
                is_waited = False
            elif is_waited:
                break
            else:
                # For the delay of retries.
                self._pass_time(5)
                is_waited = True
        if unsettled := find_unsettled():
            raise Broken(f"nothing is under way, but {unsettled}")

    def _check_end(self) -> None:
        if items := Rows(self.graph).items:
            raise Broken(f"never ended: {items}")
        for problem in History(self.graph).problems(is_edited=self.is_edited, cancelled=self.cancelled):
            raise Broken(problem)
        if findings := run_fsck(now=self.now):
            raise Broken(f"fsck finds {findings}")


def _all_but_one(ids: list[int], rng: Random) -> list[int]:
    """Which of these are held by others: none, or all but one."""
    if not ids or rng.random() < 0.4:
        return []
    free = rng.choice(ids)
    return [id_ for id_ in ids if id_ != free]


# Every step, and how often it comes.
STEPS: dict[str, int] = {
    "go_on": 30,
    "begin": 3,
    "pass_time": 1,
    "trigger": 3,
    "disable": 3,
    "enable": 2,
    "request": 2,
    "resolve": 3,
    "cancel_run": 1,
    "cancel": 1,
    "edit": 2,
}


def life(rng: Random, steps: int) -> None:
    """One random graph and a random life of it to its end."""
    world = World(rng)
    try:
        for _ in range(steps):
            name = rng.choices(list(STEPS), list(STEPS.values()))[0]
            world.step(getattr(world, name), rng)
        world.finish(rng)
    finally:
        world.close()
