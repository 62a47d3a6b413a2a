"""Caller action: give a manifest a child that runs once.

Reads:  the parent's children.
Writes: through seed the child, and the execution number that it waits for.
Next:   the parent's next outcome.
"""

from __future__ import annotations

from datetime import datetime

from chainsched.conf import get_config
from chainsched.domain.declarations import Declaration, is_storable
from chainsched.exceptions import LimitExceeded, UnknownManifest
from chainsched.flow.schedule.plan import Origin
from chainsched.flow.schedule.seed import write_declarations
from chainsched.models import Dependency, Manifest


def add_one_time_child(child: Declaration, *, origin: Origin, now: datetime) -> None:
    """Write a one-time dependent. The graph is locked, so that children added at once cannot pass the limit."""
    write_declarations([_one_time(child)], origin=origin, now=now, check=lambda: _check_room(child))


def _one_time(child: Declaration) -> Declaration:
    return Declaration(
        external_id=child.external_id,
        workflow=child.workflow,
        input=child.input,
        group=child.group,
        stated={**child.stated, "is_one_time": True, "done_at": None},
        parents=child.parents,
        batch=child.batch,
    )


def _check_room(child: Declaration) -> None:
    """Refuse a child above the limit. Children that are done do not count; joins that others lead to as well do."""
    name = child.depends_on or ""
    parent = Manifest.objects.filter(external_id=name).first() if is_storable(name) else None
    if parent is None:
        raise UnknownManifest(name)
    limit = get_config().max_fan_out
    edges = Dependency.objects.explicit().filter(parent=parent)
    children = Manifest.objects.filter(id__in=edges.values("child_id"), done_at__isnull=True, retired_at__isnull=True)
    value = children.exclude(external_id=child.external_id).count() + 1
    if value > limit:
        raise LimitExceeded(
            f"Manifest {parent.external_id!r} would have {value} children; MAX_FAN_OUT allows {limit}. "
            "Use schedule_many_dependent(), which has no limit, or raise CHAINSCHED['MAX_FAN_OUT'].",
            value=value,
            limit=limit,
            setting="MAX_FAN_OUT",
            external_id=child.external_id,
        )
