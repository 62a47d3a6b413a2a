"""Run-time calls for views, commands and shells. The models' methods call these functions.

Every call is short, may be made inside ``transaction.atomic()``, and then takes effect with it: rolled back means
never queued.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar, Unpack, cast
from uuid import UUID

from django.db.models import Model, QuerySet

from chainsched.conf import get_config
from chainsched.db.chunks import chunks
from chainsched.db.clock import database_now
from chainsched.domain.declarations import (
    MAX_COUNT,
    MAX_PRIORITY,
    Declaration,
    DependentOptions,
    Items,
    Options,
    is_storable,
)
from chainsched.domain.inputs import OWN_INPUT, readable
from chainsched.domain.results import Ancestry, Answer, Cancelled, Explanation, Health, Resolved, RunReport
from chainsched.domain.routing import check_queue
from chainsched.domain.schedules import Once, Schedule
from chainsched.domain.states import BulkDecisionVerb
from chainsched.exceptions import InvalidInput, UnknownExecution, UnknownManifest, UnknownRow
from chainsched.flow.inspect.causes import find_causes
from chainsched.flow.inspect.explain import explain as explain_manifest
from chainsched.flow.inspect.explain import explain_row as explain_waiting
from chainsched.flow.inspect.health import check_health
from chainsched.flow.operate import enable as switch
from chainsched.flow.operate.bulk_decisions import cancel_bulk_decision as stop_bulk_decision
from chainsched.flow.operate.cancel import cancel as cancel_work
from chainsched.flow.operate.cancel import cancel_execution as stop_execution
from chainsched.flow.operate.cancel import cancel_row as unqueue
from chainsched.flow.operate.cancel_run import cancel_below
from chainsched.flow.operate.cancel_run import cancel_run as stop_run
from chainsched.flow.operate.group_limits import set_group_limits
from chainsched.flow.operate.prioritize import prioritize
from chainsched.flow.operate.remove import remove_all
from chainsched.flow.operate.resolve import LetterDecision, decide
from chainsched.flow.operate.run_from_here import run_from_here as go_on_from
from chainsched.flow.operate.trigger import TriggerRequest, check_delay, trigger_all
from chainsched.flow.operate.trigger import trigger as trigger_manifests
from chainsched.flow.operate.trigger import trigger_group as trigger_members
from chainsched.flow.run.activate import activate_by_hand
from chainsched.flow.schedule.batches import Batch, declaration, dependent, one_time_child
from chainsched.flow.schedule.one_time_child import add_one_time_child
from chainsched.flow.schedule.plan import Origin
from chainsched.flow.schedule.seed import retire, write_declarations
from chainsched.models import BulkDecision, DeadLetter, GraphRun, Manifest, ManifestGroup, Metadata, WorkQueue
from chainsched.models.model_methods import ON_REQUEST
from chainsched.models.run_reports import describe_run as load_run_report
from chainsched.registry import WorkflowRef, registry
from chainsched.servers import get_server, known_pools

logger = logging.getLogger(__name__)

MAX_REASON = 200
# Of a number that fits the primary key.
MAX_DIGITS = 19

M = TypeVar("M", bound=Model)


def schedule(
    workflow: WorkflowRef, external_id: str, input: Any, schedule: Schedule | None, **options: Unpack[Options]
) -> Manifest:
    """Create or change a manifest; with None as its schedule it runs only when triggered."""
    found = declaration(workflow, external_id, input, schedule=schedule, depends_on=None, options=options)
    return _write([found])[0]


def schedule_once(
    workflow: WorkflowRef, external_id: str, input: Any, at: datetime, **options: Unpack[Options]
) -> Manifest:
    """Create or change a manifest that runs once, at this time; a new time lets one that is done run again."""
    return schedule(workflow, external_id, input, Once(at), **options)


def schedule_dependent(
    workflow: WorkflowRef,
    external_id: str,
    input: Any,
    *,
    depends_on: str | Sequence[str],
    **options: Any,
) -> Manifest:
    """Create or change a manifest that runs after another one, or as a join after several."""
    found = dependent(workflow, external_id, input, depends_on=depends_on, options=options)
    return _write([found])[0]


def schedule_many(
    workflow: WorkflowRef,
    name: str | None,
    items: Items,
    schedule: Schedule | None,
    *,
    prune: bool = False,
    **options: Unpack[Options],
) -> list[Manifest]:
    """Create or change a batch, all of it or none; with ``prune`` members that are no longer in it are retired."""
    stated = cast("DependentOptions", options)
    return _write_batch(Batch(workflow, name, items, schedule, None, False, stated), prune=prune)


def schedule_many_dependent(
    workflow: WorkflowRef, name: str | None, items: Items, *, prune: bool = False, **options: Unpack[DependentOptions]
) -> list[Manifest]:
    """Create or change a batch of dependents, all of it or none; each item names its parent."""
    return _write_batch(Batch(workflow, name, items, None, None, True, options), prune=prune)


def schedule_child(
    workflow: WorkflowRef, external_id: str, input: Any, *, parent: str, **options: Unpack[DependentOptions]
) -> Manifest:
    """Create a manifest that runs once, for the first later outcome of its parent that matches, and is then done."""
    found = one_time_child(workflow, external_id, input, parent=parent, options=options)
    add_one_time_child(found, origin=_origin(), now=database_now())
    return find(external_id)


def find(external_id: str) -> Manifest:
    """The manifest of this name; raises UnknownManifest."""
    manifest = _named(Manifest.objects.filter(external_id=external_id), external_id)
    if manifest is None:
        raise UnknownManifest(external_id)
    return manifest


def _named(rows: QuerySet[M], name: str) -> M | None:
    """The row of this name, which the database may refuse to look for if no row can have it."""
    return rows.first() if is_storable(name) else None


def find_execution(id_: str) -> Metadata:
    """The execution with this number or uuid; raises UnknownExecution."""
    try:
        wanted: dict[str, Any] = {"id": int(id_)} if id_.isdecimal() else {"external_id": UUID(id_)}
    except ValueError:
        raise UnknownExecution(id_) from None
    execution = Metadata.objects.filter(**wanted).first()
    if execution is None:
        raise UnknownExecution(id_)
    return execution


def find_group(name: str) -> ManifestGroup:
    """The group of this name; raises UnknownRow."""
    group = _named(ManifestGroup.objects.filter(name=name), name)
    if group is None:
        raise UnknownRow("group", name, "`chainsched status` lists them")
    return group


def find_row(id_: str) -> WorkQueue:
    """The queue row with this number; raises UnknownRow."""
    return _numbered(WorkQueue, "queue row", id_)


def find_run(id_: str) -> GraphRun:
    """The run with this number; raises UnknownRow."""
    return _numbered(GraphRun, "run", id_)


def list_runs(*, head: str | None = None, is_open: bool = False, limit: int = 20) -> list[GraphRun]:
    """The newest runs, of one head or of all; raises UnknownManifest for a head that does not exist."""
    runs = GraphRun.objects.open() if is_open else GraphRun.objects.all()
    if head is not None:
        runs = runs.filter(head=find(head))
    return list(runs.order_by("-id")[:limit])


def find_letter(id_: str) -> DeadLetter:
    """The dead letter with this number; raises UnknownRow."""
    return _numbered(DeadLetter, "dead letter", id_)


def find_bulk_decision(id_: str) -> BulkDecision:
    """The bulk decision with this number; raises UnknownRow."""
    return _numbered(BulkDecision, "bulk decision", id_)


def _numbered(model: type[M], kind: str, id_: str) -> M:
    number = int(id_) if id_.isdecimal() and len(id_) < MAX_DIGITS else 0
    row = model._default_manager.filter(pk=number).first()  # noqa: SLF001 - Django's own name for it
    if row is None:
        raise UnknownRow(kind, id_, "give the number that its page or list shows")
    return row


def trigger(manifest: Manifest, *, delay: timedelta | float | None = None, input: Any = OWN_INPUT) -> Answer:
    """Run a manifest now, after a delay, or, if it is busy, once more afterwards; the answer says which.

    Runs a disabled manifest too, but not one in a disabled group: there the request waits.
    """
    request = TriggerRequest(input=_checked_input(manifest.workflow, input), delay=check_delay(delay))
    # No manifest has the id 0, nor one that was never saved.
    answers = trigger_manifests({manifest.id or 0: request})
    if not answers:
        raise UnknownManifest(manifest.external_id)
    (answer,) = answers.values()
    logger.info("%s was triggered: %s.", manifest.external_id, answer.in_words)
    return answer


def trigger_many(
    manifests: Iterable[Manifest | str] | Mapping[Manifest | str, Any], *, delay: timedelta | float | None = None
) -> dict[str, Answer]:
    """Run these manifests, all of them or none; returns the answers by external id.

    They are given as rows or external ids. A mapping gives each an input, in place of its own.
    """
    wait, inputs = check_delay(delay), _inputs_by_name(manifests)
    found = _find_many(inputs)
    requests = {
        id_: TriggerRequest(_checked_input(workflow, inputs[name]), wait) for name, (id_, workflow) in found.items()
    }
    answers = trigger_all(requests, now=database_now())
    by_name = {name: answers[id_] for name, (id_, _) in found.items() if id_ in answers}
    logger.info("%d manifests were triggered: %s.", len(by_name), dict(Counter(by_name.values())))
    return by_name


def _inputs_by_name(manifests: Iterable[Manifest | str] | Mapping[Manifest | str, Any]) -> dict[str, Any]:
    if isinstance(manifests, str):
        raise InvalidInput(f"{manifests!r:.60} is one text; give a list of manifests or of their external ids.")
    given = manifests if isinstance(manifests, Mapping) else dict.fromkeys(manifests, OWN_INPUT)
    inputs = {}
    for item, own in given.items():
        if not isinstance(item, Manifest | str):
            raise InvalidInput(f"{item!r:.60} is no manifest and no external id of one.")
        inputs[item if isinstance(item, str) else item.external_id] = own
    return inputs


def _find_many(external_ids: Iterable[str]) -> dict[str, tuple[int, str]]:
    """The id and the workflow of each of these manifests; raises UnknownManifest for the first that does not exist."""
    wanted = list(external_ids)
    found: dict[str, tuple[int, str]] = {}
    for part in chunks(list(filter(is_storable, wanted))):
        rows = Manifest.objects.filter(external_id__in=part).values_list("external_id", "id", "workflow")
        found |= {name: (id_, workflow) for name, id_, workflow in rows}
    for name in wanted:
        if name not in found:
            raise UnknownManifest(name)
    return found


def activate(manifest: Manifest, input: Any = None) -> Answer:
    """Queue a run of a dormant child with this input, or its own; raises ActivationError if it is not dormant."""
    _check_exists(manifest)
    answer = activate_by_hand(manifest.id, input, now=database_now())
    logger.info("%s was to be activated: %s.", manifest.external_id, answer.in_words)
    return answer


def trigger_group(group: ManifestGroup) -> Counter[Answer]:
    """Run all enabled members of a group that have no parent; returns how many got which answer."""
    answers = trigger_members(group.pk, now=database_now())
    logger.info("Group %s was triggered: %s.", group.name, dict(answers))
    return answers


def explain(manifest: Manifest) -> Explanation:
    """Why a manifest is or is not running now, by the rules that the loops use."""
    now = database_now()
    _check_exists(manifest)
    return explain_manifest(manifest.id, pools=known_pools(now=now), now=now)


def health() -> Health:
    """Whether loops turn and processes live, by the database's clock."""
    now = database_now()
    return check_health(pools=get_server().pools(now=now), now=now)


def enable(manifest: Manifest) -> bool:
    """Let a manifest run again, from now; False if it could already."""
    _check_exists(manifest)
    return _log(bool(switch.enable([manifest.id], now=database_now())), "%s was enabled.", manifest)


def disable(manifest: Manifest) -> bool:
    """Let a manifest run only when triggered; False if it was off already."""
    _check_exists(manifest)
    return _log(bool(switch.disable([manifest.id], now=database_now())), "%s was disabled.", manifest)


def enable_group(group: ManifestGroup) -> bool:
    """Let a group's manifests run again, from now; False if they could already."""
    return _log(switch.enable_group(group.pk, now=database_now()), "Group %s was enabled.", group)


def disable_group(group: ManifestGroup) -> bool:
    """Let no manifest of a group be queued or dispatched; False if it was off already."""
    return _log(switch.disable_group(group.pk, now=database_now()), "Group %s was disabled.", group)


def set_limits(group: ManifestGroup, *, max_active_jobs: int | None, priority: int, queue: str | None = None) -> bool:
    """Set a group's limit, None for none, its priority and, if given, its queue, an empty name for none of its own.

    Rows that wait move. False if nothing changed.
    """
    if max_active_jobs is not None and not _is_number(max_active_jobs, low=1, high=MAX_COUNT):
        raise InvalidInput(
            f"A limit of {max_active_jobs!r:.60} is none; give a whole number from 1 to {MAX_COUNT}, or None for no "
            "limit. To let nothing run, disable the group."
        )
    if not _is_number(priority, low=0, high=MAX_PRIORITY):
        raise InvalidInput(f"A priority of {priority!r:.60} does not exist; give 0 to {MAX_PRIORITY}.")
    if queue:
        _check_queue(queue)
    changed = set_group_limits(group.pk, max_active_jobs=max_active_jobs, priority=priority, queue=queue)
    return _log(changed, "The limits of group %s were changed.", group)


def _check_queue(queue: str) -> None:
    try:
        check_queue(queue)
    except ValueError as error:
        raise InvalidInput(f"The name of a queue {error}; {queue!r:.60} is none.") from error


def cancel(manifest: Manifest, *, reason: str = ON_REQUEST) -> Cancelled:
    """Stop the queued or running work of a manifest; the occurrence is consumed and not retried."""
    _check_exists(manifest)
    cancelled = cancel_work([manifest.id], reason=_checked_reason(reason), now=database_now())
    logger.info("%s was cancelled: %s.", manifest.external_id, cancelled)
    return cancelled


def cancel_group(group: ManifestGroup, *, reason: str = ON_REQUEST) -> Cancelled:
    """Stop the queued or running work of all members of a group."""
    ids = list(Manifest.objects.filter(group=group).order_by("id").values_list("id", flat=True))
    cancelled = Cancelled()
    # Part by part, each in a transaction of its own: families overlap, so that locks over all of them could cross.
    for part in chunks(ids):
        cancelled += cancel_work(part, reason=_checked_reason(reason), now=database_now())
    logger.info("Group %s was cancelled: %s.", group.name, cancelled)
    return cancelled


def tree(execution: Metadata) -> QuerySet[Metadata]:
    """All executions of the tree that this one belongs to, the root included, oldest first: one query."""
    return Metadata.objects.tree(execution.tree_id)


def cancel_execution(execution: Metadata, *, tree: bool = False, reason: str = ON_REQUEST) -> Cancelled:
    """Stop an execution; with ``tree`` also what it led to: of the head of a run the whole run."""
    reason, now = _checked_reason(reason), database_now()
    if not tree:
        cancelled = stop_execution(execution.id, reason=reason, now=now)
    elif execution.run_id is not None and execution.parent_execution_id is None:
        cancelled = stop_run(execution.run_id, reason=reason, now=now)
    else:
        cancelled = cancel_below(execution.id, reason=reason, now=now)
    subject = f"Execution {execution.id}" + (" and what it led to" if tree else "")
    logger.info("%s was cancelled: %s.", subject, cancelled)
    return cancelled


def cancel_run(run: GraphRun, *, reason: str = ON_REQUEST) -> Cancelled:
    """Stop all work of a run, and let nothing more follow in it; items that also stand for other runs go on."""
    cancelled = stop_run(run.id, reason=_checked_reason(reason), now=database_now())
    logger.info("%s was cancelled: %s.", run, cancelled)
    return cancelled


def describe_run(run: GraphRun) -> RunReport:
    """How a run goes: its executions by state and workflow, what is open, and what its joins wait for."""
    # As it is now: an object that was loaded before a cancel says otherwise.
    return load_run_report(GraphRun.objects.filter(id=run.id).first() or run)


def executions_of_run(run: GraphRun) -> QuerySet[Metadata]:
    """The executions of a run, and those that stood for it besides another one, oldest first."""
    return Metadata.objects.of_run(run.id)


def explain_execution(execution: Metadata) -> Ancestry:
    """The causes of an execution, one after the other, up to the root."""
    return find_causes(execution.id)


def run_again(execution: Metadata) -> Answer:
    """Trigger the manifest of an execution with the input that it had; raises UnknownManifest if that is gone.

    The new run is the root of a new tree: it has no parent execution.
    """
    manifest = Manifest.objects.filter(id=execution.manifest_id or 0).first()
    if manifest is None:
        raise UnknownManifest(execution.manifest_external_id or f"of execution {execution.id}")
    return trigger(manifest, input=readable(execution.input))


def run_from_here(execution: Metadata) -> Answer:
    """Run the manifest of an execution once more in the same run of the graph, and let it go on from there.

    Joins that were decided without it get it as a late arrival. Refused while the manifest has an open item; raises
    UnknownManifest if it is gone, InvalidInput if the execution has no run of the graph that is left.
    """
    if not Manifest.objects.filter(id=execution.manifest_id or 0).exists():
        raise UnknownManifest(execution.manifest_external_id or f"of execution {execution.id}")
    answer = go_on_from(execution, now=database_now())
    logger.info("Execution %d was to run again in its run: %s.", execution.id, answer.in_words)
    return answer


def cancel_row(row: WorkQueue, *, reason: str = ON_REQUEST) -> bool:
    """Take a row out of the queue; the occurrence is consumed. False if it waits no longer."""
    cancelled = unqueue(row.id, reason=_checked_reason(reason), now=database_now())
    if cancelled:
        logger.info("Queue row %s was cancelled.", row.id)
    return cancelled


def bring_forward(row: WorkQueue) -> bool:
    """Let a row of the queue go at once, before all others of its priority; False if it waits no longer."""
    moved = prioritize(row.id, now=database_now())
    if moved:
        logger.info("Queue row %s was brought forward.", row.id)
    return moved


def explain_row(row: WorkQueue) -> Explanation:
    """Why a row of the queue waits, checked in the order of dispatch; or that it waits no longer."""
    now = database_now()
    return explain_waiting(row, pools=known_pools(now=now), now=now)


def remove(manifests: Iterable[int]) -> tuple[int, dict[str, int]]:
    """Remove manifests for good: queued rows are cancelled, letters are closed, history stays."""
    return remove_all(list(manifests), now=database_now())


def retry_letters(letters: Iterable[DeadLetter], *, by: Any = None, note: str = "") -> Resolved:
    """Queue another run for each dead letter; the answer names those it took effect on and why not on others."""
    return _decide(BulkDecisionVerb.RETRY, letters, LetterDecision(by=by, note=note))


def acknowledge_letters(letters: Iterable[DeadLetter], *, by: Any = None, note: str = "") -> Resolved:
    """Close dead letters without another run; the answer names those it took effect on and why not on others."""
    return _decide(BulkDecisionVerb.ACKNOWLEDGE, letters, LetterDecision(by=by, note=note))


def cancel_bulk_decision(bulk_decision: BulkDecision, *, reason: str = ON_REQUEST) -> bool:
    """Leave the remaining letters of a bulk decision undecided; False if it was over."""
    return stop_bulk_decision(bulk_decision.pk, reason=_checked_reason(reason), now=database_now())


def _decide(verb: BulkDecisionVerb, letters: Iterable[DeadLetter], decision: LetterDecision) -> Resolved:
    if not isinstance(decision.note, str) or not is_storable(decision.note):
        raise InvalidInput(f"A note is a text without NUL and half characters, not {decision.note!r:.60}.")
    ids = sorted({letter.id for letter in letters})
    resolved = Resolved()
    for part in chunks(ids):
        resolved += decide(verb, part, decision=decision, now=database_now())
    logger.info("%s: %s of %d dead letters.", decision.by or "The system", verb, len(resolved.done))
    return resolved


def _origin() -> Origin:
    return Origin(get_config().owner, is_declared=False)


def _write(declarations: Sequence[Declaration]) -> list[Manifest]:
    write_declarations(declarations, origin=_origin(), now=database_now())
    return _load(found.external_id for found in declarations)


def _write_batch(batch: Batch, *, prune: bool) -> list[Manifest]:
    declarations = list(batch.expand())
    written = _write(declarations)
    # In a transaction of its own: the rows it locks come before those that the batch has locked.
    if prune and batch.name:
        _prune(batch.name, keep={manifest.external_id for manifest in written})
    return written


def _prune(batch: str, *, keep: set[str]) -> None:
    """Retire members of a run-time batch that are no longer in it; an empty batch retires nothing."""
    if not keep:
        logger.warning("Batch %r came out empty; its members stay.", batch)
        return
    members = Manifest.objects.filter(batch=batch, owner=get_config().owner, is_declared=False, retired_at__isnull=True)
    gone = [id_ for id_, name in members.order_by("id").values_list("id", "external_id") if name not in keep]
    retire(gone, now=database_now())


def _load(external_ids: Iterable[str]) -> list[Manifest]:
    wanted = list(external_ids)
    found = {
        manifest.external_id: manifest
        for part in chunks(wanted)
        for manifest in Manifest.objects.filter(external_id__in=part).select_related("group", "state")
    }
    return [found[external_id] for external_id in wanted]


def _check_exists(manifest: Manifest) -> None:
    if not Manifest.objects.filter(pk=manifest.pk).exists():
        raise UnknownManifest(manifest.external_id)


def _checked_input(workflow: str, input: Any) -> Any:
    if input is OWN_INPUT:
        return input
    return registry.get(workflow).input_type.dump(input, max_bytes=get_config().max_input_bytes)


def _checked_reason(reason: str) -> str:
    """Refuse a reason that its column could not hold, before anything is stopped."""
    if not isinstance(reason, str):
        raise InvalidInput(f"A reason is a text, not {reason!r:.60}.")
    if len(reason) > MAX_REASON or not is_storable(reason):
        raise InvalidInput(
            f"A reason has at most {MAX_REASON} characters, no NUL and no half character; this one has {len(reason)}."
        )
    return reason


def _is_number(value: Any, *, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _log(changed: bool, message: str, thing: Manifest | ManifestGroup) -> bool:
    if changed:
        logger.info(message, thing)
    return changed
