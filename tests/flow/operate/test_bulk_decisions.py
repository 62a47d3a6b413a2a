"""BulkDecisions: a decision about many dead letters is carried out in batches, once for each letter."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.db import IntegrityError, connection

from chainsched.domain.states import BulkDecisionStatus, BulkDecisionVerb, DeadLetterStatus
from chainsched.flow.maintain.clean import clean, policy
from chainsched.flow.operate import bulk_decisions as stage
from chainsched.flow.operate import resolve
from chainsched.flow.operate.bulk_decisions import USER_GONE, cancel_bulk_decision, carry_out, request_bulk_decision
from chainsched.models import BulkDecision, BulkDecisionItem, DeadLetter, WorkQueue
from chainsched.runtime.loops import bulk_decisions
from tests.factories import NOW, make_letter, make_manifest

pytestmark = pytest.mark.django_db


def ask(number: int, verb: BulkDecisionVerb = BulkDecisionVerb.RETRY, **columns: Any) -> BulkDecision:
    """A bulk decision about so many letters of manifests of their own."""
    asker = User.objects.filter(username="ann").first() or User.objects.create_user("ann")
    letters = [make_letter(make_manifest(state={})) for _ in range(number)]
    told = {"by": asker, "note": "the source is back", "selection": "", "now": NOW, **columns}
    return request_bulk_decision(verb, [letter.id for letter in letters], **told)


def finish(limit: int = 3) -> int:
    """Turns until nothing is left to do; returns how many it took."""
    turns = 0
    while carry_out(now=NOW, limit=limit).has_more:
        turns += 1
        assert turns < 1000
    return turns


def outcomes(bulk_decision: BulkDecision) -> Counter[str]:
    return Counter(BulkDecisionItem.objects.filter(bulk_decision=bulk_decision).values_list("outcome", flat=True))


@pytest.mark.parametrize(
    ("verb", "status", "said"),
    [
        (BulkDecisionVerb.RETRY, DeadLetterStatus.RETRIED, "Retried: queued once more. With bulk decision"),
        (BulkDecisionVerb.ACKNOWLEDGE, DeadLetterStatus.ACKNOWLEDGED, "Acknowledged: acknowledged. With bulk decision"),
    ],
)
def test_each_letter_has_its_decision_its_outcome_and_its_entry(verb: BulkDecisionVerb, status: str, said: str) -> None:
    bulk_decision = ask(7, verb)
    finish()
    bulk_decision.refresh_from_db()
    assert (bulk_decision.status, bulk_decision.done_count, bulk_decision.skipped_count, bulk_decision.left) == (
        BulkDecisionStatus.DONE,
        7,
        0,
        0,
    )
    assert (bulk_decision.started_at, bulk_decision.finished_at) == (NOW, NOW)
    decided = DeadLetter.objects.filter(status=status, resolved_by__username="ann", note="the source is back")
    assert decided.count() == 7
    assert WorkQueue.objects.queued().count() == (7 if verb == BulkDecisionVerb.RETRY else 0)
    entries = LogEntry.objects.filter(user__username="ann", content_type__model="deadletter")
    assert Counter(entries.values_list("object_id", flat=True)) == Counter(str(letter.id) for letter in decided)
    for entry in entries:
        assert entry.change_message.startswith(f"{said} {bulk_decision.id}.")
        assert f"Before: status awaiting_intervention. After: status {status}." in entry.change_message
        assert entry.change_message.endswith("Reason: the source is back.")


def test_a_batch_is_a_transaction_of_its_own() -> None:
    bulk_decision = ask(7)
    assert carry_out(now=NOW, limit=3) == stage.CarriedOut(letters=3, has_more=True)
    bulk_decision.refresh_from_db()
    assert (bulk_decision.status, bulk_decision.done_count, bulk_decision.left) == (BulkDecisionStatus.UNDER_WAY, 3, 4)
    assert DeadLetter.objects.awaiting().count() == 4
    assert finish() == 3


def test_a_letter_that_somebody_decided_about_meanwhile_is_skipped_and_says_so() -> None:
    bulk_decision = ask(3)
    first, second, _ = DeadLetter.objects.order_by("id")
    first.acknowledge(note="known")
    second.retry()
    finish()
    bulk_decision.refresh_from_db()
    assert (bulk_decision.done_count, bulk_decision.skipped_count) == (1, 2)
    said = list(BulkDecisionItem.objects.order_by("id").values_list("outcome", "explanation"))
    assert said[0][0] == "skipped"
    assert said[0][1].startswith("already acknowledged by the system at")
    assert said[2] == ("done", "queued once more")
    assert WorkQueue.objects.queued().count() == 2
    entry = LogEntry.objects.get(content_type__model="deadletter")
    assert entry.object_id == str(DeadLetter.objects.exclude(id__in=[first.id, second.id]).get().id)
    assert DeadLetter.objects.get(id=first.id).note == "known"


def test_letters_and_manifests_that_are_gone_cost_the_others_nothing() -> None:
    bulk_decision = ask(3)
    letters = list(DeadLetter.objects.order_by("id"))
    DeadLetter.objects.filter(id=letters[0].id).delete()
    letters[1].manifest.delete()
    finish()
    assert outcomes(bulk_decision) == {"done": 1, "skipped": 2}


def test_a_letter_that_arrives_later_is_none_of_it() -> None:
    ask(2)
    later = make_letter(make_manifest(state={}))
    finish()
    assert list(DeadLetter.objects.awaiting()) == [later]


def test_a_letter_that_cannot_be_written_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    bulk_decision = ask(4)
    bad = DeadLetter.objects.order_by("id")[1].id
    letter_verb = resolve.LETTER_VERBS[BulkDecisionVerb.RETRY]

    def refuse(ids: Any, **told: Any) -> Any:
        if bad in ids:
            raise IntegrityError("a constraint of the project's own")
        return letter_verb.stage(ids, **told)

    broken = resolve.LetterVerb(refuse, letter_verb.did, letter_verb.outcome)
    monkeypatch.setitem(resolve.LETTER_VERBS, BulkDecisionVerb.RETRY, broken)
    finish(limit=4)
    bulk_decision.refresh_from_db()
    assert (bulk_decision.status, bulk_decision.done_count, bulk_decision.skipped_count) == (
        BulkDecisionStatus.DONE,
        3,
        1,
    )
    assert BulkDecisionItem.objects.get(outcome="skipped").explanation == "it could not be written: IntegrityError"
    assert list(DeadLetter.objects.awaiting().values_list("id", flat=True)) == [bad]


def test_one_that_is_called_off_stops_and_keeps_what_was_decided() -> None:
    bulk_decision = ask(6)
    carry_out(now=NOW, limit=2)
    assert cancel_bulk_decision(bulk_decision.id, reason="wrong ones", now=NOW)
    assert not cancel_bulk_decision(bulk_decision.id, reason="again", now=NOW)
    assert finish() == 0
    bulk_decision.refresh_from_db()
    assert (bulk_decision.status, bulk_decision.cancel_reason, bulk_decision.done_count) == (
        BulkDecisionStatus.CANCELLED,
        "wrong ones",
        2,
    )
    assert outcomes(bulk_decision) == {"done": 2, "waiting": 4}
    assert DeadLetter.objects.awaiting().count() == 4


@pytest.mark.parametrize("is_deleted", [True, False])
def test_one_whose_asker_has_no_account_any_more_stops(is_deleted: bool) -> None:
    bulk_decision = ask(4)
    carry_out(now=NOW, limit=2)
    if is_deleted:
        LogEntry.objects.all().delete()
        User.objects.get(username="ann").delete()
    else:
        User.objects.update(is_active=False)
    finish()
    bulk_decision.refresh_from_db()
    assert (bulk_decision.status, bulk_decision.cancel_reason, bulk_decision.left) == (
        BulkDecisionStatus.CANCELLED,
        USER_GONE,
        2,
    )
    assert DeadLetter.objects.awaiting().count() == 2


@pytest.mark.slow_on_postgres
@pytest.mark.django_db(transaction=True)
def test_a_kill_after_any_statement_costs_no_letter_and_decides_about_none_twice() -> None:
    for point in count(1):
        bulk_decision = ask(3)
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
        bulk_decision.refresh_from_db()
        assert (bulk_decision.status, bulk_decision.done_count, bulk_decision.left) == (
            BulkDecisionStatus.DONE,
            3,
            0,
        ), f"statement {point}"
        chosen = BulkDecisionItem.objects.filter(bulk_decision=bulk_decision).values_list("dead_letter_id", flat=True)
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


def test_bulk_decisions_are_carried_out_in_the_order_of_asking() -> None:
    first, second = ask(4), ask(2)
    carry_out(now=NOW, limit=3)
    assert (outcomes(first)["done"], outcomes(second)["done"]) == (3, 0)
    finish()
    assert (outcomes(first)["done"], outcomes(second)["done"]) == (4, 2)


def test_the_loop_turns_until_all_is_done() -> None:
    ask(2)
    assert [
        (turn.did, turn.has_more)
        for turn in (bulk_decisions.turn(NOW), bulk_decisions.turn(NOW), bulk_decisions.turn(NOW))
    ] == [
        (2, True),
        (0, True),
        (0, False),
    ]


def test_retention_removes_bulk_decisions_that_are_over() -> None:
    old, recent, waiting = ask(3), ask(2), ask(1)
    finish()
    long_ago = NOW - timedelta(days=60)
    BulkDecision.objects.filter(id=old.id).update(finished_at=long_ago)
    BulkDecision.objects.filter(id=waiting.id).update(
        status=BulkDecisionStatus.WAITING, finished_at=None, created_at=long_ago
    )
    assert clean(policy(), now=NOW, is_dry_run=True).removed["bulk decision items"] == 3
    removed = clean(policy(), now=NOW).removed
    assert (removed["bulk decision items"], removed["bulk decisions"]) == (3, 1)
    assert set(BulkDecision.objects.values_list("id", flat=True)) == {recent.id, waiting.id}
