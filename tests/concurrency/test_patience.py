"""What needs many locks at once waits for one that is held for minutes, and holds no other meanwhile."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError

from chainsched import Every, ManifestItem
from chainsched.db import locks
from chainsched.flow import transactions
from chainsched.flow.maintain.clean import clean, policy
from chainsched.flow.schedule.declare import Schedules
from chainsched.models import Manifest, NamedLock, WorkQueue
from chainsched.models.named_lock import GRAPH
from chainsched.testing import Workbench
from tests.concurrency.interleaving import PATIENCE, Actor, Call, actors
from tests.concurrency.rules import check_rules
from tests.concurrency.test_open_transactions import Holder
from tests.drive import manifest, new_bench
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.postgres, pytest.mark.django_db(transaction=True)]

MEMBERS = 50


@pytest.fixture(autouse=True)
def brief_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """No wait for the graph ends because the machine is slow; others end soon, and are tried again for long."""
    monkeypatch.setattr(locks, "LOCK_TIMEOUT", f"{PATIENCE}s")
    monkeypatch.setattr(locks, "IDLE_TIMEOUT", f"{PATIENCE}s")
    monkeypatch.setattr(locks, "SHORT_LOCK_TIMEOUT", "50ms")
    monkeypatch.setattr(transactions, "MAX_WAITS", dict.fromkeys(transactions.MAX_WAITS, 5.0 * PATIENCE))
    monkeypatch.setattr(transactions, "MAX_PAUSE", 0.1)


@pytest.fixture
def bench() -> Iterator[Workbench]:
    with new_bench() as bench:
        declare(bench, priority=0)
        bench.seed()
        bench.advance(hours=2)
        yield bench


@pytest.fixture
def other() -> Iterator[Actor]:
    with actors(1) as (other,):
        yield other


def declare(bench: Workbench, *, priority: int) -> None:
    """Fifty manifests that will be due."""
    bench.schedules = Schedules()
    items = [ManifestItem(str(number), workflows.Slice(f"t{number}")) for number in range(MEMBERS)]
    bench.schedules.schedule_many(workflows.copy, "m", items, Every.hours(1), priority=priority)


def queued() -> set[str]:
    return set(WorkQueue.objects.queued().values_list("manifest_external_id", flat=True))


def try_in_vain(other: Actor, call: Call) -> None:
    """Start a call, and let it wait for a lock, give it up, and wait again."""
    other.start(call)
    for _ in range(2):
        wait_until(other.is_held, interval=0.001)
        wait_until(lambda: not other.is_held(), interval=0.001)
    assert not other.is_done


def test_a_seed_that_waits_for_one_manifest_holds_up_no_other(bench, other):
    declare(bench, priority=7)
    with Holder(manifest("m-25").trigger):
        try_in_vain(other, bench.seed)
        wait_until(lambda: (bench.manage(), len(queued()) >= MEMBERS - 1)[1])
        assert queued() == {f"m-{number}" for number in range(MEMBERS) if number != 25}
        Manifest.objects.schedule_child(workflows.ping, "child", None, parent="m-3")
        assert not other.is_done
    other.result()
    assert set(Manifest.objects.filter(batch="m").values_list("priority", flat=True)) == {7}
    bench.drain()
    check_rules(bench)


@pytest.mark.parametrize(
    "call",
    [
        lambda: Manifest.objects.schedule_many(
            workflows.ping,
            "n",
            [ManifestItem(str(number)) for number in range(5)],
            Every.hours(2),
            group="n",
            priority=9,
        ),
        lambda: Manifest.objects.schedule_many(
            workflows.ping, "n", [ManifestItem("0")], Every.hours(1), group="n", prune=True
        ),
        lambda: Manifest.objects.schedule_child(workflows.ping, "child", None, parent="n-3"),
        lambda: Manifest.objects.filter(external_id__startswith="n-").delete(),
    ],
    ids=["schedule_many", "prune", "schedule_child", "delete"],
)
def test_a_call_that_waits_for_one_manifest_holds_neither_the_graph_nor_others(
    bench: Workbench, other: Actor, call: Callable[[], Any]
) -> None:
    items = [ManifestItem(str(number)) for number in range(5)]
    Manifest.objects.schedule_many(workflows.ping, "n", items, Every.hours(1), group="n")
    with Holder(manifest("n-3").trigger):
        try_in_vain(other, call)
        with actors(1) as (third,):
            third.start(lambda: NamedLock.objects.hold(GRAPH, now=bench.now))
            third.result()
            for name in ("n-0", "n-4"):
                third.start(manifest(name).trigger)
                third.result()
        assert not other.is_done
    other.result()
    bench.drain()
    check_rules(bench)


def test_a_call_gives_up_when_its_patience_is_over(bench, monkeypatch):
    monkeypatch.setattr(transactions, "MAX_WAITS", dict.fromkeys(transactions.MAX_WAITS, 0.0))
    with Holder(manifest("m-0").trigger), pytest.raises(OperationalError, match="lock timeout"):
        manifest("m-0").delete()
    assert Manifest.objects.filter(external_id="m-0").exists()


def test_retention_removes_what_is_free_and_the_rest_another_time(bench, other):
    Manifest.objects.update(retired_at=bench.now - timedelta(days=400))
    with Holder(manifest("m-25").disable):
        other.start(lambda: clean(policy(), now=bench.now).removed["manifests"])
        assert other.result() == MEMBERS - 1
        assert list(Manifest.objects.values_list("external_id", flat=True)) == ["m-25"]
    assert clean(policy(), now=bench.now).removed["manifests"] == 1


def test_retention_keeps_a_manifest_that_came_back_before_its_lock(bench, other):
    """It is judged by its row under the lock, and not by the list that was read before."""
    Manifest.objects.update(retired_at=bench.now - timedelta(days=400))
    with Holder(lambda: NamedLock.objects.hold(GRAPH, now=bench.now)):
        other.start(lambda: clean(policy(), now=bench.now).removed["manifests"])
        wait_until(other.is_held, interval=0.001)
        Manifest.objects.filter(external_id="m-7").update(retired_at=None)
    assert other.result() == MEMBERS - 1
    assert Manifest.objects.filter(external_id="m-7").exists()
