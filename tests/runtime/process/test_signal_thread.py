"""The thread that calls receivers: in order, bounded, drained, and not ended by a receiver."""

import sys
import threading
import time

import pytest
from django.db import OperationalError, transaction
from django.dispatch import Signal

from chainsched import Every, signals
from chainsched.db.clock import database_now
from chainsched.domain.loops import LOOPS
from chainsched.flow import announce
from chainsched.flow.announce import Announcement, announce_executions, send_now
from chainsched.flow.schedule.declare import Schedules
from chainsched.flow.schedule.seed import seed
from chainsched.models import Metadata, Process
from chainsched.runtime.process import signal_queue, signal_thread
from chainsched.runtime.process.signal_queue import SignalQueue
from chainsched.runtime.process.signal_thread import SignalThread
from chainsched.runtime.process.supervisor import Roles, Supervisor
from tests.factories import make_execution, make_manifest
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = pytest.mark.django_db(transaction=True)

PATIENCE = 30


class Receiver:
    """Notes the ids that it hears, in which thread; while it is held, it does not return."""

    def __init__(self):
        self.heard = []
        self.threads = set()
        self.released = threading.Event()
        self.released.set()

    def __call__(self, execution, **_):
        self.heard.append(execution.id)
        self.threads.add(threading.current_thread().name)
        self.released.wait(PATIENCE)


@pytest.fixture
def signal():
    return Signal()


@pytest.fixture
def receiver(signal):
    receiver = Receiver()
    signal.connect(receiver, sender=Metadata)
    yield receiver
    receiver.released.set()


@pytest.fixture
def start():
    threads = []

    def start_one(**options):
        threads.append(SignalThread(**options))
        threads[-1].start()
        return threads[-1]

    yield start_one
    for thread in threads:
        thread.drain(soon())


def soon():
    return time.monotonic() + PATIENCE


def make_executions(number):
    return [make_execution(make_manifest(state={})).id for _ in range(number)]


def test_signals_are_sent_in_the_order_of_the_commits_by_a_thread_of_their_own(signal, receiver, start):
    ids = make_executions(5)
    thread = start()
    for part in (ids[3:], ids[:1], ids[1:3]):
        announce_executions(signal, part)
    thread.drain(soon())
    assert receiver.heard == [*ids[3:], *ids[:1], *ids[1:3]]
    assert receiver.threads == {"chainsched-signals"}
    assert thread.as_facts() == {}


def test_nothing_is_queued_for_a_transaction_that_is_rolled_back(signal, receiver, start):
    ids = make_executions(1)
    thread = start()
    with transaction.atomic():
        announce_executions(signal, ids)
        transaction.set_rollback(True)
    thread.drain(soon())
    assert receiver.heard == []


def test_who_announces_does_not_wait_for_a_receiver(signal, receiver, start):
    ids = make_executions(3)
    receiver.released.clear()
    thread = start()
    for id_ in ids:
        announce_executions(signal, [id_])
    wait_until(lambda: receiver.heard == ids[:1])
    facts = thread.as_facts()
    assert (facts["waiting"], facts["dropped"], facts["is_dropping"]) == (3, 0, False)
    wait_until(lambda: thread.as_facts()["oldest_seconds"] > 0)
    receiver.released.set()
    wait_until(lambda: receiver.heard == ids)


def test_rows_that_do_not_fit_are_dropped_and_counted(signal, receiver, start, caplog):
    ids = make_executions(6)
    receiver.released.clear()
    thread = start(max_rows=3)
    announce_executions(signal, ids[:2])
    announce_executions(signal, ids[2:5])
    announce_executions(signal, ids[5:])
    facts = thread.as_facts()
    assert (facts["waiting"], facts["dropped"], facts["is_dropping"]) == (3, 3, True)
    assert [record.levelname for record in caplog.records] == ["ERROR"], "one line for a series"
    receiver.released.set()
    wait_until(lambda: not thread.as_facts()["is_dropping"])
    assert receiver.heard == ids[:3]
    assert "3 were dropped" in caplog.records[-1].message
    announce_executions(signal, ids[3:])
    thread.drain(soon())
    assert receiver.heard == ids, "there is room again"
    assert thread.as_facts()["dropped"] == 3


def test_what_cannot_be_sent_in_time_is_dropped_and_counted(signal, receiver, start, caplog):
    ids = make_executions(4)
    receiver.released.clear()
    thread = start()
    announce_executions(signal, ids)
    wait_until(lambda: receiver.heard == ids[:1])
    thread.drain(time.monotonic())
    assert thread.as_facts() == {"waiting": 0, "oldest_seconds": 0, "dropped": 4, "is_dropping": False}
    assert "4 signals were not sent" in caplog.text
    receiver.released.set()
    wait_until(lambda: not thread._thread.is_alive())
    assert receiver.heard == ids[:1], "none is sent once it was counted as dropped"


def test_a_receiver_that_raises_or_exits_costs_nobody_anything(signal, receiver, start, caplog):
    def fail(**_):
        raise RuntimeError("receiver is broken")

    def leave(**_):
        sys.exit()

    ids = make_executions(2)
    signal.disconnect(receiver, sender=Metadata)
    for one in (fail, receiver, leave):
        signal.connect(one, sender=Metadata)
    thread = start()
    announce_executions(signal, ids)
    thread.drain(soon())
    assert receiver.heard == ids
    assert caplog.text.count("receiver is broken") >= 2
    assert caplog.text.count("A receiver of a signal tried to end its thread.") == 2


def test_a_transaction_that_a_receiver_leaves_open_is_closed(signal, receiver, start):
    def leave_open(**_):
        transaction.atomic().__enter__()

    first, second = make_executions(2)
    signal.connect(leave_open, sender=Metadata)
    thread = start()
    announce_executions(signal, [first])
    wait_until(lambda: thread.as_facts() == {})
    Metadata.objects.filter(id=second).update(progress={"done": 1})
    announce_executions(signal, [second])
    thread.drain(soon())
    assert receiver.heard == [first, second]


def test_signals_are_late_while_the_database_is_away_and_not_lost(signal, receiver, start, monkeypatch):
    ids = make_executions(2)
    failures = iter([OperationalError("gone")] * 3)
    load = Announcement.load

    def fail_at_first(announcement):
        for error in failures:
            raise error
        return load(announcement)

    monkeypatch.setattr(Announcement, "load", fail_at_first)
    monkeypatch.setattr(signal_thread, "PAUSE", 0.01)
    thread = start()
    announce_executions(signal, ids)
    thread.drain(soon())
    assert receiver.heard == ids


def test_rows_that_can_never_be_loaded_are_dropped(signal, receiver, start, monkeypatch, caplog):
    ids = make_executions(2)
    load = Announcement.load

    def fail_for_the_first(announcement):
        if ids[0] in announcement.ids:
            raise ValueError("unreadable")
        return load(announcement)

    monkeypatch.setattr(Announcement, "load", fail_for_the_first)
    thread = start()
    for id_ in ids:
        announce_executions(signal, [id_])
    thread.drain(soon())
    assert receiver.heard == ids[1:]
    assert thread.as_facts()["dropped"] == 1
    assert "could not be loaded for 1 signals" in caplog.text


def test_rows_that_were_removed_meanwhile_are_skipped(signal, receiver, start):
    ids = make_executions(3)
    receiver.released.clear()
    thread = start()
    announce_executions(signal, ids[:1])
    wait_until(lambda: receiver.heard)
    announce_executions(signal, [ids[1], 10**9, ids[2]])
    receiver.released.set()
    thread.drain(soon())
    assert receiver.heard == ids
    assert thread.as_facts() == {}


def test_a_large_batch_is_loaded_in_parts(signal, receiver, monkeypatch):
    monkeypatch.setattr(signal_queue, "LOADED", 2)
    ids = make_executions(5)
    queue = SignalQueue()
    queue.put(Announcement(signal, Metadata, "execution", ids))
    parts = []
    while queue.as_facts():
        part = queue.first()
        parts.append(list(part.announcement.ids))
        queue.remove(part)
    assert parts == [ids[:2], ids[2:4], ids[4:]]


def test_after_its_end_receivers_are_called_at_once(signal, receiver, start):
    ids = make_executions(1)
    start().drain(soon())
    assert announce._sender is send_now
    announce_executions(signal, ids)
    assert receiver.heard == ids
    assert receiver.threads == {threading.current_thread().name}


@pytest.mark.parametrize(("server", "is_at_once"), [("database", False), ("inline", True)])
def test_a_supervisor_calls_receivers_at_once_only_for_the_inline_server(settings, receiver, server, is_at_once):
    settings.CHAINSCHED = {"TASK_SERVER": server}
    signals.execution_ended.connect(receiver, sender=Metadata)
    schedules = Schedules()
    schedules.schedule(workflows.ping, "job", None, Every.hours(1))
    seed(schedules, now=database_now())
    try:
        processes = 0 if is_at_once else 1
        Supervisor(Roles("scheduler", LOOPS, processes=processes)).run_once()
    finally:
        signals.execution_ended.disconnect(receiver, sender=Metadata)
    assert receiver.heard == [Metadata.objects.get().id]
    assert ("chainsched-signals" in receiver.threads) is not is_at_once
    assert Process.objects.exclude(signals={}).count() == 0
