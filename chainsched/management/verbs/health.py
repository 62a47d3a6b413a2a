"""``chainsched health``: whether all loops turn and all processes live."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

from chainsched.management.verbs import ATTENTION, OK, add_json, print_json
from chainsched.runtime.support.health_probe import NO_ANSWER, in_words, probe_health

HELP = "Report whether loops turn and processes live; exit code 1 if there is a problem. For containers and monitors."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the option about the format."""
    add_json(parser)


def run(options: dict[str, Any], *, out: OutputWrapper, style: Style) -> int:
    """Check and print; a database that does not answer is a problem like any other."""
    try:
        health = probe_health()
    except NO_ANSWER as error:
        answer = in_words(error)
        if options["as_json"]:
            print_json({"is_healthy": False, "problems": [answer]}, out=out)
        else:
            out.write(style.ERROR(answer))
        return ATTENTION
    if options["as_json"]:
        print_json(health.as_dict(), out=out)
    else:
        for problem in health.problems:
            out.write(style.ERROR(problem))
        for note in health.notes:
            out.write(style.WARNING(note))
        if health.is_healthy:
            out.write(style.SUCCESS(f"All is well: {len(health.processes)} processes are alive."))
    return OK if health.is_healthy else ATTENTION
