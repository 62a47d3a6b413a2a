"""Notices between processes: which of them a process takes for its own."""

import pytest
from django.db import connection, transaction

from chainsched.db import notify
from chainsched.flow.announce import wake

pytestmark = pytest.mark.django_db


@pytest.fixture
def sent(monkeypatch):
    """The notices that are sent by a process that signs them."""
    monkeypatch.setattr(notify, "_sender", "me")
    payloads = []

    def note(execute, sql, params, many, context):
        if "pg_notify" in sql:
            payloads.append(params[0])
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        yield payloads


@pytest.mark.postgres
def test_a_loop_signs_what_it_sends_in_its_turn(sent):
    with notify.in_turn():
        notify.send(notify.DISPATCHER)
    assert [notify.is_own(payload) for payload in sent] == [True]


@pytest.mark.postgres
def test_what_jobs_and_receivers_send_is_news_to_the_loops_of_their_process(sent):
    notify.send(notify.DISPATCHER)
    assert [(notify.is_own(payload), notify.topic_of(payload)) for payload in sent] == [(False, notify.DISPATCHER)]


@pytest.mark.parametrize("holds", [True, False])
def test_a_condition_is_asked_after_the_commit(monkeypatch, django_capture_on_commit_callbacks, holds):
    asked: list[bool] = []
    woken: list[str] = []

    def ask() -> bool:
        asked.append(connection.in_atomic_block)
        return holds

    monkeypatch.setattr(notify, "send", woken.append)
    with django_capture_on_commit_callbacks(execute=True):
        wake(notify.DISPATCHER, only_if=ask)
        assert not asked
    assert len(asked) == 1
    assert woken == [notify.DISPATCHER] * holds


def test_a_transaction_wakes_a_loop_once(monkeypatch, django_capture_on_commit_callbacks):
    woken: list[str] = []
    monkeypatch.setattr(notify, "send", woken.append)
    with django_capture_on_commit_callbacks(execute=True):
        for topic in (notify.DISPATCHER, notify.MANAGER, notify.DISPATCHER):
            wake(topic)
        wake(notify.DISPATCHER, only_if=lambda: True)
    assert woken == [notify.DISPATCHER, notify.MANAGER]


def test_a_condition_that_fails_keeps_no_later_notice_back(monkeypatch, django_capture_on_commit_callbacks):
    woken: list[str] = []
    monkeypatch.setattr(notify, "send", woken.append)
    with django_capture_on_commit_callbacks(execute=True):
        wake(notify.DISPATCHER, only_if=lambda: False)
        wake(notify.DISPATCHER)
    assert woken == [notify.DISPATCHER]


def test_one_that_is_rolled_back_with_its_savepoint_implies_none(monkeypatch, django_capture_on_commit_callbacks):
    woken: list[str] = []
    monkeypatch.setattr(notify, "send", woken.append)
    with django_capture_on_commit_callbacks(execute=True):
        with transaction.atomic():
            wake(notify.DISPATCHER)
            transaction.set_rollback(True)
        wake(notify.DISPATCHER)
    assert woken == [notify.DISPATCHER]
