"""``manage.py run_worker``: run jobs until stopped, beside a scheduler that runs elsewhere."""

from __future__ import annotations

import os
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from chainsched.management.options import positive_number, positive_seconds
from chainsched.management.running import prepare, run_until_stopped
from chainsched.runtime import startup
from chainsched.runtime.supervisor import Roles, Supervisor


class Command(BaseCommand):
    """Run workers only, for more hosts."""

    help = "Runs dispatched jobs until stopped; needs a run_scheduler somewhere. SIGTERM drains."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """How many workers, and for how long."""
        parser.add_argument(
            "--for", dest="seconds", type=positive_seconds, metavar="SECONDS", help="End by itself after this time."
        )
        parser.add_argument(
            "--workers",
            type=positive_number,
            default=os.cpu_count() or 1,
            metavar="N",
            help="How many jobs to run at once in this process. By default one per core.",
        )

    def handle(self, *_args: Any, seconds: float | None, workers: int, **_: Any) -> None:
        """Run until stopped; the exit code is 0 after an orderly end."""
        prepare(startup.refuse_unready)
        supervisor = Supervisor(Roles(kind="worker", loops=("reaper",), workers=workers))
        run_until_stopped(supervisor, name="Worker", does=f"{workers} at once", seconds=seconds, out=self.stdout)
