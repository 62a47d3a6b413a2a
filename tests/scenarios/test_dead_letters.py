"""Dead letters: retried or acknowledged, once, with a trail."""

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth import get_user_model
from django.db import connection

from chainsched import Every
from chainsched.api import acknowledge_letters, retry_letters
from chainsched.domain.results import Resolved
from chainsched.domain.states import DeadLetterStatus, ExecutionState, Source
from chainsched.exceptions import InvalidInput
from chainsched.models import DeadLetter, Manifest, Metadata, WorkQueue
from chainsched.registry import registry
from tests.concurrency.threads import at_once
from tests.drive import executions_of, manifest
from tests.factories import make_execution, make_letter, make_manifest, store_input
from tests.testapp import workflows

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator():
    return get_user_model().objects.create_user("ann")


@pytest.fixture
def chain(bench):
    """A parent that succeeded, a child that was given up, and a grandchild that waits."""
    root = bench.schedules.schedule(workflows.ping, "a", None, Every.minutes(5))
    root.then_include(workflows.fail, "b", max_retries=2, retry_delay=1).then_include(workflows.ping, "c")
    bench.seed()
    bench.drain()
    bench.advance(seconds=2)
    bench.drain()
    return bench


@pytest.fixture
def mended(monkeypatch):
    monkeypatch.setattr(registry.get("testapp.fail"), "function", lambda: "mended")


def letter() -> DeadLetter:
    return DeadLetter.objects.select_related("resolved_by").latest("id")


def test_a_retry_runs_again_with_the_same_input_parent_and_root(chain, operator, mended):
    given_up = letter()
    assert given_up.retry(by=operator, note="source is back") == Resolved((given_up.id,))
    assert chain.drain() == ["b", "c"]
    run = executions_of("b")[-1]
    failed = Metadata.objects.get(id=given_up.execution_id or 0)
    assert (run.source, run.attempt, run.input) == (Source.DEAD_LETTER, 1, failed.input)
    assert (run.parent_execution_id, run.root_execution_id) == (failed.parent_execution_id, failed.root_execution_id)
    resolved = letter()
    assert (resolved.status, resolved.resolved_by, resolved.note) == ("retried", operator, "source is back")
    assert (resolved.resolved_at, resolved.retry_execution_id) == (chain.now, run.id)


def test_a_retried_job_that_fails_again_is_counted_anew(chain):
    letter().retry()
    assert chain.drain() == ["b"]
    assert DeadLetter.objects.count() == 1, "one failure is not enough for another letter"
    chain.advance(seconds=2)
    assert chain.drain() == ["b"]
    assert DeadLetter.objects.awaiting().count() == 1


def test_an_acknowledged_letter_spends_the_occurrence_and_the_schedule_goes_on(chain, operator):
    letter().acknowledge(by=operator, note="known")
    assert (letter().status, letter().resolved_by, letter().note) == ("acknowledged", operator, "known")
    assert chain.drain() == []
    assert manifest("b").consecutive_failures == 0
    chain.advance(minutes=5)
    assert chain.drain() == ["a", "b"]


def test_an_acknowledged_interval_waits_a_full_interval(bench):
    bench.schedules.schedule(workflows.give_up, "hopeless", None, Every.minutes(5))
    bench.seed()
    bench.drain()
    bench.advance(hours=3)
    letter().acknowledge()
    assert bench.drain() == []
    bench.advance(minutes=5)
    assert bench.drain() == ["hopeless"]


def test_a_success_of_the_parent_meanwhile_is_not_lost_by_a_retry(chain, mended):
    chain.advance(minutes=5)
    assert chain.drain() == ["a"]
    newest = executions_of("a")[-1]
    letter().retry()
    assert sorted(chain.drain()) == ["b", "b", "c", "c"]
    assert executions_of("b")[-1].parent_execution_id == newest.id


@pytest.mark.parametrize("second", ["retry", "acknowledge"])
def test_a_second_decision_has_no_effect_and_says_so(chain, operator, second):
    letter().acknowledge(by=operator)
    answer = getattr(letter(), second)()
    assert answer.done == ()
    assert "already acknowledged by ann" in answer.skipped[letter().id]
    assert not WorkQueue.objects.queued().exists()


def test_bulk_decisions_name_what_they_skipped(bench):
    letters = [make_letter(make_manifest(state={})) for _ in range(3)]
    orphan = make_letter(make_manifest(state={}))
    Manifest.objects.filter(id=orphan.manifest_id or 0).purge()
    letters[0].acknowledge()
    answer = retry_letters([*letters, orphan])
    assert answer.done == (letters[1].id, letters[2].id)
    assert "already acknowledged" in answer.skipped[letters[0].id]
    assert "its manifest was removed" in answer.skipped[orphan.id]
    assert acknowledge_letters([orphan]).done == (orphan.id,)


def test_a_retry_runs_a_disabled_manifest_but_not_its_dependents(chain, mended):
    Manifest.objects.filter(external_id="b").update(is_enabled=False)
    letter().retry()
    assert chain.drain() == ["b"]


def test_a_letter_whose_execution_was_removed_is_retried_with_the_manifests_input(bench):
    made = make_manifest(state={}, workflow="testapp.copy", input={"table": "t", "size": 1})
    make_letter(made, execution_id=987654).retry()
    assert WorkQueue.objects.get().input == {"table": "t", "size": 1}


def test_a_letter_whose_input_cannot_be_read_is_named_and_not_retried(bench):
    bad, good = (make_manifest(state={}) for _ in range(2))
    failed = [make_execution(manifest, state=ExecutionState.IN_PROGRESS) for manifest in (bad, good)]
    store_input(failed[0], "[1" + "0" * 5_000 + "]")
    letters = [make_letter(run.manifest, execution_id=run.id) for run in failed]
    resolved = retry_letters(letters)
    assert resolved.done == (letters[1].id,)
    assert "cannot be read" in resolved.skipped[letters[0].id]
    with pytest.raises(InvalidInput, match="cannot be read"):
        Metadata.objects.get(id=failed[0].id).run_again()


def test_the_async_twins_do_the_same(bench):
    first, second = make_letter(make_manifest(state={})), make_letter(make_manifest(state={}))
    assert async_to_sync(first.aretry)().done == (first.id,)
    assert async_to_sync(second.aacknowledge)().done == (second.id,)


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs PostgreSQL")
def test_two_operators_at_once_have_one_effect(patience):
    for _ in range(10):
        given_up = make_letter(make_manifest(state={}))
        answers = at_once(given_up.retry, given_up.acknowledge)
        assert sorted(len(answer.done) for answer in answers) == [0, 1]
        given_up.refresh_from_db()
        rows = WorkQueue.objects.queued().filter(manifest=given_up.manifest_id).count()
        assert rows == (1 if given_up.status == DeadLetterStatus.RETRIED else 0)
