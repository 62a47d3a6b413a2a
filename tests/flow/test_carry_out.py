"""Errands: a decision about many dead letters is carried out in batches, once for each letter."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import IntegrityError, connection

from chainsched.domain.states import DeadLetterStatus, ErrandStatus, ErrandVerb
from chainsched.flow import carry_out as stage
from chainsched.flow.carry_out import ABANDONED, carry_out
from chainsched.flow.clean import clean, policy
from chainsched.flow.commission import call_off, commission
from chainsched.models import DeadLetter, Errand, ErrandLetter, WorkQueue
from chainsched.runtime import clerk
from tests.factories import NOW, make_letter, make_manifest

pytestmark = pytest.mark.django_db


def ask(number: int, verb: ErrandVerb = ErrandVerb.RETRY, **columns: Any) -> Errand:
    """An errand about so many letters of manifests of their own."""
    asker = User.objects.filter(username="ann").first() or User.objects.create_user("ann")
    letters = [make_letter(make_manifest(state={})) for _ in range(number)]
    told = {"by": asker, "note": "the source is back", "selection": "", "now": NOW, **columns}
    return commission(verb, [letter.id for letter in letters], **told)


def finish(limit: int = 3) -> int:
    """Turns until nothing is left to do; returns how many it took."""
    turns = 0
    while carry_out(now=NOW, limit=limit).has_more:
        turns += 1
        assert turns < 1000
    return turns


def outcomes(errand: Errand) -> Counter[str]:
    return Counter(ErrandLetter.objects.filter(errand=errand).values_list("outcome", flat=True))


@pytest.mark.parametrize(
    ("verb", "status", "said"),
    [
        (ErrandVerb.RETRY, DeadLetterStatus.RETRIED, "Retried: queued once more. With errand"),
        (ErrandVerb.ACKNOWLEDGE, DeadLetterStatus.ACKNOWLEDGED, "Acknowledged: acknowledged. With errand"),
    ],
)
def test_each_letter_has_its_decision_its_outcome_and_its_entry(verb: ErrandVerb, status: str, said: str) -> None:
    errand = ask(7, verb)
    finish()
    errand.refresh_from_db()
    assert (errand.status, errand.done_count, errand.skipped_count, errand.left) == (ErrandStatus.DONE, 7, 0, 0)
    assert (errand.started_at, errand.finished_at) == (NOW, NOW)
    decided = DeadLetter.objects.filter(status=status, resolved_by__username="ann", note="the source is back")
    assert decided.count() == 7
    assert WorkQueue.objects.queued().count() == (7 if verb == ErrandVerb.RETRY else 0)
    entries = LogEntry.objects.filter(user__username="ann", content_type__model="deadletter")
    assert Counter(entries.values_list("object_id", flat=True)) == Counter(str(letter.id) for letter in decided)
    for entry in entries:
        assert entry.change_message.startswith(f"{said} {errand.id}.")
        assert f"Before: status awaiting_intervention. After: status {status}." in entry.change_message
        assert entry.change_message.endswith("Reason: the source is back.")


def test_a_batch_is_a_transaction_of_its_own() -> None:
    errand = ask(7)
    assert carry_out(now=NOW, limit=3) == stage.Carried(letters=3, has_more=True)
    errand.refresh_from_db()
    assert (errand.status, errand.done_count, errand.left) == (ErrandStatus.UNDER_WAY, 3, 4)
    assert DeadLetter.objects.awaiting().count() == 4
    assert finish() == 3


def test_a_letter_that_somebody_decided_about_meanwhile_is_skipped_and_says_so() -> None:
    errand = ask(3)
    first, second, _ = DeadLetter.objects.order_by("id")
    first.acknowledge(note="known")
    second.retry()
    finish()
    errand.refresh_from_db()
    assert (errand.done_count, errand.skipped_count) == (1, 2)
    said = list(ErrandLetter.objects.order_by("id").values_list("outcome", "said"))
    assert said[0][0] == "skipped"
    assert said[0][1].startswith("already acknowledged by the system at")
    assert said[2] == ("done", "queued once more")
    assert WorkQueue.objects.queued().count() == 2
    assert LogEntry.objects.filter(content_type__model="deadletter").count() == 3
    assert DeadLetter.objects.get(id=first.id).note == "known"


def test_letters_and_manifests_that_are_gone_cost_the_others_nothing() -> None:
    errand = ask(3)
    letters = list(DeadLetter.objects.order_by("id"))
    DeadLetter.objects.filter(id=letters[0].id).delete()
    letters[1].manifest.delete()
    finish()
    assert outcomes(errand) == {"done": 1, "skipped": 2}


def test_a_letter_that_arrives_later_is_none_of_it() -> None:
    ask(2)
    later = make_letter(make_manifest(state={}))
    finish()
    assert list(DeadLetter.objects.awaiting()) == [later]


def test_a_letter_that_cannot_be_written_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    errand = ask(4)
    bad = DeadLetter.objects.order_by("id")[1].id
    deed = stage.DEEDS[ErrandVerb.RETRY]

    def refuse(ids: Any, **told: Any) -> Any:
        if bad in ids:
            raise IntegrityError("a constraint of the project's own")
        return deed.stage(ids, **told)

    broken = stage.Deed(refuse, deed.did, deed.said, deed.status)
    monkeypatch.setitem(stage.DEEDS, ErrandVerb.RETRY, broken)
    finish(limit=4)
    errand.refresh_from_db()
    assert (errand.status, errand.done_count, errand.skipped_count) == (ErrandStatus.DONE, 3, 1)
    assert ErrandLetter.objects.get(outcome="skipped").said == "it could not be written: IntegrityError"
    assert list(DeadLetter.objects.awaiting().values_list("id", flat=True)) == [bad]


def test_one_that_is_called_off_stops_and_keeps_what_was_decided() -> None:
    errand = ask(6)
    carry_out(now=NOW, limit=2)
    assert call_off(errand.id, reason="wrong ones", now=NOW)
    assert not call_off(errand.id, reason="again", now=NOW)
    assert finish() == 0
    errand.refresh_from_db()
    assert (errand.status, errand.cancel_reason, errand.done_count) == (ErrandStatus.CANCELLED, "wrong ones", 2)
    assert outcomes(errand) == {"done": 2, "waiting": 4}
    assert DeadLetter.objects.awaiting().count() == 4


@pytest.mark.parametrize("is_deleted", [True, False])
def test_one_whose_asker_has_no_account_any_more_stops(is_deleted: bool) -> None:
    errand = ask(4)
    carry_out(now=NOW, limit=2)
    if is_deleted:
        LogEntry.objects.all().delete()
        User.objects.get(username="ann").delete()
    else:
        User.objects.update(is_active=False)
    finish()
    errand.refresh_from_db()
    assert (errand.status, errand.cancel_reason, errand.left) == (ErrandStatus.CANCELLED, ABANDONED, 2)
    assert DeadLetter.objects.awaiting().count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_kill_after_any_statement_costs_no_letter_and_decides_about_none_twice() -> None:
    for point in count(1):
        errand = ask(3)
        LogEntry.objects.all().delete()
        try:
            with connection.execute_wrapper(Kill(after=point)):
                finish(limit=2)
        except Killed:
            connection.close()
            finish(limit=2)
        else:
            assert point > 40
            return
        errand.refresh_from_db()
        assert (errand.status, errand.done_count, errand.left) == (ErrandStatus.DONE, 3, 0), f"statement {point}"
        chosen = ErrandLetter.objects.filter(errand=errand).values_list("dead_letter_id", flat=True)
        assert sorted(map(str, LogEntry.objects.values_list("object_id", flat=True))) == sorted(map(str, chosen))
        assert WorkQueue.objects.queued().filter(dead_letter__in=list(chosen)).count() == 3


class Killed(BaseException):
    """Nothing that follows happens."""


class Kill:
    """Ends whoever asks the database for something, after so many statements."""

    def __init__(self, *, after: int) -> None:
        self._left = after

    def __call__(self, execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        result = execute(sql, params, many, context)
        self._left -= 1
        if self._left == 0:
            raise Killed
        return result


def test_errands_are_carried_out_in_the_order_of_asking() -> None:
    first, second = ask(4), ask(2)
    carry_out(now=NOW, limit=3)
    assert (outcomes(first)["done"], outcomes(second)["done"]) == (3, 0)
    finish()
    assert (outcomes(first)["done"], outcomes(second)["done"]) == (4, 2)


def test_the_clerk_turns_until_all_is_done() -> None:
    ask(2)
    assert [(turn.did, turn.has_more) for turn in (clerk.turn(NOW), clerk.turn(NOW), clerk.turn(NOW))] == [
        (2, True),
        (0, True),
        (0, False),
    ]


def test_retention_removes_errands_that_are_over() -> None:
    old, recent, waiting = ask(3), ask(2), ask(1)
    finish()
    long_ago = NOW - timedelta(days=60)
    Errand.objects.filter(id=old.id).update(finished_at=long_ago)
    Errand.objects.filter(id=waiting.id).update(status=ErrandStatus.WAITING, finished_at=None, created_at=long_ago)
    assert clean(policy(), now=NOW, is_rehearsal=True).removed["errand letters"] == 3
    removed = clean(policy(), now=NOW).removed
    assert (removed["errand letters"], removed["errands"]) == (3, 1)
    assert set(Errand.objects.values_list("id", flat=True)) == {recent.id, waiting.id}
