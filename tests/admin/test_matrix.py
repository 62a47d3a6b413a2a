"""Who gets what from every address and action of the admin; the list is the resolver's, so that none is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import get_resolver

from chainsched.domain.states import ExecutionState, ScheduleType
from chainsched.models import (
    BulkDecision,
    DeadLetter,
    GraphRun,
    JoinState,
    Manifest,
    ManifestGroup,
    Metadata,
    WorkQueue,
)
from chainsched.models.near import RUN_END
from tests.admin.test_pages import fingerprint
from tests.admin.world import MODELS, VERBS, client_of, list_of, make_world, url_of
from tests.factories import NOW, make_execution, make_letter, make_manifest, make_queue_row

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]

ROLES = ("anonymous", "clerk", "viewer", "operator", "manager", "superuser")
LOGIN, DENIED, SHOWN, NOT_SO = 302, 403, 200, 405

# By the view behind an address: what each role gets for GET, and what each gets for a POST without an action.
FOR_VIEWERS = (LOGIN, DENIED, SHOWN, SHOWN, SHOWN, SHOWN)
FOR_LOOKING = (LOGIN, DENIED, NOT_SO, NOT_SO, NOT_SO, NOT_SO)
FOR_NOBODY = (LOGIN, DENIED, DENIED, DENIED, DENIED, DENIED)
VIEWS = {
    "changelist": (FOR_VIEWERS, FOR_VIEWERS),
    "graph": (FOR_VIEWERS, FOR_LOOKING),
    "members": (FOR_VIEWERS, FOR_LOOKING),
    "history": (FOR_VIEWERS, FOR_VIEWERS),
    "change": (FOR_VIEWERS, FOR_NOBODY),
    "add": (FOR_NOBODY, FOR_NOBODY),
    "delete": (FOR_NOBODY, FOR_NOBODY),
    "triage": (FOR_VIEWERS, FOR_VIEWERS),
}

# The permission that each action takes; which roles hold it is said in ``world``.
ACTIONS = {
    (ManifestGroup, "trigger"): "trigger_manifest",
    (ManifestGroup, "enable"): "switch_manifest",
    (ManifestGroup, "disable"): "switch_manifest",
    (ManifestGroup, "set_limits"): "limit_manifestgroup",
    (ManifestGroup, "cancel"): "cancel_manifest",
    (Manifest, "trigger"): "trigger_manifest",
    (Manifest, "enable"): "switch_manifest",
    (Manifest, "disable"): "switch_manifest",
    (Manifest, "activate"): "activate_manifest",
    (Manifest, "cancel"): "cancel_manifest",
    (Metadata, "cancel"): "cancel_manifest",
    (Metadata, "cancel_tree"): "cancel_manifest",
    (Metadata, "run_again"): "trigger_manifest",
    (Metadata, "run_from_here"): "trigger_manifest",
    (GraphRun, "cancel"): "cancel_manifest",
    (WorkQueue, "bring_forward"): "trigger_manifest",
    (WorkQueue, "cancel"): "cancel_manifest",
    (DeadLetter, "retry"): "retry_deadletter",
    (BulkDecision, "cancel"): "retry_deadletter",
    (DeadLetter, "acknowledge"): "acknowledge_deadletter",
}
PAGE_ONLY = {
    (ManifestGroup, "set_limits"),
    (Manifest, "activate"),
    (Metadata, "cancel_tree"),
    (Metadata, "run_from_here"),
}


def addresses() -> Iterator[tuple[Any, str]]:
    """Every address of ours in the admin, as the resolver knows it: the model and the view."""
    _, resolver = get_resolver().namespace_dict["admin"]
    names = {str(name) for name in resolver.reverse_dict if str(name).startswith("chainsched_")}
    by_name = {model._meta.model_name: model for model in MODELS}
    for name in sorted(names):
        _, model_name, view = name.split("_", 2)
        yield by_name[model_name], view


def actions() -> Iterator[tuple[Any, str]]:
    """Every action of every page."""
    for model in MODELS:
        for name in admin.site.get_model_admin(model).actions or ():
            yield model, str(name)


def test_every_address_and_action_is_in_the_table() -> None:
    assert {view for _, view in addresses()} == set(VIEWS)
    assert {model for model, _ in addresses()} == set(MODELS)
    assert set(actions()) == set(ACTIONS)


@pytest.mark.parametrize("role", ROLES)
def test_every_address_answers_each_kind_of_user_as_the_table_says(role: str) -> None:
    make_world()
    client = client_of(role)
    before = fingerprint()
    wrong = {}
    for model, view in addresses():
        url = list_of(model) if view == "changelist" else url_of(model, view, *_arguments(model, view))
        expected = tuple(column[ROLES.index(role)] for column in VIEWS[view])
        answered = (client.get(url).status_code, client.post(url, {"_save": "Save", "post": "yes"}).status_code)
        if answered != expected:
            wrong[url] = (answered, expected)
    assert not wrong
    assert fingerprint() == before


def _arguments(model: Any, view: str) -> list[Any]:
    return [] if view in ("add", "graph", "triage") else [model.objects.first().pk]


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("is_on_page", [True, False], ids=["page", "list"])
@pytest.mark.parametrize(("model", "action"), ACTIONS, ids=lambda value: getattr(value, "__name__", value))
def test_an_action_is_done_for_those_who_hold_its_permission_and_for_nobody_else(
    model: Any, action: str, role: str, is_on_page: bool
) -> None:
    row = _fitting(model, action)
    client = client_of(role)
    before = fingerprint()
    _act(client, row, action, is_on_page=is_on_page)
    may = role in _holders(ACTIONS[model, action]) and (is_on_page or (model, action) not in PAGE_ONLY)
    assert (fingerprint() != before) is may
    assert LogEntry.objects.count() == int(may)


def _holders(permission: str) -> set[str]:
    return {"manager", "superuser"} | ({"operator"} if permission in VERBS else set())


def _act(client: Client, row: Any, action: str, *, is_on_page: bool) -> None:
    answers = {"reason": "because", "priority": "9", "input_table": "t"}
    form = {"_selected_action": row.pk, "count": "1", "confirmed": "yes", **answers}
    if is_on_page:
        client.post(url_of(type(row), "change", row.pk), form | {"CHANGE_FORM-action": action})
    else:
        client.post(list_of(type(row)), form | {"action": action})


def _fitting(model: Any, action: str) -> Any:
    """A row that the action changes something about."""
    dormant = {"schedule_type": ScheduleType.DORMANT_DEPENDENT, "run_condition": 1, "workflow": "testapp.copy"}
    manifest = make_manifest(is_enabled=action != "enable", state={}, **(dormant if action == "activate" else {}))
    if model is ManifestGroup:
        type(manifest.group).objects.filter(pk=manifest.group_id).update(is_enabled=action != "enable")
    if model in (Manifest, ManifestGroup) and action == "cancel":
        make_queue_row(manifest)
    is_over = action in ("run_again", "run_from_here")
    run = GraphRun.objects.create(head=manifest, scheduled_for=NOW, created_at=NOW)
    end = JoinState.objects.create(run=run, join_id=RUN_END, open=not is_over)
    item = {"run_id": run.pk, "tokens": [end.pk], "has_tokens": True}
    return {
        ManifestGroup: lambda: manifest.group,
        Manifest: lambda: manifest,
        GraphRun: lambda: make_execution(manifest, **item).run,
        Metadata: lambda: make_execution(
            manifest, state=ExecutionState.COMPLETED if is_over else ExecutionState.PENDING, **item
        ),
        WorkQueue: lambda: make_queue_row(manifest),
        DeadLetter: lambda: make_letter(manifest),
        BulkDecision: lambda: BulkDecision.objects.create(verb="retry", total=1, created_at=NOW),
    }[model]()


@pytest.mark.parametrize(("model", "action"), ACTIONS, ids=lambda value: getattr(value, "__name__", value))
def test_asking_by_get_does_nothing(model: Any, action: str) -> None:
    row = _fitting(model, action)
    client = client_of("superuser")
    before = fingerprint()
    form = {
        "_selected_action": row.pk,
        "count": "1",
        "confirmed": "yes",
        "action": action,
        "CHANGE_FORM-action": action,
    }
    client.get(url_of(model, "change", row.pk), form)
    client.get(list_of(model), form)
    assert fingerprint() == before
