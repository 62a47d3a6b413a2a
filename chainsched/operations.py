"""The one table of operator verbs: the actions on a row, on its page, by a method and on the command line.

An entry gives the admin its action, its question and its permission, ``manage.py chainsched`` its verb, the history
of the row its words and the documentation its line. The method of the same name, and its async twin, are in
``models/model_methods.py``; a test holds all of them together. CONTRIBUTING.md has the recipe for a new verb.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import models

from chainsched import api, history
from chainsched.domain.inputs import OWN_INPUT
from chainsched.domain.results import Answer, Cancelled, Resolved
from chainsched.domain.states import (
    ACTIVE_STATES,
    OPEN_BULK_DECISIONS,
    QueueStatus,
    ScheduleType,
)
from chainsched.models import BulkDecision, DeadLetter, GraphRun, Manifest, ManifestGroup, Metadata, WorkQueue
from chainsched.models.manifest_facts import load_open_items
from chainsched.models.model_methods import ON_REQUEST

# The permission of each verb, by the short name that pages ask for as ``has_<name>_permission``.
PERMISSIONS = {
    "trigger": "chainsched.trigger_manifest",
    "activate": "chainsched.activate_manifest",
    "switch": "chainsched.switch_manifest",
    "cancel": "chainsched.cancel_manifest",
    "limit": "chainsched.limit_manifestgroup",
    "retry": "chainsched.retry_deadletter",
    "acknowledge": "chainsched.acknowledge_deadletter",
}


@dataclass(frozen=True, slots=True)
class Instruction:
    """Who asks for an operation, why, and the answers to its further questions."""

    by: Any = None
    reason: str = ""
    details: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OperationResult:
    """The result of an operation on one row, in words; without an effect it is shown as a warning."""

    in_words: str
    has_effect: bool = True
    code: str = ""


def _columns(*columns: str) -> Callable[[Any], str]:
    def describe(row: Any) -> str:
        found = type(row).objects.filter(pk=row.pk).values(*columns).first()
        return ", ".join(f"{column} {value}" for column, value in found.items()) if found else "gone"

    return describe


def _describe_manifest(manifest: Manifest) -> str:
    columns = _columns("is_enabled", "state__next_run_at", "state__trigger_at")(manifest)
    return f"{columns}, open {load_open_items([manifest.pk]).get(manifest.pk) or 'nothing'}"


@dataclass(frozen=True, slots=True)
class Target:
    """A kind of row that operators act on. ``describe`` is the state of a row at this moment, for its history."""

    name: str
    model: type[models.Model]
    find: Callable[[str], Any]
    # The help of the command's argument, and the name of a row that ``find`` takes.
    naming: str
    name_of: Callable[[Any], str]
    describe: Callable[[Any], str]

    @property
    def words(self) -> str:
        return self.name.replace("_", " ")


def _number(row: Any) -> str:
    return str(row.pk)


TARGETS = {
    target.name: target
    for target in (
        Target(
            "manifest",
            Manifest,
            api.find,
            "The manifest's external id.",
            lambda manifest: str(manifest.external_id),
            _describe_manifest,
        ),
        Target(
            "group",
            ManifestGroup,
            api.find_group,
            "The group's name.",
            lambda group: str(group.name),
            _columns("is_enabled", "max_active_jobs", "priority", "queue"),
        ),
        Target(
            "execution",
            Metadata,
            api.find_execution,
            "The execution's number or uuid.",
            _number,
            _columns("state", "cancel_requested"),
        ),
        Target(
            "row",
            WorkQueue,
            api.find_row,
            "The number of the queue row.",
            _number,
            _columns("status", "not_before", "priority", "turn"),
        ),
        Target(
            "run",
            GraphRun,
            api.find_run,
            "The number of the run.",
            _number,
            _columns("closed_at", "cancelled_at"),
        ),
        Target("letter", DeadLetter, api.find_letter, "The number of the dead letter.", _number, _columns("status")),
        Target(
            "bulk_decision",
            BulkDecision,
            api.find_bulk_decision,
            "The number of the bulk decision.",
            _number,
            _columns("status", "done_count", "skipped_count"),
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Operation:
    """One verb for one kind of row. ``perform`` calls the method and says how it ended."""

    target: str
    name: str
    label: str
    did: str
    permission: str
    summary: str
    perform: Callable[[Any, Instruction], OperationResult]
    # The permission in words, where a page asks for another one than the entry names.
    permission_in_words: str = ""
    # The label for several rows that were selected in a list; empty where it is offered for one row only.
    plural: str = ""
    # Further questions: fields of the form and options of the command.
    asks: Sequence[str] = ()
    needs_reason: bool = False
    # Shown before it is done: the consequences.
    warning: str = ""
    # Whether the page of a row offers it.
    is_fitting: Callable[[Any], bool] = lambda _row: True
    # The stage behind it writes the history itself, with the same words for few rows and for many.
    writes_own_history: bool = False

    @property
    def command(self) -> str:
        """The verb of ``manage.py chainsched``."""
        return self.name.replace("_", "-")

    @property
    def docs_line(self) -> str:
        """Its line in the reference."""
        permission = self.permission_in_words or f"`{PERMISSIONS[self.permission]}`"
        return f"| `{self.command}` | {TARGETS[self.target].words} | {self.summary} | {permission} |"


def operations_of(target: str) -> dict[str, Operation]:
    """The operations on this kind of row, by name."""
    return {operation.name: operation for operation in OPERATIONS if operation.target == target}


def apply_operation(operation: Operation, row: Any, instruction: Instruction) -> OperationResult:
    """Do it to one row and, if it had an effect and a user is named, write the history of the row."""
    if operation.writes_own_history:
        return operation.perform(row, instruction)
    describe = TARGETS[operation.target].describe
    before = describe(row)
    outcome = operation.perform(row, instruction)
    if not outcome.has_effect:
        # Of two users who do the same at once one has the effect, and the change of state is that user's.
        return outcome
    entry = history.describe(
        operation.did,
        outcome.in_words,
        before=before,
        after=describe(row),
        reason=instruction.reason,
        details=history.describe_details(instruction.details),
    )
    history.write({entry: [row]}, user=instruction.by)
    return outcome


def _answered(answer: Answer) -> OperationResult:
    return OperationResult(answer.in_words, has_effect=not answer.is_refusal, code=answer.value)


def _stopped(found: Cancelled) -> OperationResult:
    if not found.total:
        return OperationResult("nothing was left to stop", has_effect=False)
    return OperationResult(f"stopped {found.queued} queued, {found.pending} pending and {found.running} running")


def _resolved(found: Resolved, done: str) -> OperationResult:
    return OperationResult(done) if found.done else OperationResult("; ".join(found.skipped.values()), has_effect=False)


def _if(is_done: bool, done: str, otherwise: str) -> OperationResult:
    return OperationResult(done) if is_done else OperationResult(otherwise, has_effect=False)


def _trigger(manifest: Manifest, instruction: Instruction) -> OperationResult:
    asked = instruction.details
    return _answered(manifest.trigger(asked.get("delay"), input=asked.get("input", OWN_INPUT)))


def _trigger_group(group: ManifestGroup, _instruction: Instruction) -> OperationResult:
    answers = group.trigger()
    counted = "; ".join(f"{number} {answer.in_words}" for answer, number in answers.items())
    if not counted:
        return OperationResult(f"it starts nothing: {_why_none_starts(group)}", has_effect=False)
    return OperationResult(counted, has_effect=any(_answered(answer).has_effect for answer in answers))


def _why_none_starts(group: ManifestGroup) -> str:
    """Why a trigger passes over all members of a group, with their numbers."""
    members = Manifest.objects.filter(group=group)
    retired = members.filter(retired_at__isnull=False).count()
    disabled = members.filter(is_enabled=False, retired_at__isnull=True).count()
    dependents = members.count() - retired - disabled
    reasons = ((disabled, "disabled"), (retired, "no longer declared"), (dependents, "running after others"))
    listed = ", ".join(f"{number} {reason}" for number, reason in reasons if number)
    return f"of its members {listed}" if listed else "it has no members"


def _set_limits(group: ManifestGroup, instruction: Instruction) -> OperationResult:
    """Questions without an answer leave the value as it is."""
    current = {"max_active_jobs": group.max_active_jobs, "priority": group.priority, "queue": group.queue}
    return _if(group.set_limits(**{**current, **instruction.details}), "changed", "nothing to change")


def _cancel(row: Any, instruction: Instruction) -> OperationResult:
    return _stopped(row.cancel(reason=instruction.reason or ON_REQUEST))


def _cancel_tree(execution: Metadata, instruction: Instruction) -> OperationResult:
    return _stopped(execution.cancel_tree(reason=instruction.reason or ON_REQUEST))


def _cancel_row(row: WorkQueue, instruction: Instruction) -> OperationResult:
    return _if(row.cancel(reason=instruction.reason or ON_REQUEST), "cancelled", "it waited no longer")


def _cancel_bulk_decision(bulk_decision: BulkDecision, instruction: Instruction) -> OperationResult:
    is_cancelled = bulk_decision.cancel(reason=instruction.reason or ON_REQUEST)
    return _if(is_cancelled, "cancelled; decisions already made stay", "it was over")


def _retry(letter: DeadLetter, instruction: Instruction) -> OperationResult:
    return _resolved(letter.retry(by=instruction.by, note=instruction.reason), "queued once more")


def _acknowledge(letter: DeadLetter, instruction: Instruction) -> OperationResult:
    return _resolved(letter.acknowledge(by=instruction.by, note=instruction.reason), "acknowledged")


def _is_queued(row: WorkQueue) -> bool:
    return row.status == QueueStatus.QUEUED


OPERATIONS = (
    Operation(
        "manifest",
        "trigger",
        "Trigger",
        "Triggered",
        "trigger",
        "Run it now or after a delay; if it is busy, once more afterwards.",
        _trigger,
        plural="Trigger selected manifests",
        asks=("delay", "input"),
    ),
    Operation(
        "manifest",
        "enable",
        "Enable",
        "Enabled",
        "switch",
        "Let it run by itself again, from now.",
        lambda manifest, _: _if(manifest.enable(), "enabled", "it was enabled already"),
        plural="Enable selected manifests",
        is_fitting=lambda manifest: not manifest.is_enabled,
    ),
    Operation(
        "manifest",
        "disable",
        "Disable",
        "Disabled",
        "switch",
        "Let it run only when triggered.",
        lambda manifest, _: _if(manifest.disable(), "disabled", "it was disabled already"),
        plural="Disable selected manifests",
        warning="It runs only when triggered until it is enabled again, and so do those that depend on it.",
        is_fitting=lambda manifest: manifest.is_enabled,
    ),
    Operation(
        "manifest",
        "activate",
        "Activate",
        "Activated",
        "activate",
        "Run a dormant child with an input that the operator gives.",
        lambda manifest, instruction: _answered(manifest.activate(instruction.details.get("input"))),
        asks=("input",),
        is_fitting=lambda manifest: manifest.schedule_type == ScheduleType.DORMANT_DEPENDENT,
    ),
    Operation(
        "manifest",
        "cancel",
        "Cancel",
        "Cancelled",
        "cancel",
        "Stop its queued row, or its pending or running execution.",
        _cancel,
        plural="Cancel the open work of selected manifests",
        warning="Its queued, pending or running work is stopped. It is not retried and not made up for.",
    ),
    Operation(
        "group",
        "trigger",
        "Trigger",
        "Triggered",
        "trigger",
        "Run all enabled members that depend on no other manifest.",
        _trigger_group,
        plural="Trigger selected groups",
    ),
    Operation(
        "group",
        "enable",
        "Enable",
        "Enabled",
        "switch",
        "Let its manifests run again, from now.",
        lambda group, _: _if(group.enable(), "enabled", "it was enabled already"),
        plural="Enable selected groups",
        is_fitting=lambda group: not group.is_enabled,
    ),
    Operation(
        "group",
        "disable",
        "Disable",
        "Disabled",
        "switch",
        "Let none of its work be queued or dispatched.",
        lambda group, _: _if(group.disable(), "disabled", "it was disabled already"),
        plural="Disable selected groups",
        warning="None of its work is queued or dispatched until it is enabled again; running jobs go on.",
        is_fitting=lambda group: group.is_enabled,
    ),
    Operation(
        "group",
        "set_limits",
        "Change limits",
        "Changed limits",
        "limit",
        "Change how many of its jobs may be active at once, its priority, and the queue that workers take them from.",
        _set_limits,
        asks=("max_active_jobs", "priority", "queue"),
    ),
    Operation(
        "group",
        "cancel",
        "Cancel running",
        "Cancelled running",
        "cancel",
        "Stop the open work of all its members.",
        _cancel,
        plural="Cancel the open work of selected groups",
        warning="All queued, pending or running work of its manifests is stopped and not made up for.",
    ),
    Operation(
        "execution",
        "cancel",
        "Cancel",
        "Cancelled",
        "cancel",
        "Stop it before it begins, or ask it to stop.",
        _cancel,
        plural="Cancel selected executions",
        warning="It is asked to stop, or never begins. It is not retried and not made up for.",
        is_fitting=lambda execution: execution.state in ACTIVE_STATES,
    ),
    Operation(
        "execution",
        "cancel_tree",
        "Cancel tree",
        "Cancelled tree",
        "cancel",
        "Stop it and what it led to; of the head of a run the whole run.",
        _cancel_tree,
        warning="It and what it led to is stopped, and no dependent runs for it; of the head of a run the whole run.",
    ),
    Operation(
        "execution",
        "run_again",
        "Run again",
        "Ran again",
        "trigger",
        "Trigger its manifest with the input that it had.",
        lambda execution, _: _answered(execution.run_again()),
        plural="Run selected executions again",
        warning="Its manifest is triggered with the input that this execution had.",
        is_fitting=lambda execution: execution.manifest_id is not None,
    ),
    Operation(
        "execution",
        "run_from_here",
        "Run again from here",
        "Ran again from here",
        "trigger",
        "Run its manifest once more in the same run of the graph, and go on from there.",
        lambda execution, _: _answered(execution.run_from_here()),
        warning="Its manifest and what follows from it run once more in the same run; for joins it arrives late.",
        is_fitting=lambda execution: execution.run_id is not None and execution.state not in ACTIVE_STATES,
    ),
    Operation(
        "run",
        "cancel",
        "Cancel",
        "Cancelled",
        "cancel",
        "Stop all its work; nothing more follows in it.",
        _cancel,
        plural="Cancel selected runs",
        warning="All its work is stopped and nothing more follows in it; work that stands for another run too goes on.",
        is_fitting=lambda run: run.state == "open",
    ),
    Operation(
        "row",
        "bring_forward",
        "Bring forward",
        "Brought forward",
        "trigger",
        "Dispatch it at once, before all others of its priority.",
        lambda row, _: _if(row.bring_forward(), "brought forward", "it waited no longer"),
        plural="Bring selected rows forward",
        warning="It goes at once and before all others of its priority, as far as limits and its group allow.",
        is_fitting=_is_queued,
    ),
    Operation(
        "row",
        "cancel",
        "Cancel",
        "Cancelled",
        "cancel",
        "Take it out of the queue.",
        _cancel_row,
        plural="Cancel selected rows",
        warning="It never runs, and its occurrence is not made up for.",
        is_fitting=_is_queued,
    ),
    Operation(
        "letter",
        "retry",
        "Retry",
        "Retried",
        "retry",
        "Queue another run with the input of the one that failed.",
        _retry,
        plural="Retry selected dead letters",
        warning="Another run is queued with the input of the one that failed; failures are counted from zero.",
        is_fitting=lambda letter: letter.is_awaiting,
        writes_own_history=True,
    ),
    Operation(
        "letter",
        "acknowledge",
        "Acknowledge",
        "Acknowledged",
        "acknowledge",
        "Close it without another run.",
        _acknowledge,
        plural="Acknowledge selected dead letters",
        needs_reason=True,
        warning="It is closed without another run, and the schedule goes on from now. This cannot be taken back.",
        is_fitting=lambda letter: letter.is_awaiting,
        writes_own_history=True,
    ),
    Operation(
        "bulk_decision",
        "cancel",
        "Cancel",
        "Cancelled",
        "cancel",
        "Leave its remaining dead letters undecided.",
        _cancel_bulk_decision,
        permission_in_words="that of its verb, `chainsched.retry_deadletter` or `chainsched.acknowledge_deadletter`",
        plural="Cancel selected bulk decisions",
        warning="No further letter is decided about. Decisions already made stay.",
        is_fitting=lambda bulk_decision: bulk_decision.status in OPEN_BULK_DECISIONS,
    ),
)
