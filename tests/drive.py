"""A workbench that begins at a fixed time with nothing declared, and short ways to look at rows."""

from datetime import datetime

from chainsched.domain.states import ExecutionState
from chainsched.flow.schedule.declare import Schedules
from chainsched.models import Manifest, Metadata
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


def run_on(bench: Workbench) -> None:
    """Let what is running be picked up by the next ``work()``, which runs it to its end."""
    Metadata.objects.in_progress().update(state=ExecutionState.PENDING, process=None, started_at=None)
