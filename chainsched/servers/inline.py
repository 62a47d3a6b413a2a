"""The server for tests: runs dispatched executions at once, in the dispatcher's own process."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Sequence
from datetime import datetime

from chainsched.db.clock import database_now
from chainsched.domain.outcomes import Finished
from chainsched.domain.routing import Pool
from chainsched.flow.operate.take import Taken
from chainsched.flow.run.claim import claim
from chainsched.flow.run.execute import execute_here
from chainsched.flow.run.record import record
from chainsched.models import Process
from chainsched.registry import registry
from chainsched.servers import TaskServer


class InlineServer(TaskServer):
    """Claims, runs and records in the calling thread, one after the other."""

    def pools(self, *, now: datetime) -> Collection[Pool]:
        """This process, which knows all workflows of the project and takes all queues; only the limits bound it."""
        return [Pool(registry.names(), is_fed=True)]

    def recent_workflows(self, *, now: datetime) -> Collection[str]:
        return registry.names()

    def take(self, *, process: Process, limit: int, now: datetime) -> Taken:
        """Nothing: the dispatcher's own process runs all of it."""
        return Taken()

    def submit(self, execution_ids: Sequence[int]) -> None:
        if not execution_ids:
            return
        now = database_now()
        process = Process.objects.create(
            kind="inline", host=socket.gethostname(), pid=os.getpid(), started_at=now, heartbeat_at=now
        )
        for execution_id in execution_ids:
            claims = claim(process=process, workflows=registry.names(), limit=1, execution_ids=[execution_id])
            record([Finished(item.execution_id, execute_here(item)) for item in claims], by=process, now=database_now())
        Process.objects.filter(pk=process.pk).update(stopped_at=database_now())

    def cancel(self, execution_ids: Collection[int]) -> None:
        """Do nothing: none runs while another step of this thread does."""

    def forget(self, execution_ids: Collection[int]) -> None:
        """Do nothing: each execution ends within the call that submits it."""
