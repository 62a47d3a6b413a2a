"""Signals: once a row, after the commit, and harmless when a receiver fails."""

from collections import Counter

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from chainsched import Every, signals
from chainsched.domain.states import DeadLetterStatus, ExecutionState
from chainsched.models import DeadLetter, Metadata
from tests.drive import executions_of, manifest
from tests.testapp import workflows

# Real transactions: what is sent after a commit is sent after none in a test that never commits.
pytestmark = pytest.mark.django_db(transaction=True)

EXECUTION = {
    "dispatched": signals.execution_dispatched,
    "started": signals.execution_started,
    "ended": signals.execution_ended,
}
LETTER = {"created": signals.dead_letter_created, "resolved": signals.dead_letter_resolved}


class Listener:
    """Notes what it hears, and in which state the row is."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []
        self.in_transaction = Counter[bool]()
        self._receivers: list[object] = []

    def listen(self) -> None:
        for name, signal in EXECUTION.items():
            signal.connect(self._receiver(name, "execution", "state"), sender=Metadata, weak=False)
        for name, signal in LETTER.items():
            signal.connect(self._receiver(name, "dead_letter", "status"), sender=DeadLetter, weak=False)

    def _receiver(self, name, argument, column):
        def receive(**kwargs):
            self.in_transaction[transaction.get_connection().in_atomic_block] += 1
            self.heard.append((name, getattr(kwargs[argument], column)))

        return receive


def forget_receivers():
    for signal in (*EXECUTION.values(), *LETTER.values()):
        signal.receivers.clear()
        signal.sender_receivers_cache.clear()


@pytest.fixture
def listener():
    listener = Listener()
    listener.listen()
    yield listener
    forget_receivers()


@pytest.fixture(autouse=True)
def _silence_afterwards():
    yield
    forget_receivers()


def test_the_life_of_an_execution_is_told(bench, listener):
    bench.schedules.schedule(workflows.ping, "job", None, Every.hours(1))
    bench.seed()
    bench.drain()
    assert listener.heard == [("dispatched", "pending"), ("started", "in_progress"), ("ended", "completed")]
    assert listener.in_transaction == {False: 3}


def test_a_dead_letter_is_told_when_it_comes_and_when_somebody_decides(bench, listener):
    bench.schedules.schedule(workflows.give_up, "job", None, Every.hours(1))
    bench.seed()
    bench.drain()
    DeadLetter.objects.get().retry()
    bench.drain()
    DeadLetter.objects.awaiting().get().acknowledge()
    letters = [heard for heard in listener.heard if heard[0] in LETTER]
    assert letters == [
        ("created", DeadLetterStatus.AWAITING_INTERVENTION),
        ("resolved", DeadLetterStatus.RETRIED),
        ("created", DeadLetterStatus.AWAITING_INTERVENTION),
        ("resolved", DeadLetterStatus.ACKNOWLEDGED),
    ]


def test_letters_closed_with_their_manifest_are_told(bench, listener):
    bench.schedules.schedule(workflows.give_up, "job", None, Every.hours(1))
    bench.seed()
    bench.drain()
    manifest("job").delete()
    assert listener.heard[-1] == ("resolved", DeadLetterStatus.ACKNOWLEDGED)


def test_a_cancelled_execution_is_told(bench, listener):
    bench.schedules.schedule(workflows.ping, "job", None, Every.hours(1))
    bench.seed()
    bench.manage()
    bench.dispatch()
    executions_of("job")[0].cancel()
    assert listener.heard[-1] == ("ended", "cancelled")


def test_what_is_rolled_back_is_never_told(bench, listener):
    bench.schedules.schedule(workflows.ping, "job", None, Every.hours(1))
    bench.seed()
    bench.manage()
    with transaction.atomic():
        bench.dispatch()
        transaction.set_rollback(True)
    assert listener.heard == []


def test_a_receiver_that_fails_is_logged_and_harms_nothing(bench, listener, caplog):
    def fail(**_):
        raise RuntimeError("receiver is broken")

    for signal in EXECUTION.values():
        signal.connect(fail, sender=Metadata)
    bench.schedules.schedule(workflows.ping, "job", None, Every.hours(1)).include(workflows.ping, "next")
    bench.seed()
    assert bench.drain() == ["job", "next"]
    assert "receiver is broken" in caplog.text
    assert len(listener.heard) == 6
    assert executions_of("job")[0].state == ExecutionState.COMPLETED


def test_nothing_is_loaded_when_nobody_listens(bench):
    bench.schedules.schedule(workflows.ping, "job", None, None)
    bench.seed()

    def queries_of_a_dispatch() -> int:
        manifest("job").trigger()
        with CaptureQueriesContext(connection) as queries:
            assert bench.dispatch() == 1
        bench.work()
        return len(queries)

    queries_of_a_dispatch()  # the first makes the row that dispatchers lock
    unheard = queries_of_a_dispatch()
    signals.execution_dispatched.connect(lambda **_: None, sender=Metadata, weak=False)
    assert queries_of_a_dispatch() == unheard + 1
