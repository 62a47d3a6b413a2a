"""``chainsched fsck``: check in the rows that the invariants hold."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import defaultdict
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

from chainsched.db.clock import database_now
from chainsched.domain.results import Finding
from chainsched.flow.maintain.fsck import CHECKS, run_fsck
from chainsched.management.verbs import ATTENTION, OK, add_json, print_json

HELP = "Check that no row is lost, doubled or in the wrong state; exit code 1 if one is."

SHOWN = 20


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options about repair and the choice of checks."""
    add_json(parser)
    parser.add_argument("--repair", action="store_true", help="Repair the findings that can be repaired.")
    parser.add_argument(
        "--check", action="append", choices=list(CHECKS), help="Run this check only; may be given several times."
    )


def run(options: dict[str, Any], *, out: OutputWrapper, style: Style) -> int:
    """Check, repair if asked to, and print the evidence."""
    names = options["check"] or list(CHECKS)
    found = run_fsck(now=database_now(), repair=options["repair"], checks=names)
    left = [finding for finding in found if not finding.is_repaired]
    if options["as_json"]:
        print_json({"checks": names, "findings": [finding.as_dict() for finding in found]}, out=out)
    else:
        _print(names, found, out=out, style=style)
    return ATTENTION if left else OK


def _print(names: list[str], found: list[Finding], *, out: OutputWrapper, style: Style) -> None:
    by_check: dict[str, list[Finding]] = defaultdict(list)
    for finding in found:
        by_check[finding.check].append(finding)
    for name in names:
        claim = (CHECKS[name].__doc__ or "").splitlines()[0]
        mark = style.ERROR("WRONG") if by_check[name] else style.SUCCESS("ok   ")
        out.write(f"{mark} {name}: {claim}")
        for finding in by_check[name][:SHOWN]:
            out.write(f"      {finding.subject}: {finding.evidence}." + (" Repaired." if finding.is_repaired else ""))
        if len(by_check[name]) > SHOWN:
            out.write(f"      … and {len(by_check[name]) - SHOWN} more; --json lists them all.")
    repaired = sum(finding.is_repaired for finding in found)
    out.write(f"{len(found)} findings, {repaired} repaired.")
