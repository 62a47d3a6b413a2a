"""Dead letters that look the same stand together, and one decision answers all of them."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db.models import QuerySet
from django.test import Client

from chainsched.admin import DeadLetterAdmin, ManifestGroupAdmin
from chainsched.admin.pages.triage import MAX_KINDS
from chainsched.domain.states import DeadLetterStatus, ExecutionState
from chainsched.models import DeadLetter, ManifestGroup
from tests.admin.test_pages import MAX_QUERIES, queries, text_of
from tests.admin.world import client_of, url_of
from tests.factories import NOW, make_execution, make_group, make_letter, make_manifest

pytestmark = pytest.mark.django_db


def triage() -> str:
    return url_of(DeadLetter, "triage")


def make_kind(fingerprint: str, number: int, *, group: str = "g", reason: str = "it failed", **columns: Any) -> None:
    hit = ManifestGroup.objects.filter(name=group).first() or make_group(group)
    for step in range(number):
        at = NOW + timedelta(minutes=step)
        manifest = make_manifest(group=hit, state={}, **columns)
        make_letter(manifest, fingerprint=fingerprint, reason=reason, dead_lettered_at=at)


def kinds(client: Client) -> list[Any]:
    return list(client.get(triage()).context["kinds"])


def test_what_looks_the_same_stands_together_the_most_frequent_first(manager: Client) -> None:
    make_kind("rare", 1, group="small")
    make_kind("often", 3, group="large", reason="no route to host", workflow="testapp.copy")
    make_letter(make_manifest(), fingerprint="often", status=DeadLetterStatus.ACKNOWLEDGED, resolved_at=NOW)
    often, rare = kinds(manager)
    assert (often.fingerprint, often.number, rare.fingerprint, rare.number) == ("often", 3, "rare", 1)
    assert (often.first_at, often.last_at) == (NOW, NOW + timedelta(minutes=2))
    assert (often.failure, often.workflows) == ("no route to host", ["testapp.copy"])
    page = text_of(manager, triage())
    assert re.search(r"3 no route to host often .* large testapp\.copy", page)


def test_the_example_is_redacted(superuser: Client) -> None:
    make_kind("abc", 1, reason="cannot log in with password=swordfish")
    assert "swordfish" not in text_of(superuser, triage())
    assert "cannot log in" in text_of(superuser, triage())


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_without_the_permission_for_payloads_the_type_of_the_failure_is_the_example(role: str) -> None:
    execution = make_execution(state=ExecutionState.FAILED, failure_type="Timeout", failure_reason="no route to host")
    make_letter(make_manifest(), execution_id=execution.pk, fingerprint="abc", reason="no route to host")
    client = client_of(role)
    assert [kind.failure for kind in kinds(client)] == ["Timeout"]
    assert "no route" not in text_of(client, triage()) + text_of(client, url_of(DeadLetter, "changelist"))
    assert "Timeout" in text_of(client, url_of(DeadLetter, "changelist"))


@pytest.mark.parametrize("fingerprint", ["abc", "", "a&b=c #"])
def test_a_kind_leads_to_its_letters(viewer: Client, fingerprint: str) -> None:
    make_kind(fingerprint, 2)
    make_kind("other", 1)
    (address,) = {kind.address for kind in kinds(viewer) if kind.fingerprint == fingerprint}
    assert viewer.get(address).context["cl"].result_count == 2


def test_the_list_of_letters_leads_here(viewer: Client) -> None:
    assert f'href="{triage()}"' in viewer.get(url_of(DeadLetter, "changelist")).content.decode()


@pytest.mark.parametrize("verb", ["retry", "acknowledge"])
def test_the_buttons_ask_about_all_of_a_kind_and_decide_about_no_other(operator: Client, verb: str) -> None:
    make_kind("abc", 3)
    make_kind("other", 1)
    (kind,) = [kind for kind in kinds(operator) if kind.fingerprint == "abc"]
    form = {"_selected_action": kind.example_id, "select_across": "1", "action": verb}
    asked = operator.post(kind.address, form).content.decode()
    assert f"{verb.capitalize()}: 3 dead letters" in asked
    chosen = re.findall(r'name="_selected_action" value="(\d+)"', asked)
    answer = {"action": verb, "_selected_action": chosen, "count": "3", "confirmed": "yes", "reason": "back up"}
    operator.post(kind.address, answer)
    assert set(DeadLetter.objects.awaiting().values_list("fingerprint", flat=True)) == {"other"}
    assert LogEntry.objects.count() == 3


@pytest.mark.parametrize(("role", "offered"), [("viewer", set()), ("operator", {"retry", "acknowledge"})])
def test_buttons_are_for_those_who_may_decide(role: str, offered: set[str]) -> None:
    make_kind("abc", 1)
    page = client_of(role).get(triage()).content.decode()
    assert set(re.findall(r'name="action" value="(\w+)"', page)) == offered


def test_what_a_project_hides_is_neither_counted_nor_named(viewer: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    make_kind("abc", 2, group="seen")
    make_kind("abc", 1, group="hidden", reason="a secret reason")
    rows = DeadLetterAdmin.get_queryset
    groups = ManifestGroupAdmin.get_queryset

    def seen(page: Any, request: Any) -> QuerySet[Any]:
        return rows(page, request).filter(manifest__group__name="seen")

    monkeypatch.setattr(DeadLetterAdmin, "get_queryset", seen)
    assert kinds(viewer)[0].number == 2
    assert "hidden" not in text_of(viewer, triage())
    assert "a secret reason" not in text_of(viewer, triage())
    monkeypatch.setattr(ManifestGroupAdmin, "get_queryset", lambda page, request: groups(page, request).none())
    assert "seen" not in text_of(viewer, triage())


def test_more_kinds_or_letters_take_no_more_queries(superuser: Client) -> None:
    make_kind("abc", 2)
    few = queries(superuser, triage())
    for number in range(MAX_KINDS + 5):
        make_kind(f"{number:03}", 1, group=f"g{number % 7}")
    make_kind("abc", 30)
    assert queries(superuser, triage()) == few <= MAX_QUERIES
    page = text_of(superuser, triage())
    assert f"These are the {MAX_KINDS} most frequent kinds; there are more." in page
    assert len(kinds(superuser)) == MAX_KINDS


def test_nothing_to_decide_is_said(viewer: Client) -> None:
    assert "No dead letter awaits a decision." in text_of(viewer, triage())
