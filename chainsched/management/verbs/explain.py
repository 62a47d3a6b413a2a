"""``chainsched explain``: why a manifest is or is not running."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

from chainsched import api
from chainsched.management.verbs import OK, add_json, print_json

HELP = "Say why a manifest is or is not running now, and when it will."


def add_arguments(parser: ArgumentParser) -> None:
    """Which manifest."""
    add_json(parser)
    parser.add_argument("external_id", help="The manifest.")


def run(options: dict[str, Any], *, out: OutputWrapper, style: Style) -> int:
    """Ask the same rules as the turns do, and print the answer."""
    explanation = api.explain(api.find(options["external_id"]))
    if options["as_json"]:
        print_json(explanation.as_dict(), out=out)
        return OK
    out.write(f"{explanation.external_id}: {explanation.reason} [{explanation.code}]")
    if explanation.next_run_at:
        out.write(f"The manager looks at it at {explanation.next_run_at.isoformat()}.")
    if explanation.next_runs:
        out.write("Its schedule: " + ", ".join(moment.isoformat() for moment in explanation.next_runs[:3]) + ", …")
    return OK
