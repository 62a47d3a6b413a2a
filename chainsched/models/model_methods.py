"""The front doors at run time: what manifests, groups, executions and letters can be asked to do.

Each leads to the call of the same name in ``chainsched.api``, which says what it does; it is imported inside, because
everything else in ``models`` points down. The async twins are for views.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from asgiref.sync import sync_to_async

from chainsched.domain.declarations import Items
from chainsched.domain.inputs import OWN_INPUT
from chainsched.domain.results import Ancestry, Answer, Cancelled, Explanation, Resolved
from chainsched.domain.schedules import Schedule
from chainsched.registry import WorkflowRef

if TYPE_CHECKING:
    from django.db.models import QuerySet

    from chainsched.models.dead_letter import DeadLetter
    from chainsched.models.manifest import Manifest
    from chainsched.models.manifest_group import ManifestGroup
    from chainsched.models.metadata import Metadata
    from chainsched.models.work_queue import WorkQueue

ON_REQUEST = "cancelled on request"


class ManifestScheduling:
    """For the manager of manifests."""

    def schedule(
        self, workflow: WorkflowRef, external_id: str, input: Any, schedule: Schedule | None, **options: Any
    ) -> Manifest:
        """Create or change a manifest; with None as its schedule it runs only when triggered."""
        from chainsched import api  # noqa: PLC0415

        return api.schedule(workflow, external_id, input, schedule, **options)

    def schedule_once(
        self, workflow: WorkflowRef, external_id: str, input: Any, at: datetime, **options: Any
    ) -> Manifest:
        """Create or change a manifest that runs once, at this time."""
        from chainsched import api  # noqa: PLC0415

        return api.schedule_once(workflow, external_id, input, at, **options)

    def schedule_dependent(
        self, workflow: WorkflowRef, external_id: str, input: Any, *, depends_on: str, **options: Any
    ) -> Manifest:
        """Create or change a manifest that runs after another one."""
        from chainsched import api  # noqa: PLC0415

        return api.schedule_dependent(workflow, external_id, input, depends_on=depends_on, **options)

    def schedule_child(
        self, workflow: WorkflowRef, external_id: str, input: Any, *, parent: str, **options: Any
    ) -> Manifest:
        """Create a manifest that runs once, after the next matching outcome of its parent."""
        from chainsched import api  # noqa: PLC0415

        return api.schedule_child(workflow, external_id, input, parent=parent, **options)

    def schedule_many(
        self, workflow: WorkflowRef, name: str | None, items: Items, schedule: Schedule | None, **options: Any
    ) -> list[Manifest]:
        """Create or change a batch, all of it or none."""
        from chainsched import api  # noqa: PLC0415

        return api.schedule_many(workflow, name, items, schedule, **options)

    def schedule_many_dependent(
        self, workflow: WorkflowRef, name: str | None, items: Items, **options: Any
    ) -> list[Manifest]:
        """Create or change a batch of dependents, all of it or none."""
        from chainsched import api  # noqa: PLC0415

        return api.schedule_many_dependent(workflow, name, items, **options)

    async def aschedule(self, *args: Any, **options: Any) -> Manifest:
        """Call ``schedule`` from async code."""
        return await sync_to_async(self.schedule)(*args, **options)

    async def aschedule_once(self, *args: Any, **options: Any) -> Manifest:
        """Call ``schedule_once`` from async code."""
        return await sync_to_async(self.schedule_once)(*args, **options)

    async def aschedule_dependent(self, *args: Any, **options: Any) -> Manifest:
        """Call ``schedule_dependent`` from async code."""
        return await sync_to_async(self.schedule_dependent)(*args, **options)

    async def aschedule_child(self, *args: Any, **options: Any) -> Manifest:
        """Call ``schedule_child`` from async code."""
        return await sync_to_async(self.schedule_child)(*args, **options)


class ManifestActions:
    """For a manifest."""

    def trigger(self, delay: timedelta | float | None = None, *, input: Any = OWN_INPUT) -> Answer:
        """Run it now, after a delay, or, if it is busy, once more afterwards; the answer says which."""
        from chainsched import api  # noqa: PLC0415

        return api.trigger(cast("Manifest", self), delay=delay, input=input)

    def enable(self) -> bool:
        """Let it run again, from now; False if it could already."""
        from chainsched import api  # noqa: PLC0415

        return api.enable(cast("Manifest", self))

    def disable(self) -> bool:
        """Let it run only when triggered; False if it was off already."""
        from chainsched import api  # noqa: PLC0415

        return api.disable(cast("Manifest", self))

    def cancel(self, *, reason: str = ON_REQUEST) -> Cancelled:
        """Stop what it has under way; the occurrence is consumed."""
        from chainsched import api  # noqa: PLC0415

        return api.cancel(cast("Manifest", self), reason=reason)

    def explain(self) -> Explanation:
        """Why it is or is not running now, by the rules that the loops use."""
        from chainsched import api  # noqa: PLC0415

        return api.explain(cast("Manifest", self))

    def activate(self, input: Any = None) -> Answer:
        """Wake it, if it is a dormant child, with this input; the answer says what became of it."""
        from chainsched import api  # noqa: PLC0415

        return api.activate(cast("Manifest", self), input)

    async def aactivate(self, input: Any = None) -> Answer:
        """Call ``activate`` from async code."""
        return await sync_to_async(self.activate)(input)

    async def atrigger(self, delay: timedelta | float | None = None, *, input: Any = OWN_INPUT) -> Answer:
        """Call ``trigger`` from async code."""
        return await sync_to_async(self.trigger)(delay, input=input)

    async def aenable(self) -> bool:
        """Call ``enable`` from async code."""
        return await sync_to_async(self.enable)()

    async def adisable(self) -> bool:
        """Call ``disable`` from async code."""
        return await sync_to_async(self.disable)()

    async def acancel(self, *, reason: str = ON_REQUEST) -> Cancelled:
        """Call ``cancel`` from async code."""
        return await sync_to_async(self.cancel)(reason=reason)

    def delete(self, *_args: Any, **_kwargs: Any) -> tuple[int, dict[str, int]]:
        """Remove it for good: what waits is cancelled, letters are closed, history stays."""
        from chainsched import api  # noqa: PLC0415

        return api.remove([cast("Manifest", self).id])


class ExecutionActions:
    """For an execution."""

    def tree(self) -> QuerySet[Metadata]:
        """All executions of the tree that it belongs to, the root included, oldest first: one query."""
        from chainsched import api  # noqa: PLC0415

        return api.tree(cast("Metadata", self))

    def cancel(self, *, tree: bool = False, reason: str = ON_REQUEST) -> Cancelled:
        """Stop it, or with ``tree`` everything that its root led to; says what was stopped."""
        from chainsched import api  # noqa: PLC0415

        return api.cancel_execution(cast("Metadata", self), tree=tree, reason=reason)

    def explain(self) -> Ancestry:
        """What caused it, link by link, up to the root."""
        from chainsched import api  # noqa: PLC0415

        return api.explain_execution(cast("Metadata", self))

    def run_again(self) -> Answer:
        """Trigger its manifest with the input that it had; the answer says what became of it."""
        from chainsched import api  # noqa: PLC0415

        return api.run_again(cast("Metadata", self))

    async def acancel(self, *, tree: bool = False, reason: str = ON_REQUEST) -> Cancelled:
        """Call ``cancel`` from async code."""
        return await sync_to_async(self.cancel)(tree=tree, reason=reason)


class GroupActions:
    """For a group."""

    def trigger(self) -> Counter[Answer]:
        """Run all enabled members that depend on nothing; says how many got which answer."""
        from chainsched import api  # noqa: PLC0415

        return api.trigger_group(cast("ManifestGroup", self))

    def enable(self) -> bool:
        """Let its manifests run again, from now; False if they could already."""
        from chainsched import api  # noqa: PLC0415

        return api.enable_group(cast("ManifestGroup", self))

    def disable(self) -> bool:
        """Let nothing of it be queued or dispatched; False if it was off already."""
        from chainsched import api  # noqa: PLC0415

        return api.disable_group(cast("ManifestGroup", self))

    def cancel(self, *, reason: str = ON_REQUEST) -> Cancelled:
        """Stop what all its members have under way."""
        from chainsched import api  # noqa: PLC0415

        return api.cancel_group(cast("ManifestGroup", self), reason=reason)

    def set_limits(self, *, max_active_jobs: int | None, priority: int) -> bool:
        """Let this many of its jobs be active at once, or any number, at this priority; False if nothing changed."""
        from chainsched import api  # noqa: PLC0415

        return api.set_limits(cast("ManifestGroup", self), max_active_jobs=max_active_jobs, priority=priority)

    async def atrigger(self) -> Counter[Answer]:
        """Call ``trigger`` from async code."""
        return await sync_to_async(self.trigger)()


class QueueActions:
    """For a row of the work queue."""

    def cancel(self, *, reason: str = ON_REQUEST) -> bool:
        """Let it never run; the occurrence is consumed. False if it waits no longer."""
        from chainsched import api  # noqa: PLC0415

        return api.cancel_row(cast("WorkQueue", self), reason=reason)

    def bring_forward(self) -> bool:
        """Let it go at once, before all others of its priority; False if it waits no longer."""
        from chainsched import api  # noqa: PLC0415

        return api.bring_forward(cast("WorkQueue", self))

    def explain(self) -> Explanation:
        """What it waits for, in the order in which the dispatcher asks; or that it waits no longer."""
        from chainsched import api  # noqa: PLC0415

        return api.explain_row(cast("WorkQueue", self))


class DeadLetterActions:
    """For a dead letter."""

    def retry(self, *, by: Any = None, note: str = "") -> Resolved:
        """Queue another run with the input of the one that failed; the answer says whether it took effect."""
        from chainsched import api  # noqa: PLC0415

        return api.retry_letters([cast("DeadLetter", self)], by=by, note=note)

    def acknowledge(self, *, by: Any = None, note: str = "") -> Resolved:
        """Close it without another run; the answer says whether it took effect."""
        from chainsched import api  # noqa: PLC0415

        return api.acknowledge_letters([cast("DeadLetter", self)], by=by, note=note)

    async def aretry(self, *, by: Any = None, note: str = "") -> Resolved:
        """Call ``retry`` from async code."""
        return await sync_to_async(self.retry)(by=by, note=note)

    async def aacknowledge(self, *, by: Any = None, note: str = "") -> Resolved:
        """Call ``acknowledge`` from async code."""
        return await sync_to_async(self.acknowledge)(by=by, note=note)
