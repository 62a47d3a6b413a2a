"""A head, any number of members, and a join of them all, with real rows at every stage of a run."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from chainsched import ManifestItem
from chainsched.domain import outcomes
from chainsched.domain.joins import JoinOutcome
from chainsched.domain.outcomes import Finished, Outcome
from chainsched.flow.run.claim import claim
from chainsched.flow.run.record import record
from chainsched.models import GraphRun, JoinState, Manifest, Metadata
from chainsched.models.near import RUN_END
from chainsched.registry import registry
from chainsched.testing import Workbench
from tests.drive import manifest
from tests.factories import make_process
from tests.testapp import workflows

COMPLETED = outcomes.completed("pong")


class Gathering:
    """Members run after their head; the join waits for them. All names begin with the name of the gathering."""

    def __init__(self, bench: Workbench, *, members: int, name: str = "", **options: Any) -> None:
        self.bench = bench
        self.name = name
        self.members = members
        self.group = f"{name}group"
        self.head = Manifest.objects.schedule(workflows.ping, f"{name}head", None, None, group=self.group)
        items = [ManifestItem(str(at), depends_on=self.head.external_id, group=self.group) for at in range(members)]
        Manifest.objects.schedule_many_dependent(workflows.ping, f"{name}m", items)
        self.join = self.add("join", fan_in=True, **options)
        names = registry.names()
        self.worker = make_process(workflows=names, started_at=bench.now, heartbeat_at=bench.now)

    def add(self, name: str, *, on: str = "head", **options: Any) -> Manifest:
        """A further manifest after one of the gathering."""
        parent = f"{self.name}{on}"
        named = f"{self.name}{name}"
        stated = {"group": self.group, **options}
        return Manifest.objects.schedule_dependent(workflows.ping, named, None, depends_on=parent, **stated)

    def member(self, at: int) -> Manifest:
        return manifest(f"{self.name}m-{at}")

    # Where it stands: each of these goes on from the one before.

    def head_runs(self) -> None:
        self.head.trigger()
        self.start()

    def members_are_due(self) -> None:
        self.head_runs()
        self.end("head")

    def members_wait(self) -> None:
        self.members_are_due()
        self.bench.manage()

    def members_are_dispatched(self) -> None:
        self.members_wait()
        while self.bench.dispatch():
            pass

    def members_run(self) -> None:
        self.members_are_dispatched()
        self.claim()

    # What happens next.

    def start(self) -> None:
        """What is due or queued runs."""
        self.bench.manage()
        while self.bench.dispatch():
            pass
        self.claim()

    def claim(self) -> None:
        claim(process=self.worker, workflows=registry.names(), limit=self.members + 100, now=self.bench.now)

    def end(self, *names: str, result: Outcome = COMPLETED) -> None:
        self.recording(*names, result=result)()

    def recording(self, *names: str, result: Outcome = COMPLETED) -> Callable[[], list[int]]:
        """A call that records the ends of these; it returns the executions that ended."""
        wanted = [f"{self.name}{name}" for name in names]
        running = Metadata.objects.in_progress().filter(manifest_external_id__in=wanted)
        ids = list(running.order_by("id").values_list("id", flat=True))
        assert len(ids) == len(names), "not all of them run"
        return self.recording_of(ids, result=result)

    def recording_of(self, execution_ids: Sequence[int], *, result: Outcome = COMPLETED) -> Callable[[], list[int]]:
        finished = [Finished(id_, result) for id_ in execution_ids]
        return lambda: record(finished, by=self.worker, now=self.bench.now).ended

    def running_members(self) -> list[int]:
        """The executions of members that run, in their order."""
        running = Metadata.objects.in_progress().filter(manifest_external_id__startswith=f"{self.name}m-")
        return list(running.order_by("id").values_list("id", flat=True))

    # What is to be seen.

    @property
    def run(self) -> GraphRun:
        """The newest run of the head."""
        return GraphRun.objects.filter(head=self.head.id).latest()

    def state(self, run: GraphRun | None = None) -> JoinState:
        """How the join stands in a run."""
        return JoinState.objects.get(run=run or self.run, join_id=self.join.id)

    def end_state(self, run: GraphRun | None = None) -> JoinState:
        return JoinState.objects.get(run=run or self.run, join_id=RUN_END)

    def firings(self) -> int:
        """In how many runs the join ran, each as often as it did."""
        return sum(self.runs_of_join().values_list("firings", flat=True))

    def runs_of_join(self) -> Any:
        return JoinState.objects.filter(join_id=self.join.id).exclude(outcome=JoinOutcome.WAITING)


def parts(ids: Sequence[int], *, of: int) -> Iterable[Sequence[int]]:
    """Batches of so many."""
    return [ids[at : at + of] for at in range(0, len(ids), of)]
