"""Stage 1 of 8: declare manifests in memory.

Reads:  the registry of workflows.
Writes: nothing outside this process.
Next:   seed writes the declarations to rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Unpack, cast

from chainsched.domain.declarations import Declaration, DependentOptions, Items, Options
from chainsched.domain.schedules import Schedule
from chainsched.domain.validation import flatten, raise_all
from chainsched.exceptions import DeclarationError
from chainsched.flow.schedule.batches import (
    Batch,
    Expanded,
    Pending,
    Single,
    declaration,
    dependent,
    read_items,
)
from chainsched.registry import WorkflowRef


class Schedules:
    """The declarations of this process's code; ``chainsched.schedules`` is the one that is discovered and seeded."""

    def __init__(self) -> None:
        self._pending: list[Pending] = []

    @property
    def is_empty(self) -> bool:
        return not self._pending

    def schedule(
        self, workflow: WorkflowRef, external_id: str, input: Any, schedule: Schedule | None, **options: Unpack[Options]
    ) -> Chain:
        """Declare a manifest that runs on a schedule, or with None only when triggered; the chain goes on from it."""
        found = declaration(workflow, external_id, input, schedule=schedule, depends_on=None, options=options)
        self._pending.append(Single(found))
        return Chain(self, root=external_id, cursor=external_id)

    def schedule_many(
        self,
        workflow: WorkflowRef,
        name: str | None,
        items: Items,
        schedule: Schedule | None,
        *,
        prune: bool = True,
        **options: Unpack[Options],
    ) -> Chain:
        """Declare a batch on one schedule. Its name is its group, and ``name-id`` each member's external id.

        Without a name each item's id is its external id. A named batch is pruned by membership: a manifest that is no
        longer in it is retired, unless ``prune`` is False.
        """
        batch = Batch(
            workflow, name, _keep(items, batch=name), schedule, None, needs_parents=False, options=_copy(options)
        )
        self.add(replace(batch, is_pruned=prune))
        return Chain(self, root=None, cursor=None)

    def add(self, pending: Pending) -> None:
        """Add a declaration."""
        self._pending.append(pending)

    def expand(self) -> list[Declaration]:
        """All declarations, with batches expanded."""
        return list(self.expand_batches().declarations)

    def expand_batches(self) -> Expanded:
        """All declarations, and the batches that keep their absent members; raises all problems."""
        declarations: list[Declaration] = []
        problems: list[DeclarationError] = []
        kept: dict[str, str] = {}
        for pending in self._pending:
            try:
                found = pending.expand()
            except DeclarationError as error:
                problems += flatten(error)
                continue
            declarations += found
            if isinstance(pending, Batch) and pending.name:
                kept |= {} if found else {pending.name: "came out empty"}
                kept |= {} if pending.is_pruned else {pending.name: "is declared with prune=False"}
        raise_all(problems)
        return Expanded(declarations, kept)

    def expand_static(self) -> tuple[list[Declaration], list[DeclarationError]]:
        """The declarations that need no call of the project's code, and their problems; for checks."""
        found: list[Declaration] = []
        problems: list[DeclarationError] = []
        for pending in self._pending:
            try:
                found += [] if pending.is_dynamic else pending.expand()
            except DeclarationError as error:
                problems += flatten(error)
        return found, problems

    def clear(self) -> None:
        """Remove all declarations, for tests."""
        self._pending.clear()


@dataclass(frozen=True, slots=True)
class Chain:
    """The state of a chain of declarations: its root (the last ``schedule``) and its cursor (the last declared)."""

    schedules: Schedules
    root: str | None
    cursor: str | None

    def schedule(
        self, workflow: WorkflowRef, external_id: str, input: Any, schedule: Schedule | None, **options: Unpack[Options]
    ) -> Chain:
        """Begin a new chain: the manifest becomes root and cursor."""
        return self.schedules.schedule(workflow, external_id, input, schedule, **options)

    def schedule_many(
        self,
        workflow: WorkflowRef,
        name: str | None,
        items: Items,
        schedule: Schedule | None,
        *,
        prune: bool = True,
        **options: Unpack[Options],
    ) -> Chain:
        """Declare a batch; root and cursor are cleared."""
        return self.schedules.schedule_many(workflow, name, items, schedule, prune=prune, **options)

    def include(
        self, workflow: WorkflowRef, external_id: str, input: Any = None, **options: Unpack[DependentOptions]
    ) -> Chain:
        """Declare a dependent of the root, or of the manifests that ``depends_on`` names; it becomes the cursor."""
        parents = options["depends_on"] if "depends_on" in options else self._need("include", self.root)
        return self._dependent(workflow, external_id, input, parents, options)

    def then_include(
        self, workflow: WorkflowRef, external_id: str, input: Any = None, **options: Unpack[DependentOptions]
    ) -> Chain:
        """Declare a dependent of the cursor, or of the manifests that ``depends_on`` names; it becomes the cursor."""
        parents = options["depends_on"] if "depends_on" in options else self._need("then_include", self.cursor)
        return self._dependent(workflow, external_id, input, parents, options)

    def include_many(
        self,
        workflow: WorkflowRef,
        name: str | None,
        items: Items,
        *,
        prune: bool = True,
        **options: Unpack[DependentOptions],
    ) -> Chain:
        """Declare a batch of dependents; items that name no parent depend on the root. The cursor is cleared."""
        return self._dependent_batch(
            Batch(workflow, name, _keep(items, batch=name), None, self.root, True, _copy(options), prune)
        )

    def then_include_many(
        self,
        workflow: WorkflowRef,
        name: str | None,
        items: Items,
        *,
        prune: bool = True,
        **options: Unpack[DependentOptions],
    ) -> Chain:
        """Declare a batch of dependents that each name their parent. The cursor is cleared."""
        return self._dependent_batch(
            Batch(workflow, name, _keep(items, batch=name), None, None, True, _copy(options), prune)
        )

    def _dependent(
        self,
        workflow: WorkflowRef,
        external_id: str,
        input: Any,
        parents: str | Sequence[str],
        options: DependentOptions,
    ) -> Chain:
        found = dependent(workflow, external_id, input, depends_on=parents, options=options)
        self.schedules.add(Single(found))
        return replace(self, cursor=external_id)

    def _dependent_batch(self, batch: Batch) -> Chain:
        self.schedules.add(batch)
        return replace(self, cursor=None)

    def _need(self, call: str, parent: str | None) -> str:
        if parent is None:
            raise DeclarationError(
                f"{call}() has nothing to depend on: call schedule() first. After schedule_many() use include_many() "
                "with ManifestItem(…, depends_on=…)."
            )
        return parent


schedules = Schedules()


def _keep(items: Items, *, batch: str | None) -> Items:
    """Read a generator once now, so that seeding twice sees the same members; a callable is called when seeding."""
    is_read_later = callable(items) or isinstance(items, Sequence | Mapping) or not isinstance(items, Iterable)
    return items if is_read_later else read_items(items, batch=batch)


def _copy(options: Any) -> DependentOptions:
    return cast("DependentOptions", dict(options))
