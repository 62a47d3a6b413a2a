"""``manage.py chainsched <verb>``: look at jobs, steer them, and keep their rows in order."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from chainsched.exceptions import ChainschedError
from chainsched.management.verbs import (
    BAD_INPUT,
    OK,
    Verb,
    cleanup,
    explain,
    fsck,
    graph,
    health,
    plan,
    seed,
    status,
    trigger,
)

VERBS: dict[str, Verb] = {
    "seed": seed,
    "plan": plan,
    "status": status,
    "explain": explain,
    "trigger": trigger,
    "graph": graph,
    "cleanup": cleanup,
    "fsck": fsck,
    "health": health,
}


class Command(BaseCommand):
    """Look at chainsched and steer it from the command line."""

    help = "Looks at jobs and steers them: seed, plan, status, explain, trigger, graph, cleanup, fsck, health."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """One sub-command for each verb."""
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")
        for name, verb in VERBS.items():
            verb.add_arguments(verbs.add_parser(name, help=verb.HELP, description=verb.HELP))

    def handle(self, *_args: Any, verb: str, **options: Any) -> None:
        """Run the verb; 0 is well, 1 needs attention, 2 is bad input."""
        try:
            code = VERBS[verb].run(options, out=self.stdout, style=self.style)
        except ChainschedError as error:
            raise CommandError(str(error), returncode=BAD_INPUT) from error
        if code != OK:
            sys.exit(code)
