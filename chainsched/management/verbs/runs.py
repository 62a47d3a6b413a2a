"""``chainsched runs``: the newest runs of the graph, or how one of them goes."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

from chainsched import api
from chainsched.management.options import positive_number
from chainsched.management.verbs import OK, add_json, print_json
from chainsched.models import GraphRun

HELP = "List the newest runs of the graph; or show of one run its executions, what is open, and what joins wait for."

LIMIT = 20


def add_arguments(parser: ArgumentParser) -> None:
    """Add the run, and the options that choose runs."""
    add_json(parser)
    parser.add_argument("run", nargs="?", help="The number of a run: show how it goes.")
    parser.add_argument("--head", metavar="EXTERNAL_ID", help="Only runs that began with this manifest.")
    parser.add_argument("--open", action="store_true", dest="is_open", help="Only runs of which something is open.")
    parser.add_argument(
        "--limit", type=positive_number, default=LIMIT, metavar="N", help=f"How many runs to list. Default: {LIMIT}."
    )


def run(options: dict[str, Any], *, out: OutputWrapper, style: Style) -> int:
    """Show one run, or list the newest."""
    if options["run"] is not None:
        report = api.describe_run(api.find_run(options["run"]))
        if options["as_json"]:
            print_json(report.as_dict(), out=out)
        else:
            out.write(report.in_words)
        return OK
    found = api.list_runs(head=options["head"], is_open=options["is_open"], limit=options["limit"])
    if options["as_json"]:
        print_json([_as_dict(row) for row in found], out=out)
    else:
        out.write("\n".join(_line(row, style=style) for row in found) or "There are no such runs.")
    return OK


def _as_dict(run: GraphRun) -> dict[str, Any]:
    columns = ("id", "head_external_id", "scheduled_for", "created_at", "closed_at", "cancelled_at", "cancel_reason")
    return {**{column: getattr(run, column) for column in columns}, "state": run.state}


def _line(run: GraphRun, *, style: Style) -> str:
    line = f"{run.id:>8}  {run.state:<9}  {run.scheduled_for:%Y-%m-%d %H:%M:%S %Z}  {run.head_external_id}"
    return style.WARNING(line) if run.state == "cancelled" else line
