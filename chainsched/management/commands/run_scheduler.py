"""``manage.py run_scheduler``: seed, then turn the loops and run jobs until stopped."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from chainsched.domain.loops import LOOPS
from chainsched.management.options import positive_seconds, whole_number
from chainsched.management.running import WorkerOptions, add_workers, prepare, run_until_stopped, write_line
from chainsched.runtime.process import startup
from chainsched.runtime.process.supervisor import Roles, Supervisor
from chainsched.runtime.support.pools import leave_pools


class Command(BaseCommand):
    """Run the scheduler: the loops and, by default, workers."""

    help = "Seeds the declared schedules, then turns the loops and runs jobs until stopped. SIGTERM drains."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the options about loops, workers and duration."""
        how_long = parser.add_mutually_exclusive_group()
        how_long.add_argument(
            "--once", action="store_true", help="Take one turn of each loop, run the jobs that can start, and exit."
        )
        how_long.add_argument(
            "--for", dest="seconds", type=positive_seconds, metavar="SECONDS", help="Exit after this time."
        )
        parser.add_argument(
            "--loops",
            nargs="*",
            choices=list(LOOPS),
            default=list(LOOPS),
            metavar="LOOP",
            help=f"The loops to turn, of {', '.join(LOOPS)}; all by default.",
        )
        add_workers(parser, minimum=whole_number)

    def handle(self, *_args: Any, once: bool, seconds: float | None, loops: list[str], **options: Any) -> None:
        """Run until stopped; the exit code is 0 after an orderly end."""
        workers = WorkerOptions.of(options)
        leave_pools()
        fork_server = workers.fork_server()
        seeded = prepare(startup.prepare)
        if seeded:
            write_line(f"Seeded: {seeded.in_words}", out=self.stdout)
        workers.warn_of_unused(out=self.stdout)
        roles = Roles("scheduler", loops, workers.processes, workers.threads, workers.queues)
        supervisor = Supervisor(roles, fork_server=fork_server)
        if once:
            supervisor.run_once()
            return
        does = f"{', '.join(loops) or 'no loops'}; {workers.in_words}"
        run_until_stopped(supervisor, name="Scheduler", does=does, seconds=seconds, out=self.stdout)
