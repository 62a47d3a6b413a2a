"""Part of declare: check declared manifests and expand batches into one declaration for each manifest.

Reads:  the registry of workflows; the items of batches.
Writes: nothing.
Next:   plan compares declarations with rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from django.db import DatabaseError

from chainsched.conf import get_config
from chainsched.domain.declarations import (
    Declaration,
    DependentOptions,
    Items,
    ManifestItem,
    check_item_id,
    check_name,
    group_of,
    option_columns,
    parents_of,
    schedule_columns,
    shown,
)
from chainsched.domain.schedules import Schedule
from chainsched.domain.validation import raise_all
from chainsched.exceptions import (
    DeclarationError,
    InvalidInput,
    InvalidSchedule,
    InvalidWorkflow,
    UnknownWorkflow,
)
from chainsched.registry import WorkflowRef, registry

MAX_UNNAMED_ITEMS = 100


class Pending(Protocol):
    """A declared manifest or batch; its members are read when seeding."""

    @property
    def is_dynamic(self) -> bool:
        """Whether reading the members calls a project's code."""
        ...

    def expand(self) -> list[Declaration]:
        """The declarations of its members; raises all problems with them at once."""
        ...


@dataclass(frozen=True, slots=True)
class Single:
    """One declared manifest."""

    declaration: Declaration

    @property
    def is_dynamic(self) -> bool:
        return False

    def expand(self) -> list[Declaration]:
        return [self.declaration]


@dataclass(frozen=True, slots=True)
class Batch:
    """A declared batch; ``items`` may be a callable, which is called when seeding and never at import."""

    workflow: WorkflowRef
    name: str | None
    items: Items
    schedule: Schedule | None
    root: str | None
    needs_parents: bool
    options: DependentOptions
    is_pruned: bool = True

    def __post_init__(self) -> None:
        try:
            check_name("unnamed" if self.name is None else self.name)
        except ValueError as error:
            raise DeclarationError(f"The name of a batch {error}, or None (it is {shown(self.name)}).") from error

    @property
    def is_dynamic(self) -> bool:
        return callable(self.items)

    def expand(self) -> list[Declaration]:
        items = self._read_items()
        if self.name is None and "group" not in self.options and len(items) > MAX_UNNAMED_ITEMS:
            raise DeclarationError(
                f"An unnamed batch of {len(items)} items would make as many groups (at most {MAX_UNNAMED_ITEMS}). "
                "Give the batch a name or a group."
            )
        found: list[Declaration] = []
        problems: list[DeclarationError] = []
        for number, item in enumerate(items, start=1):
            try:
                found.append(self._declare(item, number=number))
            except DeclarationError as problem:
                problems.append(problem)
        raise_all(problems)
        return found

    def _read_items(self) -> list[ManifestItem]:
        if not callable(self.items):
            return read_items(self.items, batch=self.name)
        try:
            returned = self.items()
        except DatabaseError:
            raise
        except (Exception, SystemExit) as error:  # the project's function may raise anything
            raise _unreadable(self.name, error) from error
        return read_items(returned, batch=self.name)

    def _declare(self, item: ManifestItem, *, number: int) -> Declaration:
        try:
            own_id = check_item_id(item.id)
        except ValueError as error:
            raise DeclarationError(
                f"Item {number} of {_named(self.name)}: its id {error} (it is {shown(item.id)}). Give it one."
            ) from error
        external_id = own_id if self.name is None else f"{self.name}-{own_id}"
        stated = self.options.get("depends_on", self.root)
        parents = stated if item.depends_on is None else item.depends_on
        if self.needs_parents and parents is None:
            raise DeclarationError(
                f"Item {external_id!r} lacks depends_on. Name its parent: ManifestItem(id, input, depends_on=…).",
                external_id=external_id,
            )
        if self.schedule is not None and item.depends_on is not None:
            raise DeclarationError(
                f"Item {external_id!r} has a schedule and depends_on. Declare dependents with include_many().",
                external_id=external_id,
            )
        options: Any = {"group": self.name or external_id, **self.options, **item.options}
        found = declaration(
            self.workflow, external_id, item.input, schedule=self.schedule, depends_on=parents, options=options
        )
        return replace(found, batch=self.name or "")


def read_items(items: Any, *, batch: str | None) -> list[ManifestItem]:
    """The items of a batch as a list; raises one DeclarationError that names the batch if they are anything else."""
    if isinstance(items, str | bytes | Mapping) or not isinstance(items, Iterable):
        raise _wrong(f"The items of {_named(batch)} are", items)
    try:
        found = list(items)
    except DatabaseError:
        raise
    except (Exception, SystemExit) as error:  # a generator of the project may raise anything
        raise _unreadable(batch, error) from error
    wrong = [(number, item) for number, item in enumerate(found, start=1) if not isinstance(item, ManifestItem)]
    if wrong:
        number, item = wrong[0]
        more = f", as {len(wrong) - 1} more are wrong," if len(wrong) > 1 else ""
        raise _wrong(f"Item {number} of {_named(batch)}{more} is", item)
    return found


def _wrong(subject: str, value: Any) -> DeclarationError:
    fact = f"{subject} {shown(value)}, of type {type(value).__name__}"
    return DeclarationError(f"{fact}. Give a list of ManifestItem(id, input), or a function that returns one.")


def _unreadable(batch: str | None, error: BaseException) -> DeclarationError:
    return DeclarationError(
        f"The items of {_named(batch)} cannot be read: {shown(error)}. "
        "Give a list of ManifestItem, or a function that returns one."
    )


def _named(batch: str | None) -> str:
    return "an unnamed batch" if batch is None else f"batch {batch!r}"


@dataclass(frozen=True, slots=True)
class Expanded:
    """All declarations, and the batches that are kept whole, with the reason."""

    declarations: Sequence[Declaration]
    kept_batches: Mapping[str, str]


def declaration(
    workflow: WorkflowRef,
    external_id: str,
    input: Any,
    *,
    schedule: Schedule | None,
    depends_on: str | Sequence[str] | None,
    options: Any,
) -> Declaration:
    """A checked declaration; raises a DeclarationError that names the manifest."""
    try:
        check_name(external_id)
        found = registry.of(workflow)
        stored = found.input_type.dump(input, max_bytes=get_config().max_input_bytes)
        parents = parents_of(depends_on)
        columns = schedule_columns(schedule, parents=parents, options=options)
    except (InvalidInput, InvalidSchedule, InvalidWorkflow, UnknownWorkflow, ValueError) as error:
        name = external_id if isinstance(external_id, str) else None
        raise DeclarationError(f"Manifest {shown(external_id)}: {error}", external_id=name) from error
    stated = columns | option_columns(options, external_id=external_id)
    group = group_of(options, default=external_id, external_id=external_id)
    return Declaration(external_id, found.name, stored, group, stated, parents=parents)


def dependent(
    workflow: WorkflowRef, external_id: str, input: Any, *, depends_on: str | Sequence[str] | None, options: Any
) -> Declaration:
    """A checked declaration of a dependent, which has to name its parents."""
    if depends_on is None:
        raise DeclarationError(
            f"Manifest {external_id!r}: depends_on is None, and nothing would ever run it. Name its parent or its "
            "parents, or declare it with schedule().",
            external_id=external_id,
        )
    return declaration(workflow, external_id, input, schedule=None, depends_on=depends_on, options=options)


def one_time_child(workflow: WorkflowRef, external_id: str, input: Any, *, parent: str, options: Any) -> Declaration:
    """A checked declaration of a child that runs once, after its only parent."""
    if not isinstance(parent, str) or "depends_on" in options:
        raise DeclarationError(
            f"Manifest {external_id!r}: a child that runs once has one parent, which parent names by its external id. "
            "Declare a manifest that depends on several, or on another one, with schedule_dependent().",
            external_id=external_id,
        )
    return declaration(workflow, external_id, input, schedule=None, depends_on=parent, options=options)
