"""More dead letters than a form can name: asked about once, handed over whole, and looked after to the end."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import pytest
from django.contrib import admin
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.db.models import QuerySet
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path

from chainsched.admin import BulkDecisionAdmin, DeadLetterAdmin, ManifestAdmin
from chainsched.admin.kit import operations
from chainsched.admin.pages import bulk_decisions
from chainsched.db import bulk
from chainsched.domain.states import BulkDecisionStatus, DeadLetterStatus
from chainsched.flow.operate.bulk_decisions import carry_out
from chainsched.models import BulkDecision, BulkDecisionItem, DeadLetter, Manifest
from tests.admin.test_actions import act, said
from tests.admin.test_pages import MAX_QUERIES, queries, text_of
from tests.admin.world import client_of, url_of
from tests.factories import NOW, make_dependent, make_group, make_letter, make_manifest

pytestmark = pytest.mark.django_db

LETTER: dict[str, Any] = {"reason": "broken", "failure_count": 1, "fingerprint": "abc", "dead_lettered_at": NOW}


@pytest.fixture(autouse=True)
def small_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """A form that can name two rows."""
    monkeypatch.setattr(operations, "MAX_ROWS", 2)


def letters(number: int, **columns: Any) -> list[DeadLetter]:
    return [make_letter(make_manifest(state={}), **{"fingerprint": "abc", **columns}) for _ in range(number)]


def address(query: str = "?by_fingerprint=abc") -> str:
    return url_of(DeadLetter, "changelist") + query


def choose_all(client: Client, verb: str = "retry", query: str = "?by_fingerprint=abc", **answers: Any) -> Any:
    """Select all that the filter leaves, and choose an action."""
    first = DeadLetter.objects.order_by("id").values_list("id", flat=True)[0]
    return client.post(address(query), {"action": verb, "select_across": "1", "_selected_action": first, **answers})


def answer(client: Client, asked: Any, verb: str = "retry", reason: str = "the source is back", **other: Any) -> Any:
    """Answer the question with what its form holds."""
    page = asked.content.decode()
    hidden = dict(re.findall(r'<input type="hidden" name="(count|newest|_selected_action)" value="(\d+)">', page))
    form = {"action": verb, "select_across": "1", "confirmed": "yes", "reason": reason, **hidden, **other}
    return client.post(address(), form)


def finish() -> None:
    while carry_out(now=NOW).has_more:
        pass


@pytest.mark.parametrize("verb", ["retry", "acknowledge"])
def test_all_that_the_filter_leaves_are_handed_over_and_decided_about(operator: Client, verb: str) -> None:
    chosen = letters(5)
    letters(1, fingerprint="other")
    asked = choose_all(operator, verb)
    assert f"{verb.capitalize()}: 5 dead letters" in asked.content.decode()
    assert "in the background" in asked.content.decode()
    assert not BulkDecision.objects.exists()
    response = answer(operator, asked, verb)
    bulk_decision = BulkDecision.objects.get()
    assert response.url == url_of(BulkDecision, "change", bulk_decision.pk)
    assert (bulk_decision.verb, str(bulk_decision.asked_by), bulk_decision.note, bulk_decision.total) == (
        verb,
        "operator",
        "the source is back",
        5,
    )
    assert bulk_decision.selection == "by_fingerprint=abc"
    assert DeadLetter.objects.awaiting().count() == 6
    finish()
    assert set(DeadLetter.objects.awaiting().values_list("fingerprint", flat=True)) == {"other"}
    assert {letter.resolved_by.username for letter in DeadLetter.objects.resolved()} == {"operator"}
    about = LogEntry.objects.filter(content_type__model="deadletter")
    assert {entry.object_id for entry in about} == {str(letter.pk) for letter in chosen}
    assert about.count() == 5
    assert LogEntry.objects.filter(content_type__model="bulkdecision", object_id=str(bulk_decision.pk)).count() == 1


def test_what_was_decided_or_arrived_since_the_question_is_asked_about_again(operator: Client) -> None:
    first, *_ = letters(4)
    asked = choose_all(operator)
    first.acknowledge()
    letters(1)
    response = answer(operator, asked)
    assert said(response) == ["The selection has changed since it was shown; check it again."]
    assert "Retry: 4 dead letters" in response.content.decode()
    assert not BulkDecision.objects.exists()
    answer(operator, response)
    assert BulkDecision.objects.get().total == 4


def test_what_arrives_after_the_question_is_none_of_it(operator: Client) -> None:
    chosen = letters(3)
    asked = choose_all(operator)
    letters(2)
    answer(operator, asked)
    assert list(BulkDecisionItem.objects.order_by("id").values_list("dead_letter_id", flat=True)) == [
        letter.pk for letter in chosen
    ]


def test_only_what_awaits_a_decision_is_chosen(operator: Client) -> None:
    letters(3)
    letters(2, status=DeadLetterStatus.ACKNOWLEDGED, resolved_at=NOW)
    asked = choose_all(operator, query="?by_fingerprint=abc&status=all")
    assert "Retry: 3 dead letters" in asked.content.decode()


def test_what_a_project_hides_from_the_user_is_none_of_it(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    letters(4)
    hidden = letters(2, reason="hidden")
    rows = DeadLetterAdmin.get_queryset

    def seen(page: Any, request: Any) -> QuerySet[Any]:
        return rows(page, request).exclude(reason="hidden")

    monkeypatch.setattr(DeadLetterAdmin, "get_queryset", seen)
    answer(operator, choose_all(operator))
    monkeypatch.undo()
    finish()
    assert set(DeadLetter.objects.awaiting()) == set(hidden)


def test_each_letter_is_checked_when_it_is_asked_for(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    letters(8)
    monkeypatch.setattr(
        DeadLetterAdmin, "has_retry_permission", lambda _page, _request, row=None: row is None or row.pk % 2 == 0
    )
    asked = choose_all(operator)
    assert "Retry: 4 dead letters" in asked.content.decode()
    answer(operator, asked)
    assert {id_ % 2 for id_ in BulkDecisionItem.objects.values_list("dead_letter_id", flat=True) if id_} == {0}


def test_a_note_must_be_given_where_one_is_asked_for(operator: Client) -> None:
    letters(3)
    response = answer(operator, choose_all(operator, "acknowledge"), "acknowledge", reason="")
    assert "This field is required" in response.content.decode()
    assert not BulkDecision.objects.exists()


@pytest.mark.parametrize(
    "forged", [{"newest": "x"}, {"newest": "9" * 30}, {"newest": ""}, {"count": "99"}, {"count": ""}]
)
def test_a_forged_answer_is_asked_about_again(operator: Client, forged: dict[str, str]) -> None:
    letters(3)
    response = answer(operator, choose_all(operator), **forged)
    assert response.status_code == 200
    assert not BulkDecision.objects.exists()


def test_more_than_an_bulk_decision_takes_are_refused(operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_decisions, "MAX_CHOSEN", 3)
    letters(4)
    assert said(choose_all(operator)) == [
        "Nothing was done: a bulk decision takes at most 3 letters. Narrow the list by its filters."
    ]


def test_rows_that_were_ticked_one_by_one_make_no_bulk_decision(operator: Client) -> None:
    chosen = [letter.pk for letter in letters(3)]
    response = operator.post(address(), {"action": "retry", "_selected_action": chosen})
    assert said(response)[0].startswith("Nothing was done: at most 2 can be chosen")


@pytest.mark.parametrize("role", ["anonymous", "clerk", "viewer"])
def test_nobody_else_hands_anything_over(role: str) -> None:
    letters(3)
    newest = DeadLetter.objects.latest("id").pk
    choose_all(client_of(role), confirmed="yes", count="3", newest=newest, reason="because")
    assert not BulkDecision.objects.exists()
    assert not LogEntry.objects.exists()


def test_without_a_token_of_the_form_nothing_is_handed_over() -> None:
    letters(3)
    newest = DeadLetter.objects.latest("id").pk
    client = client_of("operator", enforce_csrf_checks=True)
    assert choose_all(client, confirmed="yes", count="3", newest=newest).status_code == 403
    assert not BulkDecision.objects.exists()


class TestPage:
    def test_it_tells_how_far_it_is_and_why_letters_were_left_out(self, operator: Client) -> None:
        chosen = letters(3)
        answer(operator, choose_all(operator))
        bulk_decision = BulkDecision.objects.get()
        page = text_of(operator, url_of(BulkDecision, "change", bulk_decision.pk))
        assert "Waiting for a scheduler to process it." in page
        chosen[0].acknowledge()
        finish()
        page = text_of(operator, url_of(BulkDecision, "change", bulk_decision.pk))
        assert "3 of 3" in page
        assert "already acknowledged by the system" in page
        skipped = url_of(BulkDecisionItem, "changelist") + f"?by_bulk_decision={bulk_decision.pk}&outcome=skipped"
        assert operator.get(skipped).context["cl"].result_count == 1

    def test_it_can_be_called_off(self, operator: Client) -> None:
        letters(3)
        answer(operator, choose_all(operator))
        bulk_decision = BulkDecision.objects.get()
        act(operator, bulk_decision, "cancel", reason="wrong ones")
        bulk_decision.refresh_from_db()
        assert (bulk_decision.status, bulk_decision.cancel_reason) == (BulkDecisionStatus.CANCELLED, "wrong ones")
        finish()
        assert DeadLetter.objects.awaiting().count() == 3

    def test_many_letters_take_no_more_queries(self, superuser: Client) -> None:
        letters(3)
        answer(superuser, choose_all(superuser))
        urls = [url_of(BulkDecision, "change", BulkDecision.objects.get().pk), url_of(BulkDecisionItem, "changelist")]
        [superuser.get(url) for url in urls]
        few = [queries(superuser, url) for url in urls]
        letters(60)
        answer(superuser, choose_all(superuser))
        for letter in DeadLetter.objects.awaiting()[:20]:
            letter.acknowledge()
        finish()
        urls[0] = url_of(BulkDecision, "change", BulkDecision.objects.latest("id").pk)
        assert [queries(superuser, url) for url in urls] <= [few[0] + 1, few[1] + 1]
        assert max(queries(superuser, url) for url in urls) <= MAX_QUERIES


class TestDownstream:
    @pytest.fixture
    def chain(self) -> DeadLetter:
        """A letter of a manifest that others run after, one way or another."""
        root = make_manifest("root", state={})
        child = make_dependent(root, "child")
        make_dependent(child, "grandchild", run_condition=3)
        make_dependent(root, "only after failure", run_condition=2)
        make_dependent(root, "switched off", is_enabled=False)
        make_dependent(root, "in a closed group", group=make_group(is_enabled=False))
        make_dependent(root, "retired", retired_at=NOW)
        make_dependent(root, "dormant", schedule_type="dormant_dependent")
        return make_letter(root)

    def test_the_page_of_a_letter_tells_what_a_retry_lets_run(self, viewer: Client, chain: DeadLetter) -> None:
        page = text_of(viewer, url_of(DeadLetter, "change", chain.pk))
        told = page.partition("Runs next if the retry succeeds")[2].partition("Hidden:")[0]
        assert "child" in told
        assert "grandchild" in told
        assert not [name for name in ("after", "off", "closed", "retired", "dormant") if name in told]

    def test_a_letter_of_a_disabled_manifest_promises_no_dependents(self, viewer: Client, chain: DeadLetter) -> None:
        Manifest.objects.filter(external_id="root").update(is_enabled=False)
        page = text_of(viewer, url_of(DeadLetter, "change", chain.pk))
        assert "child" not in page.partition("Runs next if the retry succeeds")[2].partition("Hidden:")[0]

    def test_so_does_the_page_that_asks(self, operator: Client, chain: DeadLetter) -> None:
        form = {"_selected_action": chain.pk, "CHANGE_FORM-action": "retry"}
        asked = operator.post(url_of(DeadLetter, "change", chain.pk), form).content.decode()
        assert "Dependents that run after a success, 2 in all: child, grandchild." in asked
        form["CHANGE_FORM-action"] = "acknowledge"
        assert "run afterwards" not in operator.post(url_of(DeadLetter, "change", chain.pk), form).content.decode()

    def test_it_names_only_what_the_user_may_see(self, chain: DeadLetter, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = ManifestAdmin.get_queryset
        monkeypatch.setattr(
            ManifestAdmin, "get_queryset", lambda page, request: rows(page, request).exclude(external_id="child")
        )
        form = {"_selected_action": chain.pk, "CHANGE_FORM-action": "retry"}
        asked = client_of("operator").post(url_of(DeadLetter, "change", chain.pk), form).content.decode()
        assert "run after a success, 1 in all: grandchild." in asked

    def test_many_dependents_take_no_more_queries(self, superuser: Client, chain: DeadLetter) -> None:
        url = url_of(DeadLetter, "change", chain.pk)
        superuser.get(url)
        few = queries(superuser, url)
        for number in range(30):
            make_dependent(chain.manifest, f"more {number:02}")
        assert queries(superuser, url) == few <= MAX_QUERIES
        assert "32 in all; these are the nearest." in text_of(superuser, url)


class TestOddities:
    def test_numbers_with_separators_are_understood(self, settings: Any) -> None:
        settings.USE_THOUSAND_SEPARATOR = True
        operator, letter = client_of("operator"), make_letter(make_manifest(state={}), id=12_345)
        page = url_of(DeadLetter, "change", letter.pk)
        chosen = re.search(r'name="_selected_action" value="([^"]+)"', operator.get(page).content.decode())
        assert chosen
        asked = operator.post(page, {"_selected_action": chosen[1], "CHANGE_FORM-action": "retry"})
        assert asked.status_code == 200
        bulk.insert(DeadLetter, [{"manifest": 90_000 + at, **LETTER} for at in range(1001)])
        answer(operator, choose_all(operator))
        assert BulkDecision.objects.get().total == 1001

    def test_the_limit_counts_what_the_user_may_decide_about(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(bulk_decisions, "MAX_CHOSEN", 4)
        monkeypatch.setattr(bulk_decisions, "PAGE", 2)
        of_others, own = letters(8), letters(3)
        mine = {letter.pk for letter in own}
        monkeypatch.setattr(
            DeadLetterAdmin, "has_retry_permission", lambda self, request, row=None: row is None or row.pk in mine
        )
        operator = client_of("operator")
        answer(operator, choose_all(operator))
        assert set(BulkDecisionItem.objects.values_list("dead_letter_id", flat=True)) == mine
        assert of_others

    def test_whoever_does_not_see_all_letters_sees_their_own_bulk_decisions(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        letters(3)
        boss, operator = client_of("superuser"), client_of("operator")
        answer(boss, choose_all(boss))
        page = url_of(BulkDecision, "change", BulkDecision.objects.get().pk)
        assert operator.get(page).status_code == 200
        whole = DeadLetterAdmin.get_queryset
        monkeypatch.setattr(
            DeadLetterAdmin, "get_queryset", lambda self, request: whole(self, request).filter(manifest__owner="us")
        )
        assert operator.get(page).status_code == 302
        assert "0 bulk decision items" in text_of(operator, url_of(BulkDecisionItem, "changelist"))

    def test_a_site_without_a_page_for_the_letters_shows_the_bulk_decision(self, settings: Any) -> None:
        site = admin.AdminSite(name="mine")
        site.register(BulkDecision, BulkDecisionAdmin)
        urls = ModuleType("urls_of_a_test")
        urls.urlpatterns = [path("admin/", admin.site.urls), path("mine/", site.urls)]  # type: ignore[attr-defined]
        settings.ROOT_URLCONF = urls
        bulk_decision = BulkDecision.objects.create(verb="retry", total=1, created_at=NOW)
        assert client_of("viewer").get(f"/mine/chainsched/bulkdecision/{bulk_decision.pk}/change/").status_code == 200

    def test_who_decided_is_not_joined_because_users_may_be_in_another_database(self, superuser: Client) -> None:
        letters(1)
        with CaptureQueriesContext(connection) as captured:
            superuser.get(url_of(DeadLetter, "changelist") + "?status=all")
            superuser.get(url_of(BulkDecision, "changelist"))
        assert not [query for query in captured if "chainsched_" in query["sql"] and "auth_user" in query["sql"]]
