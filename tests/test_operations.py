"""The table of operator verbs: each entry has its method, twin, action, permission and command."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable
from io import StringIO
from typing import Any

import pytest
from django.apps import apps
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.core.management import CommandError, call_command

from chainsched.domain.states import (
    BulkDecisionStatus,
    BulkDecisionVerb,
    DeadLetterStatus,
    ExecutionState,
    QueueStatus,
    ScheduleType,
)
from chainsched.flow.operate.bulk_decisions import request_bulk_decision
from chainsched.models import DeadLetter, GraphRun, JoinState, Manifest, WorkQueue
from chainsched.models.near import RUN_END
from chainsched.operations import OPERATIONS, PERMISSIONS, TARGETS, Instruction, Operation, apply_operation
from tests.factories import (
    NOW,
    make_dependent,
    make_execution,
    make_group,
    make_letter,
    make_manifest,
    make_queue_row,
)

EACH = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: f"{operation.target}-{operation.name}")

HAVING_AN_EFFECT_AGAIN = ("trigger", "run_again", "bring_forward")


def run(*arguments: str) -> tuple[int, str]:
    out = StringIO()
    try:
        call_command("chainsched", *arguments, stdout=out, no_color=True)
    except SystemExit as ended:
        return int(ended.code or 0), out.getvalue()
    return 0, out.getvalue()


@EACH
def test_the_model_has_the_method_and_its_async_twin(operation: Operation) -> None:
    model = TARGETS[operation.target].model
    assert inspect.getdoc(getattr(model, operation.name))
    assert inspect.iscoroutinefunction(getattr(model, f"a{operation.name}"))


@EACH
def test_the_page_has_the_action_with_the_permission(operation: Operation) -> None:
    page = admin.site.get_model_admin(TARGETS[operation.target].model)
    action: Any = getattr(page, operation.name)
    assert operation.name in (page.actions or ())
    assert action.allowed_permissions == [operation.permission]
    assert action.page_description == operation.label


@EACH
def test_the_permission_is_declared_by_a_model(operation: Operation) -> None:
    label, codename = PERMISSIONS[operation.permission].split(".")
    declared = {name for model in apps.get_app_config(label).get_models() for name, _ in model._meta.permissions}
    assert codename in declared


@pytest.fixture
def rows() -> dict[str, Any]:
    """A row for each operation to have an effect on, by target and name."""
    group = make_group("group")
    manifest = make_manifest("manifest", group=group, state={})
    running = make_execution(make_manifest(), state=ExecutionState.PENDING)
    tree = make_execution(make_manifest(), state=ExecutionState.PENDING)
    head = make_manifest(state={})
    make_dependent(head)
    began, under_way = (GraphRun.objects.create(head=head, scheduled_for=NOW, created_at=NOW) for _ in range(2))
    ends = [JoinState.objects.create(run=run, join_id=RUN_END, open=run == under_way) for run in (began, under_way)]
    over = make_execution(head, state=ExecutionState.COMPLETED, run_id=began.pk, tokens=[ends[0].pk])
    make_execution(make_manifest(state={}), run_id=under_way.pk, tokens=[ends[1].pk], has_tokens=True)
    busy = make_group("busy")
    make_queue_row(make_manifest(group=busy, state={}))
    letters = [make_letter(make_manifest(state={})) for _ in range(3)]
    asker = User.objects.create_user("asker")
    bulk = request_bulk_decision(BulkDecisionVerb.RETRY, [letters[2].pk], by=asker, note="", selection="", now=NOW)
    return {
        "manifest-trigger": manifest,
        "manifest-enable": make_manifest(is_enabled=False, state={}),
        "manifest-disable": make_manifest(state={}),
        "manifest-activate": make_dependent(manifest, schedule_type=ScheduleType.DORMANT_DEPENDENT),
        "manifest-cancel": make_queue_row(make_manifest(state={})).manifest,
        "group-trigger": group,
        "group-enable": make_group(is_enabled=False),
        "group-disable": make_group(),
        "group-set_limits": make_group(),
        "group-cancel": busy,
        "execution-cancel": running,
        "execution-cancel_tree": tree,
        "execution-run_again": make_execution(make_manifest(state={}), state=ExecutionState.COMPLETED),
        "execution-run_from_here": over,
        "run-cancel": under_way,
        "row-bring_forward": make_queue_row(make_manifest(state={}), not_before=NOW),
        "row-cancel": make_queue_row(make_manifest(state={})),
        "letter-retry": letters[0],
        "letter-acknowledge": letters[1],
        "bulk_decision-cancel": bulk,
    }


def is_queued(**columns: Any) -> bool:
    return WorkQueue.objects.queued().filter(**columns).exists()


# Whether the rows show that the operation was carried out.
EFFECTS: dict[str, Callable[[Any], bool]] = {
    "manifest-trigger": lambda row: is_queued(manifest=row),
    "manifest-enable": lambda row: row.is_enabled,
    "manifest-disable": lambda row: not row.is_enabled,
    "manifest-activate": lambda row: is_queued(manifest=row),
    "manifest-cancel": lambda row: not is_queued(manifest=row),
    "group-trigger": lambda row: is_queued(group=row),
    "group-enable": lambda row: row.is_enabled,
    "group-disable": lambda row: not row.is_enabled,
    "group-set_limits": lambda row: row.max_active_jobs == 7,
    "group-cancel": lambda row: not is_queued(group=row),
    "execution-cancel": lambda row: row.state == ExecutionState.CANCELLED,
    "execution-cancel_tree": lambda row: row.state == ExecutionState.CANCELLED,
    "execution-run_again": lambda row: is_queued(manifest=row.manifest_id),
    "execution-run_from_here": lambda row: is_queued(manifest=row.manifest_id, run=row.run_id, is_again=True),
    "run-cancel": lambda row: row.cancelled_at is not None,
    "row-bring_forward": lambda row: row.not_before is None,
    "row-cancel": lambda row: row.status == QueueStatus.CANCELLED,
    "letter-retry": lambda row: row.status == DeadLetterStatus.RETRIED,
    "letter-acknowledge": lambda row: row.status == DeadLetterStatus.ACKNOWLEDGED,
    "bulk_decision-cancel": lambda row: row.status == BulkDecisionStatus.CANCELLED,
}


def has_changed(operation: Operation, row: Any) -> bool:
    return EFFECTS[f"{operation.target}-{operation.name}"](type(row).objects.get(pk=row.pk))


def arguments_of(operation: Operation, row: Any) -> list[str]:
    name = {"manifest": "external_id", "group": "name"}.get(operation.target, "pk")
    is_plain = operation.target == "manifest" or len({o.target for o in OPERATIONS if o.name == operation.name}) == 1
    option = [] if is_plain else [f"--{operation.target.replace('_', '-')}"]
    limits = ["--max-active-jobs", "7"] if operation.name == "set_limits" else []
    return [*option, str(getattr(row, name)), *limits, "--reason", "because"]


@pytest.mark.django_db
@EACH
def test_the_command_does_it_and_writes_the_history(operation: Operation, rows: dict[str, Any]) -> None:
    row = rows[f"{operation.target}-{operation.name}"]
    anna = User.objects.create_user("anna")
    code, printed = run(operation.command, *arguments_of(operation, row), "--by", "anna")
    assert code == 0, printed
    assert has_changed(operation, row)
    (entry,) = LogEntry.objects.filter(object_id=str(row.pk), user=anna)
    assert entry.change_message.startswith(f"{operation.did}: ")
    assert "Reason: because." in entry.change_message


@pytest.mark.django_db
@pytest.mark.parametrize(
    "operation",
    [known for known in OPERATIONS if known.name not in HAVING_AN_EFFECT_AGAIN],
    ids=lambda operation: f"{operation.target}-{operation.name}",
)
def test_a_second_time_says_that_it_had_no_effect(operation: Operation, rows: dict[str, Any]) -> None:
    """Nor has it an entry in the history: the change is that of the first user."""
    row = rows[f"{operation.target}-{operation.name}"]
    first, second = (User.objects.create_user(name) for name in ("anna", "berta"))
    run(operation.command, *arguments_of(operation, row), "--by", "anna")
    code, printed = run(operation.command, *arguments_of(operation, row), "--json", "--by", "berta")
    assert code == 1
    (outcome,) = json.loads(printed)
    assert outcome["has_effect"] is False
    assert outcome["outcome"]
    assert LogEntry.objects.filter(object_id=str(row.pk), user=first).count() == 1
    assert not LogEntry.objects.filter(user=second).exists()


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["retry", "999"], "no dead letter '999'"),
        (["retry", "9" * 30], "no dead letter"),
        (["cancel", "--row", "x"], "no queue row 'x'"),
        (["cancel", "--bulk-decision", "1"], "no bulk decision '1'"),
        (["enable", "--group", "nobody"], "no group 'nobody'"),
        (["enable", "known", "unknown"], "no manifest 'unknown'"),
        (["enable", "known", "--by", "nobody"], "no user 'nobody'"),
        (["acknowledge", "1"], "--reason"),
        (["cancel", "known", "--reason", "x" * 201], "200"),
        (["set-limits", "etl", "--max-active-jobs", "0"], "below 1"),
        (["set-limits", "etl", "--priority", "32"], "0 to 31"),
        (["set-limits", "etl", "--priority", "9" * 5000], "above 2147483647"),
        (["set-limits", "etl", "--max-active-jobs", "9" * 12], "above 2147483647"),
        (["set-limits", "etl", "--max-active-jobs", "1000001"], "from 1 to 1000000"),
        (["trigger", "known", "--delay", "nan"], "not a number of seconds"),
        (["trigger", "known", "--delay", "1e300"], "not a number of seconds"),
        (["runs", "--limit", "9" * 30], "above 2147483647"),
        (["cleanup", "--older-than", "nan"], "not a number of days"),
        (["cancel", "--execution", "9" * 5000], "no execution"),
        (["enable"], "required"),
        (["enable", "known", "--group", "etl"], "not allowed with"),
    ],
)
def test_bad_input_is_named_and_changes_nothing(arguments: list[str], words: str) -> None:
    make_manifest("known", group=make_group("etl"), is_enabled=False)
    with pytest.raises(CommandError, match=words):
        run(*arguments)
    assert not Manifest.objects.enabled().exists()


@pytest.mark.django_db
def test_a_row_that_is_refused_keeps_no_other_from_its_turn() -> None:
    plain = make_manifest("plain", state={})
    dormant = make_dependent(plain, "dormant", schedule_type=ScheduleType.DORMANT_DEPENDENT)
    code, printed = run("activate", "plain", "dormant", "--json")
    assert code == 2
    assert [(each["manifest"], each["code"], each["has_effect"]) for each in json.loads(printed)] == [
        ("plain", "refused", False),
        ("dormant", "queued", True),
    ]
    assert is_queued(manifest=dormant)


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([], "it starts nothing: it has no members"),
        ([{"is_enabled": False}] * 2, "it starts nothing: of its members 2 disabled"),
        (
            [{"is_enabled": False}, {"retired_at": NOW}, {"schedule_type": ScheduleType.DORMANT_DEPENDENT}],
            "it starts nothing: of its members 1 disabled, 1 no longer declared, 1 running after others",
        ),
    ],
)
def test_a_group_of_which_no_member_starts_says_why(members: list[dict[str, Any]], why: str) -> None:
    group, parent = make_group("etl"), make_manifest()
    for columns in members:
        if "schedule_type" in columns:
            make_dependent(parent, group=group, **columns)
        else:
            make_manifest(group=group, state={}, **columns)
    assert run("trigger", "--group", "etl") == (1, f"etl: {why}.\n")
    assert not WorkQueue.objects.exists()


@pytest.mark.django_db
def test_a_group_whose_members_all_await_a_decision_says_so() -> None:
    make_letter(make_manifest(group=make_group("etl"), state={}))
    code, printed = run("trigger", "--group", "etl")
    assert code == 1
    assert "1 not run: a dead letter awaits a decision" in printed


@pytest.mark.django_db
def test_a_group_of_which_one_member_was_queued_was_triggered() -> None:
    group = make_group("etl")
    make_manifest(group=group, state={})
    make_letter(make_manifest(group=group, state={}))
    code, printed = run("trigger", "--group", "etl")
    assert code == 0
    assert "1 queued" in printed
    assert "dead letter" in printed


@pytest.mark.django_db
def test_letters_that_failed_alike_are_decided_about_together() -> None:
    alike = [make_letter(make_manifest(state={}), fingerprint="5f1c0000") for _ in range(2)]
    other = make_letter(make_manifest(state={}), fingerprint="aa")
    assert run("retry", "--fingerprint", "5f1c")[0] == 0
    assert set(DeadLetter.objects.awaiting()) == {other}
    assert run("acknowledge", "--all", "--reason", "done by hand")[0] == 0
    assert not DeadLetter.objects.awaiting().exists()
    assert DeadLetter.objects.get(pk=alike[0].pk).status == DeadLetterStatus.RETRIED


@pytest.mark.django_db
def test_nothing_to_decide_about_needs_attention() -> None:
    assert run("retry", "--all") == (1, "")


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["limits", "set_limits", "set-limits"])
def test_verbs_may_be_spelled_with_underscores(name: str) -> None:
    group = make_group("etl", priority=3)
    assert run(name, "etl", "--max-active-jobs", "4") == (0, "etl: changed.\n")
    assert run(name, "etl", "--max-active-jobs", "none") == (0, "etl: changed.\n")
    group.refresh_from_db()
    assert (group.max_active_jobs, group.priority) == (None, 3)


@pytest.mark.django_db
def test_a_decision_of_a_view_is_in_the_history_as_one_of_the_page() -> None:
    letter, anna = make_letter(make_manifest(state={})), User.objects.create_user("anna")
    letter.retry(by=anna, note="the partner is back")
    (entry,) = LogEntry.objects.filter(object_id=str(letter.pk))
    assert entry.change_message == (
        "Retried: queued once more. Before: status awaiting_intervention. After: status retried. "
        "Reason: the partner is back."
    )


@pytest.mark.django_db
def test_without_a_user_there_is_no_history() -> None:
    (operation,) = [known for known in OPERATIONS if (known.target, known.name) == ("manifest", "disable")]
    outcome = apply_operation(operation, make_manifest(), Instruction())
    assert outcome.in_words == "disabled"
    assert not LogEntry.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_a_twin_calls_the_method_of_its_own_class() -> None:
    manifest = make_manifest(state={})
    assert asyncio.run(manifest.adisable()) is True
    manifest.refresh_from_db()
    assert manifest.is_enabled is False
