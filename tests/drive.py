"""A hand on the clock: takes the turns of all loops one after the other, at a time that the test chooses."""

from datetime import datetime, timedelta
from functools import cached_property

from chainsched.flow.declare import Schedules
from chainsched.flow.dispatch import dispatch
from chainsched.flow.execute import begin, claim, execute
from chainsched.flow.record import Finished, Recorded, record
from chainsched.flow.seed import Seeded, seed
from chainsched.models import Manifest, Metadata, Process
from chainsched.registry import registry
from chainsched.runtime import manifest_manager
from tests.factories import NOW, make_process


class Drive:
    def __init__(self) -> None:
        self.now = NOW
        self.schedules = Schedules()

    @cached_property
    def process(self) -> Process:
        return make_process(workflows=registry.names())

    def advance(self, **delta: float) -> datetime:
        self.now += timedelta(**delta)
        return self.now

    def seed(self) -> Seeded:
        return seed(self.schedules, now=self.now)

    def manage(self) -> int:
        return manifest_manager.turn(self.now).did

    def dispatch(self) -> int:
        return len(dispatch(workflows=registry.names(), now=self.now).execution_ids)

    def work(self) -> Recorded:
        claims = claim(process=self.process, workflows=registry.names(), limit=1000, now=self.now)
        begin(claims, process=self.process, now=self.now)
        return record([Finished(item.execution_id, execute(item)) for item in claims], by=self.process, now=self.now)

    def round(self) -> list[str]:
        """One turn of everything; returns what ran."""
        self.manage()
        self.dispatch()
        ended = self.work().ended
        names = dict(Metadata.objects.filter(id__in=ended).values_list("id", "manifest_external_id"))
        return [names[execution_id] for execution_id in ended]

    def settle(self) -> list[str]:
        """Rounds until nothing runs any more; returns what ran, in order."""
        ran: list[str] = []
        while names := self.round():
            ran += names
        return ran


def executions_of(external_id: str) -> list[Metadata]:
    return list(Metadata.objects.filter(manifest_external_id=external_id).order_by("id"))


def manifest(external_id: str) -> Manifest:
    return Manifest.objects.select_related("state").get(external_id=external_id)
