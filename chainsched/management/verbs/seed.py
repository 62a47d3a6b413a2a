"""``chainsched seed``: write the declared schedules to the database."""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import asdict
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

from chainsched.db.clock import database_now
from chainsched.flow.schedule.declare import schedules
from chainsched.flow.schedule.seed import seed
from chainsched.management.verbs import OK, add_json, print_json
from chainsched.runtime.process import startup

HELP = "Write the declarations of schedules.py to the database; running it again writes nothing."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the option about the format."""
    add_json(parser)


def run(options: dict[str, Any], *, out: OutputWrapper, style: Style) -> int:
    """Seed and print the numbers of written rows."""
    startup.refuse_unready()
    seeded = seed(schedules, now=database_now())
    if options["as_json"]:
        print_json(asdict(seeded), out=out)
    else:
        out.write(seeded.in_words)
    return OK
