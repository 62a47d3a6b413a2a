"""A task server of a project: it keeps the ids that it is given, and can run one workflow."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import ClassVar

from chainsched.domain.routing import Pool
from chainsched.models import Process
from chainsched.servers import Taken

PATH = "tests.servers.own.OwnServer"


class OwnServer:
    room: ClassVar[int | None] = None
    submitted: ClassVar[list[int]] = []
    cancelled: ClassVar[list[int]] = []
    forgotten: ClassVar[list[int]] = []

    def pools(self, *, now: datetime) -> Collection[Pool]:
        return [Pool({"testapp.ping"}, is_fed=True, room=self.room)]

    def recent_workflows(self, *, now: datetime) -> Collection[str]:
        return {"testapp.ping"}

    def take(self, *, process: Process, limit: int, now: datetime) -> Taken:
        return Taken()

    def submit(self, execution_ids: Sequence[int]) -> None:
        self.submitted.extend(execution_ids)

    def cancel(self, execution_ids: Collection[int]) -> None:
        self.cancelled.extend(execution_ids)

    def forget(self, execution_ids: Collection[int]) -> None:
        self.forgotten.extend(execution_ids)
