"""``manage.py chainsched <verb>``: show jobs, operate them, and check and clean their rows."""

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
    operate,
    plan,
    runs,
    seed,
    status,
)

VERBS: dict[str, Verb] = {
    "seed": seed,
    "plan": plan,
    "status": status,
    "explain": explain,
    "runs": runs,
    "graph": graph,
    "cleanup": cleanup,
    "fsck": fsck,
    "health": health,
    **operate.operator_verbs(),
}
# Other spellings: underscores as in the methods' names, and a short one.
ALIASES = {name: [name.replace("-", "_")] for name in VERBS if "-" in name}
ALIASES["set-limits"].append("limits")


class Command(BaseCommand):
    """Show and operate chainsched from the command line."""

    help = f"Shows and operates jobs: {', '.join(VERBS)}."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add one sub-command for each verb."""
        verbs = parser.add_subparsers(dest="verb", required=True, metavar="verb")
        for name, verb in VERBS.items():
            aliases = ALIASES.get(name, [])
            verb.add_arguments(verbs.add_parser(name, aliases=aliases, help=verb.HELP, description=verb.HELP))

    def handle(self, *_args: Any, verb: str, **options: Any) -> None:
        """Run the verb; exit code 0 is success, 1 needs attention, 2 is bad input."""
        try:
            code = VERBS[_spelled(verb)].run(options, out=self.stdout, style=self.style)
        except ChainschedError as error:
            raise CommandError(str(error), returncode=BAD_INPUT) from error
        if code != OK:
            sys.exit(code)


def _spelled(verb: str) -> str:
    """The name of a verb that may have been given by an alias."""
    return next((name for name, aliases in ALIASES.items() if verb in aliases), verb)
