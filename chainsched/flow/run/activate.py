"""Run action: activate dormant children of the run's own manifest. Operator action: activate one by hand.

Reads:  the children, their open items, and the execution that asks.
Writes: through enqueue the queue rows.
Next:   dispatch.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from chainsched.conf import get_config
from chainsched.db.clock import database_now
from chainsched.domain.due import OpenItem
from chainsched.domain.items import Item
from chainsched.domain.results import Answer
from chainsched.domain.run_context import each_once, refusal
from chainsched.domain.states import ScheduleType, Source
from chainsched.exceptions import ProcessLost
from chainsched.flow.run.enqueue import enqueue
from chainsched.flow.run.requests import Lineage, QueueRequest, lineages_of
from chainsched.flow.run.tokens import TokenLedger
from chainsched.flow.transactions import transact
from chainsched.models import JoinState, Manifest, ManifestState, Metadata, Process
from chainsched.models.manifest_facts import load_open_items
from chainsched.registry import registry

logger = logging.getLogger(__name__)


def activate(
    activations: Iterable[tuple[str, Any]],
    *,
    parent_manifest_id: int | None,
    execution_id: int,
    process_id: int,
) -> list[str]:
    """Queue the named dormant children with their inputs, all or none; returns those that were queued.

    Refused: a child that does not exist, is not dormant, belongs to another parent or is named twice, an input that
    does not fit, and a run that its process no longer owns. A child that is queued or active already is skipped with a
    warning.
    """
    wanted = each_once(activations)
    if not wanted:
        return []
    now = database_now()
    with transact():
        ManifestState.objects.lock(list(Manifest.objects.filter(external_id__in=wanted).values_list("id", flat=True)))
        children = _find_children(wanted, parent_manifest_id)
        inputs = {external_id: _check_input(children[external_id], wanted[external_id]) for external_id in wanted}
        _check_fence(execution_id, process_id)
        busy = load_open_items([child.id for child in children.values()])
        free = {external_id: child for external_id, child in children.items() if child.id not in busy}
        opened = _enqueue(free, inputs, execution_id=execution_id, now=now)
    _warn_of_skips(children, busy)
    return [external_id for external_id, child in children.items() if child.id in opened]


def _enqueue(
    children: Mapping[str, Manifest], inputs: Mapping[str, Any], *, execution_id: int, now: datetime
) -> dict[int, int]:
    """Queue children in the runs of the execution that activates them."""
    lineage = lineages_of([execution_id])[execution_id]
    ledger = TokenLedger()
    items = _take_items(execution_id, [child.id for child in children.values()], ledger=ledger)
    requests = [
        QueueRequest(
            child.id,
            Source.ACTIVATION,
            scheduled_for=now,
            input=inputs[external_id],
            lineage=lineage,
            item=items.get(child.id),
        )
        for external_id, child in children.items()
    ]
    opened = enqueue(requests, now=now, ledger=ledger)
    ledger.write()
    return opened


def _take_items(execution_id: int, child_ids: list[int], *, ledger: TokenLedger) -> dict[int, Item]:
    """The items of children in the runs that their parent's execution stands for; none if it stands for none."""
    parent = Metadata.objects.only("run_id", "tokens", "is_again").get(id=execution_id)
    runs = {place.run_id for place in JoinState.objects.places(parent.tokens).values()}
    tokens = JoinState.objects.tokens_for([(child_id, run_id) for child_id in child_ids for run_id in runs])
    items = {
        child_id: Item(
            run_id=parent.run_id,
            tokens=tuple(sorted({token for run_id in runs for token in tokens[child_id, run_id]})),
            has_tokens=True,
            is_again=parent.is_again,
        )
        for child_id in child_ids
        if runs
    }
    for item in items.values():
        ledger.take(item.tokens)
    return items


def activate_by_hand(manifest_id: int, value: Any, *, now: datetime) -> Answer:
    """Queue a dormant child with this input for an operator; no run is its parent.

    Refused: a manifest that is not dormant, and an input that does not fit. One that is busy stays as it is.
    """
    with transact():
        ManifestState.objects.lock([manifest_id])
        child = Manifest.objects.get(id=manifest_id)
        if child.schedule_type != ScheduleType.DORMANT_DEPENDENT:
            raise refusal(child.external_id, f"it is not dormant but {child.schedule_type}. Trigger it instead")
        checked = _check_input(child, value)
        open_item = load_open_items([manifest_id]).get(manifest_id)
        if open_item is not None:
            return Answer.AWAITS_DEAD_LETTER if open_item is OpenItem.DEAD_LETTER else Answer.BUSY
        request = QueueRequest(
            manifest_id, Source.ACTIVATION, scheduled_for=now, input=checked, lineage=Lineage.of_scope()
        )
        return Answer.QUEUED if enqueue([request], now=now) else Answer.BUSY


def _find_children(wanted: dict[str, Any], parent_manifest_id: int | None) -> dict[str, Manifest]:
    found = {child.external_id: child for child in Manifest.objects.filter(external_id__in=wanted)}
    for external_id in wanted:
        _check_child(external_id, found.get(external_id), parent_manifest_id)
    return found


def _check_child(external_id: str, child: Manifest | None, parent_manifest_id: int | None) -> None:
    if child is None:
        problem = "there is no such manifest. Declare it with dormant=True below this one"
    elif child.schedule_type != ScheduleType.DORMANT_DEPENDENT:
        problem = f"it is not dormant but {child.schedule_type}. Declare it with dormant=True"
    elif parent_manifest_id is None or child.depends_on_id != parent_manifest_id:
        problem = "it is a child of another manifest. Only its own parent's runs may activate it"
    else:
        return
    raise refusal(external_id, problem)


def _check_input(child: Manifest, value: Any) -> Any:
    if value is None and child.input is not None:
        return child.input
    return registry.get(child.workflow).input_type.dump(value, max_bytes=get_config().max_input_bytes)


def _check_fence(execution_id: int, process_id: int) -> None:
    """Refuse a run that its process has lost since it began."""
    is_trusted = Process.objects.trusted().filter(pk=process_id).exists()
    if not is_trusted or not Metadata.objects.in_progress().filter(id=execution_id, process=process_id).exists():
        raise ProcessLost(f"This process no longer owns execution {execution_id}; it activates nothing.")


def _warn_of_skips(children: dict[str, Manifest], busy: dict[int, OpenItem]) -> None:
    for external_id, child in children.items():
        if child.id in busy:
            logger.warning("%s is not activated: it is %s already.", external_id, busy[child.id].replace("_", " "))
