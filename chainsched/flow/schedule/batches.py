"""Part of declare: check declared manifests and expand batches into one declaration for each manifest.

Reads:  the registry of workflows; the items of batches.
Writes: nothing.
Next:   plan compares declarations with rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from django.db import DatabaseError

from chainsched.conf import get_config
from chainsched.domain.declarations import (
    Declaration,
    DependentOptions,
    Items,
    ManifestItem,
    check_name,
    group_of,
    option_columns,
    parents_of,
    schedule_columns,
)
from chainsched.domain.schedules import Schedule
from chainsched.domain.validation import raise_all
from chainsched.exceptions import (
    ChainschedError,
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
            raise DeclarationError(f"The name of a batch {error}, or None (it is {self.name!r}).") from error

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
        for item in items:
            try:
                found.append(self._declare(item))
            except DeclarationError as problem:
                problems.append(problem)
        raise_all(problems)
        return found

    def _read_items(self) -> list[ManifestItem]:
        try:
            return list(self.items() if callable(self.items) else self.items)
        except (DatabaseError, ChainschedError):
            raise
        except Exception as error:  # the project's function may raise anything
            raise DeclarationError(
                f"The items of batch {self.name!r} cannot be read: {type(error).__name__}: {error}. "
                "Give a list of ManifestItem, or a function that returns one."
            ) from error

    def _declare(self, item: ManifestItem) -> Declaration:
        if not isinstance(item, ManifestItem):
            raise DeclarationError(f"A batch is made of ManifestItem(id, input), not of {item!r}.")
        external_id = item.id if self.name is None else f"{self.name}-{item.id}"
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
        raise DeclarationError(f"Manifest {external_id!r}: {error}", external_id=external_id) from error
    stated = columns | option_columns(options, external_id=external_id)
    group = group_of(options, default=external_id, external_id=external_id)
    return Declaration(external_id, found.name, stored, group, stated, parents=parents)
