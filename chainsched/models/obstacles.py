"""The SQL form of ``domain/obstacles.py``: one condition an obstacle, and the questions that are asked of many rows.

``manifest`` is the path from the queried table to the manifest's columns, with its underscores: ``"manifest__"``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from django.db.models import Q

from chainsched.domain.obstacles import HOLDING_QUEUED_ROWS, RULES, Obstacle, find_state
from chainsched.domain.states import SOURCES_PAST_DISABLED, ScheduleType

if TYPE_CHECKING:
    from chainsched.models.manifest import Manifest


@dataclass(frozen=True, slots=True)
class Condition:
    """An obstacle in SQL. Of a manifest that a join does not find neither form is true."""

    is_met: Callable[[str], Q]
    is_free: Callable[[str], Q]


def _flag(column: str, *, met: bool) -> Condition:
    return Condition(
        lambda manifest: Q(**{f"{manifest}{column}": met}), lambda manifest: Q(**{f"{manifest}{column}": not met})
    )


def _rule(is_met: Callable[[str], Q]) -> Condition:
    return Condition(is_met, lambda manifest: ~is_met(manifest))


def _has_type(schedule_type: ScheduleType) -> Callable[[str], Q]:
    return lambda manifest: Q(**{f"{manifest}schedule_type": schedule_type.value})


def _is_plain(manifest: str) -> Q:
    """A dependent that is no join; of a manifest that a join does not find it is not true."""
    return Q(**{f"{manifest}schedule_type": ScheduleType.DEPENDENT.value, f"{manifest}is_join": False})


def _is_parent_missing(manifest: str) -> Q:
    return _is_plain(manifest) & Q(**{f"{manifest}depends_on__isnull": True})


def _is_parent_disabled(manifest: str) -> Q:
    """A parent that is gone counts as disabled, too; ``PARENT_MISSING`` comes first."""
    parent = f"{manifest}depends_on__"
    is_off = (
        Q(**{f"{parent}isnull": True})
        | Q(**{f"{parent}is_enabled": False})
        | Q(**{f"{parent}retired_at__isnull": False})
    )
    return _is_plain(manifest) & is_off


CONDITIONS: Mapping[Obstacle, Condition] = {
    Obstacle.RETIRED: _flag("retired_at__isnull", met=False),
    Obstacle.DONE: _flag("done_at__isnull", met=False),
    Obstacle.DISABLED: _flag("is_enabled", met=False),
    Obstacle.GROUP_DISABLED: _flag("group__is_enabled", met=False),
    Obstacle.ON_DEMAND: _rule(_has_type(ScheduleType.ON_DEMAND)),
    Obstacle.DORMANT: _rule(_has_type(ScheduleType.DORMANT_DEPENDENT)),
    Obstacle.PARENT_MISSING: _rule(_is_parent_missing),
    Obstacle.PARENT_DISABLED: _rule(_is_parent_disabled),
}
# Judged by columns of the manifest's own row, so that asking for them joins no other table.
OF_THE_ROW = (Obstacle.RETIRED, Obstacle.DONE, Obstacle.DISABLED)


def has_met(obstacles: Iterable[Obstacle], *, manifest: str = "") -> Q:
    """Whether any of these obstacles is met."""
    met = Q()
    for obstacle in obstacles:
        met |= CONDITIONS[obstacle].is_met(manifest)
    return met


def is_free_of(obstacles: Iterable[Obstacle] = tuple(RULES), *, manifest: str = "") -> Q:
    """Whether none of these obstacles is met; of all of them: whether the engine may start a run by itself."""
    free = Q()
    for obstacle in obstacles:
        free &= CONDITIONS[obstacle].is_free(manifest)
    return free


def releases_queued_row() -> Q:
    """Whether no obstacle holds a queued row.

    A row matches nothing here and is never dispatched if its manifest was deleted by other means than ours.
    """
    holding = [obstacle for obstacle in HOLDING_QUEUED_ROWS if obstacle in OF_THE_ROW]
    is_requested = has_met(holding, manifest="manifest__") & Q(source__in=SOURCES_PAST_DISABLED)
    is_free = Q(manifest__isnull=True) | is_free_of(holding, manifest="manifest__") | is_requested
    # The group that the row names, which a row without a manifest may name as well.
    return is_free & ~Q(group__is_enabled=False)


@dataclass(frozen=True, slots=True)
class RowStanding:
    """The standing of a manifest as far as the caller has read it; facts that were not read are no obstacles."""

    is_retired: bool = False
    is_done: bool = False
    is_enabled: bool = True
    is_group_enabled: bool = True
    schedule_type: ScheduleType = ScheduleType.CRON
    parent_id: int | None = None
    is_parent_enabled: bool = True
    is_join: bool = False


def standing_of(manifest: Manifest, *, is_group_enabled: bool, parent: Manifest | None) -> RowStanding:
    """The whole standing of a manifest that was read with its group and its parent."""
    return RowStanding(
        is_retired=manifest.retired_at is not None,
        is_done=manifest.done_at is not None,
        is_enabled=manifest.is_enabled,
        is_group_enabled=is_group_enabled,
        schedule_type=ScheduleType(manifest.schedule_type),
        parent_id=manifest.depends_on_id,
        is_parent_enabled=parent is not None and parent.is_enabled and parent.retired_at is None,
        is_join=manifest.is_join,
    )


def state_of(manifest: Manifest, *, is_group_enabled: bool) -> Obstacle | None:
    """The obstacle that lists show as the state of this manifest."""
    return find_state(
        RowStanding(
            is_retired=manifest.retired_at is not None,
            is_done=manifest.done_at is not None,
            is_enabled=manifest.is_enabled,
            is_group_enabled=is_group_enabled,
        )
    )
