"""``manage.py run_worker``: run jobs until stopped, next to a scheduler that runs elsewhere."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from chainsched.management.options import positive_number, positive_seconds
from chainsched.management.running import WorkerOptions, add_workers, prepare, run_until_stopped
from chainsched.runtime.process import startup
from chainsched.runtime.process.supervisor import Roles, Supervisor
from chainsched.runtime.support.pools import leave_pools


class Command(BaseCommand):
    """Run workers only, for additional hosts."""

    help = "Runs queued jobs until stopped; needs a run_scheduler somewhere. SIGTERM drains."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options about workers and duration."""
        parser.add_argument(
            "--for", dest="seconds", type=positive_seconds, metavar="SECONDS", help="Exit after this time."
        )
        add_workers(parser, minimum=positive_number)

    def handle(self, *_args: Any, seconds: float | None, **options: Any) -> None:
        """Run until stopped; the exit code is 0 after an orderly end."""
        workers = WorkerOptions.of(options)
        leave_pools()
        fork_server = workers.fork_server()
        prepare(startup.refuse_to_run)
        workers.warn_of_unused(out=self.stdout)
        roles = Roles("worker", ("reaper",), workers.processes, workers.threads, workers.queues)
        supervisor = Supervisor(roles, fork_server=fork_server)
        run_until_stopped(supervisor, name="Worker", does=workers.in_words, seconds=seconds, out=self.stdout)
