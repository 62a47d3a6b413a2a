"""Stage 2 of 8: write declarations to rows.

Reads:  the plan, and the states of the manifests in it.
Writes: groups, manifests and their states: only columns that the code states and that differ.
Next:   the manager, when the alarms are due.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from chainsched.db import bulk
from chainsched.db.chunks import chunks
from chainsched.db.locks import Patience
from chainsched.db.notify import DISPATCHER
from chainsched.domain.declarations import Declaration
from chainsched.flow.announce import wake
from chainsched.flow.run.alarm import arm
from chainsched.flow.run.consume import look_again
from chainsched.flow.run.park import release_enabled
from chainsched.flow.run.tokens import TokenLedger
from chainsched.flow.schedule.declare import Schedules
from chainsched.flow.schedule.parent_marks import set_parent_marks
from chainsched.flow.schedule.plan import LINK_COLUMNS, UNFINISHED, Origin, Plan, plan_expanded, plan_rows
from chainsched.flow.schedule.upsert import (
    ConcurrentChange,
    create_manifests,
    hold_groups,
    joined_groups,
    link,
    update_manifests,
    write_groups,
)
from chainsched.flow.transactions import persist_patiently, transact, wait_briefly
from chainsched.models import Dependency, Manifest, ManifestState, NamedLock, Near
from chainsched.models.manifest_facts import load_open_items
from chainsched.models.named_lock import GRAPH

logger = logging.getLogger(__name__)

MAX_TRIES = 5
MANY = 1000
# A change of one of these columns makes the schedule begin again.
ARMING_COLUMNS = frozenset(
    {
        "schedule_type",
        "cron_expression",
        "interval_seconds",
        "once_at",
        "timezone",
        "jitter_seconds",
        "exclusions",
        "is_enabled",
        "depends_on",
        "run_condition",
        "retired_at",
        "done_at",
        "is_one_time",
        "group",
    }
)


@dataclass(frozen=True, slots=True)
class Seeded:
    """The written manifests, by external id."""

    created: Sequence[str] = ()
    changed: Sequence[str] = ()
    retired: Sequence[str] = ()
    unchanged: int = 0

    @property
    def in_words(self) -> str:
        return (
            f"{len(self.created)} created, {len(self.changed)} changed, {len(self.retired)} retired, "
            f"{self.unchanged} unchanged."
        )


def seed(schedules: Schedules, *, now: datetime) -> Seeded:
    """Bring the rows in line with the declarations, in one transaction: all of it or, on any problem, nothing.

    Running it again writes nothing. The lock on the graph makes processes that start together take turns.
    """
    if schedules.is_empty:
        logger.warning("No schedules are declared, so nothing is seeded and nothing is retired.")
        return Seeded()
    # The project's functions are called here, before anything is locked.
    expanded = schedules.expand_batches()
    seeded = _until_settled(lambda: plan_expanded(expanded), holds_graph=True, patience=Patience.LONG, now=now)
    if len(seeded.created) >= MANY:
        # Without statistics the joins of the loops' first turns would read these tables whole.
        bulk.analyze(Manifest, ManifestState, Dependency, Near)
    return seeded


def write_declarations(
    declarations: Sequence[Declaration], *, origin: Origin, now: datetime, check: Callable[[], None] = lambda: None
) -> Seeded:
    """Write manifests at run time. The graph is locked only if a manifest has a parent.

    ``check`` may refuse the declarations; it is called after the lock on the graph and before all others.
    """
    holds_graph = any(found.parents for found in declarations) or _have_parents(declarations)

    def make_plan() -> Plan:
        check()
        return plan_rows(declarations, origin=origin)

    return _until_settled(make_plan, holds_graph=holds_graph, now=now)


def _have_parents(declarations: Sequence[Declaration]) -> bool:
    """Whether a stored manifest of these names has edges, which a declaration without parents takes away."""
    return any(
        Dependency.objects.filter(child__external_id__in=part).exists()
        for part in chunks([found.external_id for found in declarations])
    )


def retire(manifest_ids: Sequence[int], *, now: datetime) -> list[int]:
    """Retire manifests that have no unfinished run: their rows and history are kept, idle; returns the retired ids."""

    def write() -> list[int]:
        with transact():
            wait_briefly()
            locked = set(ManifestState.objects.lock(manifest_ids))
            return _retire([id_ for id_ in manifest_ids if id_ in locked], now=now)

    return persist_patiently(write)


def _until_settled(
    make_plan: Callable[[], Plan], *, holds_graph: bool, now: datetime, patience: Patience = Patience.USUAL
) -> Seeded:
    """Plan and write in one transaction. Its locks are taken in one order: graph, groups, states in the order of ids.

    It waits for the graph as long as its patience lasts, as it holds nothing then, and for all others only briefly.
    """

    def write(holds_graph: bool) -> Seeded:
        with transact(patience):
            if holds_graph:
                NamedLock.objects.hold(GRAPH, now=now)
            wait_briefly()
            return _apply(_plan_under_locks(make_plan, holds_graph=holds_graph), now=now)

    for _ in range(MAX_TRIES):
        try:
            return persist_patiently(functools.partial(write, holds_graph), patience=patience)
        except ConcurrentChange:
            # Some of them may have got parents meanwhile.
            holds_graph = True
            logger.info("Another process wrote some of the manifests at the same time; planning again.")
    raise ConcurrentChange(f"Other processes wrote the same manifests {MAX_TRIES} times in a row; try again.")


def _plan_under_locks(make_plan: Callable[[], Plan], *, holds_graph: bool) -> Plan:
    """A plan of rows that no other transaction can change any more: they are locked, and then it is made again.

    A declaration writes the columns that differ from the stored ones, so that two that were planned by the same stored
    row would leave a mixture of both.
    """
    first = make_plan()
    locked = _lock(first)
    if not (first.changed or first.retired or first.changed_groups):
        return first
    again = make_plan()
    if not (_touched_ids(again) <= locked and _groups_in(again) <= _groups_in(first)):
        raise ConcurrentChange("Another process has changed which rows are written.")
    if not holds_graph and again.has_edges_to_write:
        raise ConcurrentChange("Another process has given a manifest parents.")
    return again


def _lock(made: Plan) -> set[int]:
    """Lock the rows that a plan reads or writes; returns the manifests."""
    hold_groups(made)
    touched = _touched_ids(made)
    ManifestState.objects.lock(touched)
    return touched


def _groups_in(made: Plan) -> set[str]:
    """The groups that get members or other columns."""
    return joined_groups(made) | made.changed_groups.keys()


def _apply(made: Plan, *, now: datetime) -> Seeded:
    group_ids = write_groups(made)
    created = create_manifests(made.created, group_ids)
    update_manifests(made, group_ids)
    link(made)
    first_linked = made.first_linked
    set_parent_marks([*(created if _creates_dependents(made) else ()), *_ids_in(made, first_linked)])
    set_parent_marks(
        _ids_in(made, [name for name in made.relinked if name not in set(first_linked)]), is_new_parent=False
    )
    _arm_all(created, now=now, is_fresh=True)
    _arm_all(_ids_in(made, _to_arm(made)), now=now, is_fresh=True)
    _arm_all(_members_of(_switched_groups(made)), now=now, is_fresh=True)
    _look_again_below(_ids_in(made, _switched(made)), now=now)
    release_enabled([*_ids_in(made, _switched(made)), *_members_of(_switched_groups(made))])
    retired = _retire(_ids_in(made, made.retired), now=now)
    if made.changed or made.changed_groups:
        # A limit, a priority or a switch may let rows start that waited.
        wake(DISPATCHER)
    for warning in made.warnings:
        logger.warning("%s", warning)
    return _report(made, retired)


def _creates_dependents(made: Plan) -> bool:
    return any(row["depends_on"] for row in made.created)


def _touched_ids(made: Plan) -> set[int]:
    """The manifests with a state that this plan may read or write."""
    own = _ids_in(made, [*made.changed, *made.retired])
    return {*own, *_parent_ids(made), *_members_of(_switched_groups(made))}


def _parent_ids(made: Plan) -> list[int]:
    """The parents, old and new, of manifests that this plan creates, moves or compares with their parents."""
    names = {row["depends_on"] for row in made.created}
    names |= {made.stored[name]["depends_on"] for name in (*made.relinked, *made.first_linked)}
    names |= {made.changed[name]["depends_on"].new for name in made.reparented}
    return _ids_in(made, sorted(name for name in names if name in made.stored))


def _ids_in(made: Plan, external_ids: Iterable[str]) -> list[int]:
    return [made.stored[external_id]["id"] for external_id in external_ids]


def _to_arm(made: Plan) -> list[str]:
    return [external_id for external_id, columns in made.changed.items() if ARMING_COLUMNS & columns.keys()]


def _switched(made: Plan) -> list[str]:
    """The changed manifests that may make their plain dependents start or stop."""
    switching = {"is_enabled", "retired_at", *LINK_COLUMNS}
    return [name for name, columns in made.changed.items() if switching & columns.keys()]


def _switched_groups(made: Plan) -> list[str]:
    return [name for name, columns in made.changed_groups.items() if "is_enabled" in columns]


def _members_of(groups: Sequence[str]) -> list[int]:
    return list(Manifest.objects.filter(group__name__in=groups).order_by("id").values_list("id", flat=True))


def _look_again_below(manifest_ids: Sequence[int], *, now: datetime) -> None:
    """Let plain dependents notice that their parent was switched on or off; their states are not waited for."""
    ledger = TokenLedger()
    for part in chunks(manifest_ids):
        look_again(Manifest.objects.plain_dependents_of(part), ledger=ledger, now=now)
    ledger.write()


def _retire(manifest_ids: Sequence[int], *, now: datetime) -> list[int]:
    """Retire the manifests that have nothing unfinished; the caller has locked their states."""
    retired: list[int] = []
    for part in chunks(manifest_ids):
        busy = {id_ for id_, item in load_open_items(part).items() if item in UNFINISHED}
        idle = [id_ for id_ in part if id_ not in busy]
        Manifest.objects.filter(id__in=idle, retired_at__isnull=True).update(retired_at=now)
        retired += idle
    _arm_all(retired, now=now, is_fresh=False)
    _look_again_below(retired, now=now)
    return retired


def _arm_all(manifest_ids: Sequence[int], *, now: datetime, is_fresh: bool) -> None:
    for part in chunks(manifest_ids):
        arm(part, now=now, is_fresh=is_fresh)


def _report(made: Plan, retired: Sequence[int]) -> Seeded:
    names = {made.stored[name]["id"]: name for name in made.retired}
    seeded = Seeded(
        created=[row["external_id"] for row in made.created],
        changed=sorted(made.changed),
        retired=sorted(names[id_] for id_ in retired),
        unchanged=made.unchanged,
    )
    logger.info("Seeded: %s", seeded.in_words)
    return seeded
