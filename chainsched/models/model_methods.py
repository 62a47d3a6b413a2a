"""The methods at run time of manifests, groups, executions, queue rows, dead letters and bulk decisions.

Each calls the function of ``chainsched.api`` that documents it. That module is loaded at the first call, because
everything else in ``models`` points down. Each verb of ``operations.py`` has its method here, and an async twin for
views.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from asgiref.sync import sync_to_async
from django.utils.functional import SimpleLazyObject

from chainsched.domain.declarations import Items
from chainsched.domain.inputs import OWN_INPUT
from chainsched.domain.results import Ancestry, Answer, Cancelled, Explanation, Resolved, RunReport
from chainsched.domain.schedules import Schedule
from chainsched.registry import WorkflowRef

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from chainsched import api as api  # noqa: PLC0414 - so that manifest.py may import it from here
    from chainsched.models.bulk_decision import BulkDecision
    from chainsched.models.dead_letter import DeadLetter
    from chainsched.models.graph_run import GraphRun
    from chainsched.models.manifest import Manifest
    from chainsched.models.manifest_group import ManifestGroup
    from chainsched.models.metadata import Metadata
    from chainsched.models.work_queue import WorkQueue
else:
    api = SimpleLazyObject(lambda: import_module("chainsched.api"))

P = ParamSpec("P")
R = TypeVar("R")

ON_REQUEST = "cancelled on request"


def async_twin(method: Callable[P, R]) -> Callable[P, Coroutine[Any, Any, R]]:
    """The same method for async code: it runs in a thread, where the database may be used."""

    async def twin(*args: P.args, **kwargs: P.kwargs) -> R:
        # By name, so that a class which overrides the method has its own twin.
        row, *others = args
        return cast("R", await sync_to_async(getattr(row, method.__name__))(*others, **kwargs))

    twin.__doc__ = f"Call ``{method.__name__}`` from async code."
    twin.__name__ = f"a{method.__name__}"
    return twin


class ManifestScheduling:
    """For the manager of manifests."""

    def schedule(
        self, workflow: WorkflowRef, external_id: str, input: Any, schedule: Schedule | None, **options: Any
    ) -> Manifest:
        """Create or change a manifest; with None as its schedule it runs only when triggered."""
        return api.schedule(workflow, external_id, input, schedule, **options)

    def schedule_once(
        self, workflow: WorkflowRef, external_id: str, input: Any, at: datetime, **options: Any
    ) -> Manifest:
        """Create or change a manifest that runs once, at this time."""
        return api.schedule_once(workflow, external_id, input, at, **options)

    def schedule_dependent(
        self, workflow: WorkflowRef, external_id: str, input: Any, *, depends_on: str | Sequence[str], **options: Any
    ) -> Manifest:
        """Create or change a manifest that runs after another one, or as a join after several."""
        return api.schedule_dependent(workflow, external_id, input, depends_on=depends_on, **options)

    def schedule_child(
        self, workflow: WorkflowRef, external_id: str, input: Any, *, parent: str, **options: Any
    ) -> Manifest:
        """Create a manifest that runs once, after the next matching outcome of its parent."""
        return api.schedule_child(workflow, external_id, input, parent=parent, **options)

    def schedule_many(
        self, workflow: WorkflowRef, name: str | None, items: Items, schedule: Schedule | None, **options: Any
    ) -> list[Manifest]:
        """Create or change a batch, all of it or none."""
        return api.schedule_many(workflow, name, items, schedule, **options)

    def schedule_many_dependent(
        self, workflow: WorkflowRef, name: str | None, items: Items, **options: Any
    ) -> list[Manifest]:
        """Create or change a batch of dependents, all of it or none."""
        return api.schedule_many_dependent(workflow, name, items, **options)

    def trigger_many(
        self,
        manifests: Iterable[Manifest | str] | Mapping[Manifest | str, Any],
        *,
        delay: timedelta | float | None = None,
    ) -> dict[str, Answer]:
        """Run these, given as rows or external ids, all or none; a mapping gives each an input. Answers by name."""
        return api.trigger_many(manifests, delay=delay)

    aschedule = async_twin(schedule)
    aschedule_once = async_twin(schedule_once)
    aschedule_dependent = async_twin(schedule_dependent)
    aschedule_child = async_twin(schedule_child)
    aschedule_many = async_twin(schedule_many)
    aschedule_many_dependent = async_twin(schedule_many_dependent)
    atrigger_many = async_twin(trigger_many)


class ManifestActions:
    """For a manifest."""

    def trigger(self, delay: timedelta | float | None = None, *, input: Any = OWN_INPUT) -> Answer:
        """Run it now, after a delay, or, if it is busy, once more afterwards; the answer says which."""
        return api.trigger(cast("Manifest", self), delay=delay, input=input)

    def enable(self) -> bool:
        """Let it run again, from now; False if it could already."""
        return api.enable(cast("Manifest", self))

    def disable(self) -> bool:
        """Let it run only when triggered; False if it was off already."""
        return api.disable(cast("Manifest", self))

    def cancel(self, *, reason: str = ON_REQUEST) -> Cancelled:
        """Stop its queued row, or its pending or running execution; the occurrence is consumed."""
        return api.cancel(cast("Manifest", self), reason=reason)

    def explain(self) -> Explanation:
        """Why it is or is not running now, by the rules that the loops use."""
        return api.explain(cast("Manifest", self))

    def activate(self, input: Any = None) -> Answer:
        """Queue a run of a dormant child with this input, or its own; the answer says whether it was queued."""
        return api.activate(cast("Manifest", self), input)

    def delete(self, *_args: Any, **_kwargs: Any) -> tuple[int, dict[str, int]]:
        """Remove it for good: its queued row is cancelled, letters are closed, history stays."""
        return api.remove([cast("Manifest", self).id])

    atrigger = async_twin(trigger)
    aenable = async_twin(enable)
    adisable = async_twin(disable)
    acancel = async_twin(cancel)
    aactivate = async_twin(activate)
    aexplain = async_twin(explain)


class ExecutionActions:
    """For an execution."""

    def tree(self) -> QuerySet[Metadata]:
        """All executions of the tree that it belongs to, the root included, oldest first: one query."""
        return api.tree(cast("Metadata", self))

    def cancel(self, *, tree: bool = False, reason: str = ON_REQUEST) -> Cancelled:
        """Stop it, with ``tree`` also the work it led to: of the head of a run the whole run. Counts stopped work."""
        return api.cancel_execution(cast("Metadata", self), tree=tree, reason=reason)

    def cancel_tree(self, *, reason: str = ON_REQUEST) -> Cancelled:
        """Stop it and the work it led to; the same as ``cancel(tree=True)``."""
        return self.cancel(tree=True, reason=reason)

    def explain(self) -> Ancestry:
        """Its causes, one after the other, up to the root."""
        return api.explain_execution(cast("Metadata", self))

    def run_again(self) -> Answer:
        """Trigger its manifest with the input that it had; the answer says whether it was queued."""
        return api.run_again(cast("Metadata", self))

    def run_from_here(self) -> Answer:
        """Run its manifest once more in the same run of the graph, and go on from there."""
        return api.run_from_here(cast("Metadata", self))

    acancel = async_twin(cancel)
    arun_from_here = async_twin(run_from_here)
    acancel_tree = async_twin(cancel_tree)
    arun_again = async_twin(run_again)
    aexplain = async_twin(explain)


class RunActions:
    """For a run of the graph."""

    def executions(self) -> QuerySet[Metadata]:
        """Its executions, and those that stood for it besides another run, oldest first."""
        return api.executions_of_run(cast("GraphRun", self))

    def cancel(self, *, reason: str = ON_REQUEST) -> Cancelled:
        """Stop all its work, and let nothing more follow in it; items that also stand for other runs go on."""
        return api.cancel_run(cast("GraphRun", self), reason=reason)

    def describe(self) -> RunReport:
        """How it goes: its executions by state and workflow, its open work, and what its joins wait for."""
        return api.describe_run(cast("GraphRun", self))

    acancel = async_twin(cancel)
    adescribe = async_twin(describe)


class GroupActions:
    """For a group."""

    def trigger(self) -> Counter[Answer]:
        """Run all enabled members that depend on no other manifest; counts the answers."""
        return api.trigger_group(cast("ManifestGroup", self))

    def enable(self) -> bool:
        """Let its manifests run again, from now; False if they could already."""
        return api.enable_group(cast("ManifestGroup", self))

    def disable(self) -> bool:
        """Let none of its work be queued or dispatched; False if it was off already."""
        return api.disable_group(cast("ManifestGroup", self))

    def cancel(self, *, reason: str = ON_REQUEST) -> Cancelled:
        """Stop the open work of all its members."""
        return api.cancel_group(cast("ManifestGroup", self), reason=reason)

    def set_limits(self, *, max_active_jobs: int | None, priority: int, queue: str | None = None) -> bool:
        """Let this many of its jobs be active at once, or any number, at this priority; False if nothing changed.

        Workers take its jobs from this ``queue``, if given; an empty name stands for no queue of its own.
        """
        return api.set_limits(
            cast("ManifestGroup", self), max_active_jobs=max_active_jobs, priority=priority, queue=queue
        )

    atrigger = async_twin(trigger)
    aenable = async_twin(enable)
    adisable = async_twin(disable)
    acancel = async_twin(cancel)
    aset_limits = async_twin(set_limits)


class QueueActions:
    """For a row of the work queue."""

    def cancel(self, *, reason: str = ON_REQUEST) -> bool:
        """Take it out of the queue; the occurrence is consumed. False if it waits no longer."""
        return api.cancel_row(cast("WorkQueue", self), reason=reason)

    def bring_forward(self) -> bool:
        """Dispatch it at once, before all others of its priority; False if it waits no longer."""
        return api.bring_forward(cast("WorkQueue", self))

    def explain(self) -> Explanation:
        """The reason for which it waits, in the order in which dispatch asks; or that it waits no longer."""
        return api.explain_row(cast("WorkQueue", self))

    acancel = async_twin(cancel)
    abring_forward = async_twin(bring_forward)
    aexplain = async_twin(explain)


class DeadLetterActions:
    """For a dead letter."""

    def retry(self, *, by: Any = None, note: str = "") -> Resolved:
        """Queue another run with the input of the one that failed; the answer says whether it took effect."""
        return api.retry_letters([cast("DeadLetter", self)], by=by, note=note)

    def acknowledge(self, *, by: Any = None, note: str = "") -> Resolved:
        """Close it without another run; the answer says whether it took effect."""
        return api.acknowledge_letters([cast("DeadLetter", self)], by=by, note=note)

    aretry = async_twin(retry)
    aacknowledge = async_twin(acknowledge)


class BulkDecisionActions:
    """For a bulk decision."""

    def cancel(self, *, reason: str = ON_REQUEST) -> bool:
        """Leave its remaining dead letters undecided; False if it was over."""
        return api.cancel_bulk_decision(cast("BulkDecision", self), reason=reason)

    acancel = async_twin(cancel)
