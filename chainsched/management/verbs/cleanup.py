"""``chainsched cleanup``: remove history that has been kept long enough."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import Counter
from dataclasses import replace
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

from chainsched.db.clock import database_now
from chainsched.domain.retention import EVERYTHING, Policy
from chainsched.domain.states import TERMINAL_STATES, ExecutionState
from chainsched.flow.maintain.clean import clean, policy
from chainsched.management.options import positive_days, whole_number
from chainsched.management.verbs import OK, add_json, print_json

HELP = "Remove executions, in whole trees, with their other rows, by RETENTION and KEEP_LAST or as given here."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options about age, number and kind."""
    add_json(parser)
    parser.add_argument(
        "--older-than", type=positive_days, metavar="DAYS", help="Instead of RETENTION: remove trees older than this."
    )
    parser.add_argument(
        "--keep-last", type=whole_number, metavar="N", help="Instead of KEEP_LAST: keep this many of each manifest."
    )
    parser.add_argument("--workflow", action="append", default=[], help="Only trees with a root of this workflow.")
    parser.add_argument(
        "--state",
        action="append",
        default=[],
        choices=[str(state) for state in TERMINAL_STATES],
        help="Only trees with a root that ended in this state.",
    )
    parser.add_argument("--dry-run", action="store_true", help="Count, and remove nothing.")


def run(options: dict[str, Any], *, out: OutputWrapper, style: Style) -> int:
    """Clean page by page until the newest is reached, and print the numbers of removed rows."""
    rules = _rules(options)
    removed: Counter[str] = Counter()
    now, after, has_more = database_now(), 0, not rules.is_off
    while has_more:
        cleaned = clean(rules, now=now, after=after, is_dry_run=options["dry_run"])
        removed += cleaned.removed
        after, has_more = cleaned.last_id, cleaned.has_more
    if options["as_json"]:
        print_json({"removed": removed, "is_dry_run": options["dry_run"]}, out=out)
    elif rules.is_off:
        out.write("Nothing was removed: RETENTION keeps everything for ever. Give an age with --older-than.")
    else:
        verb = "Would remove" if options["dry_run"] else "Removed"
        listed = ", ".join(f"{number} {kind}" for kind, number in sorted(removed.items()))
        out.write(f"{verb}: {listed or 'nothing'}.")
    return OK


def _rules(options: dict[str, Any]) -> Policy:
    rules = policy()
    if options["older_than"] is not None:
        rules = replace(rules, ages={EVERYTHING: options["older_than"].total_seconds()})
    if options["keep_last"] is not None:
        rules = replace(rules, counts={EVERYTHING: options["keep_last"]})
    states = frozenset(ExecutionState(state) for state in options["state"])
    return replace(rules, workflows=frozenset(options["workflow"]), states=states)
