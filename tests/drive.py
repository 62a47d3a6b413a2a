"""A workbench that begins at a fixed time with nothing declared, and short ways to look at rows."""

from collections.abc import Collection, Iterator
from datetime import datetime, timedelta

from chainsched.conf import get_config
from chainsched.domain.routing import Pool
from chainsched.domain.states import ExecutionState
from chainsched.flow.maintain.reap import Reaped, reap
from chainsched.flow.run.park import park, release
from chainsched.flow.schedule.declare import Schedules
from chainsched.models import Manifest, Metadata, Process
from chainsched.testing import Workbench
from tests.factories import NOW


def new_bench() -> Workbench:
    return Workbench(NOW, declared=Schedules())


def executions_of(external_id: str) -> list[Metadata]:
    return list(Metadata.objects.filter(manifest_external_id=external_id).order_by("id"))


def manifest(external_id: str) -> Manifest:
    return Manifest.objects.select_related("state").get(external_id=external_id)


def alarm_of(external_id: str) -> datetime | None:
    return manifest(external_id).next_run_at


def start_running(bench: Workbench) -> None:
    """Let a worker have taken what is pending."""
    pending = Metadata.objects.filter(state=ExecutionState.PENDING)
    pending.update(state=ExecutionState.IN_PROGRESS, process=bench.process, started_at=bench.now)


def keep_line(workflows: Collection[str], *, now: datetime) -> None:
    """As a dispatcher does before workers take rows: let parked rows in, and park those that may not start."""
    pools = [Pool(workflows)]
    release(pools, now=now)
    park(pools, now=now)


def run_on(bench: Workbench) -> None:
    """Let what is running be picked up by the next ``work()``, which runs it to its end."""
    Metadata.objects.in_progress().update(state=ExecutionState.PENDING, process=None, started_at=None)


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def ticks(self, *, until: float, every: float = 5) -> Iterator[float]:
        """Its times from now on, until it has come so far."""
        while self.seconds < until:
            yield self.seconds
            self.seconds = min(until, self.seconds + every)
        yield self.seconds


def reap_silent(*, now: datetime) -> Reaped:
    """Reap as a reaper does that has been watching all along."""
    return reap(silent=silent_processes(now=now), now=now)


def silent_processes(*, now: datetime) -> dict[int, datetime]:
    """The processes whose heartbeat has stood still for one expiry, with that heartbeat."""
    expired_before = now - timedelta(seconds=get_config().process_expiry)
    return {pk: at for pk, at in Process.objects.heartbeats().items() if at < expired_before}
