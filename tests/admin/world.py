"""Rows of every kind for the admin to show, six kinds of users, and the addresses of all pages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.contrib.contenttypes.models import ContentType
from django.db.models import Model
from django.test import Client
from django.urls import reverse

from chainsched.domain.states import ExecutionState, ScheduleType
from chainsched.models import (
    BulkDecision,
    BulkDecisionItem,
    DeadLetter,
    GraphRun,
    Manifest,
    ManifestGroup,
    Metadata,
    NamedLock,
    Process,
    WorkQueue,
)
from tests.factories import (
    NOW,
    make_dependent,
    make_execution,
    make_group,
    make_letter,
    make_manifest,
    make_process,
    make_queue_row,
)

MODELS: tuple[Any, ...] = (
    GraphRun,
    DeadLetter,
    BulkDecision,
    BulkDecisionItem,
    NamedLock,
    Manifest,
    ManifestGroup,
    Metadata,
    Process,
    WorkQueue,
)
GONE = 987_654
CANARY = "hunter2"
# A part of the reasons of failures.
REASON = "row 17 of marigold"
PAYLOAD = {"table": CANARY, "nested": {"password": "swordfish"}}

VERBS = {
    "trigger_manifest",
    "activate_manifest",
    "switch_manifest",
    "cancel_manifest",
    "retry_deadletter",
    "acknowledge_deadletter",
}
ROLES = {
    "viewer": set[str](),
    "operator": VERBS,
    "manager": VERBS | {"limit_manifestgroup", "view_payloads"},
}


def make_world(name: str = "Extract", *, gone: int = GONE) -> Manifest:
    """A manifest with everything that may hang on it; what refers to others also with references to what is gone."""
    group = make_group(name)
    parent = make_manifest(name, group=group, workflow="testapp.copy", input=PAYLOAD)
    parent.state.trigger_at, parent.state.trigger_input = NOW, PAYLOAD
    parent.state.save()
    make_dependent(parent, f"{name} child", group=group, workflow="testapp.ping")
    dormant = {"schedule_type": ScheduleType.DORMANT_DEPENDENT, "workflow": "testapp.copy"}
    make_dependent(parent, f"{name} dormant", group=group, **dormant)
    process = make_process()
    NamedLock.objects.create(name=f"{name}"[:40], turned_at=NOW)
    for manifest_id, process_id in ((parent.id, process.id), (gone, gone)):
        failed = _failed(name, manifest_id, process_id, group_id=group.id)
        make_execution(parent_execution_id=failed.id, root_execution_id=failed.id, state=ExecutionState.COMPLETED)
        columns = {"manifest_id": manifest_id, "group_id": group.id, "manifest_external_id": name, "input": PAYLOAD}
        make_queue_row(**columns, parent_execution_id=gone, dead_letter_id=gone)
        make_letter(manifest_id=manifest_id, execution_id=failed.id, fingerprint="abc", reason=f"gave up: {REASON}")
        _make_runs(name, manifest_id)
        bulk_decision = BulkDecision.objects.create(verb="retry", total=2, note="back up", created_at=NOW)
        for letter_id, outcome in ((failed.id, "skipped"), (gone, "waiting")):
            at = None if outcome == "waiting" else NOW
            BulkDecisionItem.objects.create(
                bulk_decision=bulk_decision, dead_letter_id=letter_id, outcome=outcome, decided_at=at
            )
    return parent


def _make_runs(name: str, head_id: int) -> None:
    """A run that is open, one that is closed, and one that was cancelled."""
    over: dict[str, Any] = {"closed_at": NOW}
    stated: list[dict[str, Any]] = [{}, over, {**over, "cancelled_at": NOW, "cancel_reason": "not needed"}]
    for columns in stated:
        GraphRun.objects.create(head_id=head_id, head_external_id=name, scheduled_for=NOW, created_at=NOW, **columns)


def _failed(name: str, manifest_id: int, process_id: int, *, group_id: int) -> Metadata:
    return make_execution(
        manifest_id=manifest_id,
        group_id=group_id,
        process_id=process_id,
        work_queue_id=GONE,
        manifest_external_id=name,
        workflow="testapp.copy",
        state=ExecutionState.FAILED,
        input=PAYLOAD,
        output=PAYLOAD,
        progress=PAYLOAD,
        failure_type="ValueError",
        failure_reason=f"{REASON} is broken",
        failure_fingerprint="f1a2b3",
        failure_traceback=f"ValueError: {CANARY} password=swordfish",
        started_at=NOW,
        claimed_at=NOW,
        is_tree_cancelled=True,
    )


def make_user(role: str) -> User:
    """A user of one of the six kinds; all but the first are staff and, from the viewer on, may look at everything."""
    if role == "superuser":
        return User.objects.create_superuser(role, password=role)
    user = User.objects.create_user(role, password=role, is_staff=True)
    if role in ROLES:
        ours = Permission.objects.filter(content_type__app_label="chainsched")
        seeing = ours.filter(codename__startswith="view_").exclude(codename="view_payloads")
        user.user_permissions.set([*seeing, *ours.filter(codename__in=ROLES[role])])
    return user


def client_of(role: str, **options: Any) -> Client:
    """A browser in which a user of this kind is logged in; nobody for ``anonymous``.

    The server has answered others before: Django looks content types up once in a process.
    """
    ContentType.objects.get_for_models(*apps.get_models())
    client = Client(**options)
    if role != "anonymous":
        client.force_login(User.objects.filter(username=role).first() or make_user(role))
    return client


def url_of(model: type[Model], view: str, *args: Any) -> str:
    return reverse(f"admin:chainsched_{model._meta.model_name}_{view}", args=args)


def pages_of(model: Any, view: str = "change") -> Iterator[str]:
    """The address of this view for every row of a model."""
    for pk in model.objects.values_list("pk", flat=True):
        yield url_of(model, view, pk)


def list_of(model: Any) -> str:
    """The address of a list that hides no row."""
    is_narrowed = model in (WorkQueue, DeadLetter)
    return url_of(model, "changelist") + ("?status=all" if is_narrowed else "")


def every_page() -> Iterator[str]:
    """The address of everything that can be looked at."""
    yield reverse("admin:index")
    yield reverse("admin:app_list", args=["chainsched"])
    yield url_of(ManifestGroup, "graph")
    yield from pages_of(ManifestGroup, "members")
    yield url_of(DeadLetter, "triage")
    for model in MODELS:
        yield list_of(model)
        yield from pages_of(model)
        yield from pages_of(model, "history")
