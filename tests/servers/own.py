"""A task server of a project: it keeps the ids that it is given, and can run one workflow."""

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import ClassVar

from chainsched.models import Process
from chainsched.servers import Taken

PATH = "tests.servers.own.OwnServer"


class OwnServer:
    submitted: ClassVar[list[int]] = []

    def known_workflows(self, *, now: datetime) -> Collection[str]:
        return {"testapp.ping"}

    def recent_workflows(self, *, now: datetime) -> Collection[str]:
        return {"testapp.ping"}

    def room(self, *, now: datetime) -> int | None:
        return None

    def take(self, *, process: Process, workflows: Collection[str], limit: int) -> Taken:
        return Taken()

    def submit(self, execution_ids: Sequence[int]) -> None:
        self.submitted.extend(execution_ids)
