"""``chainsched plan``: show the changes that seeding would make, and write nothing."""

from __future__ import annotations

from argparse import ArgumentParser
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

from chainsched.conf import get_config
from chainsched.flow.schedule.declare import schedules
from chainsched.flow.schedule.plan import Plan, parents_in, plan
from chainsched.management.verbs import ATTENTION, OK, add_json, print_json
from chainsched.runtime.process import startup

HELP = "Show the manifests that seed would create, change, retire and revive, by group; writes nothing."

# Columns that follow from others, or that every new row has; not shown to users.
SILENT = {"depth", "retired_at", "owner", "is_declared", "parents"}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options about the format and the exit code."""
    add_json(parser)
    parser.add_argument("--check", action="store_true", help="Exit with 1 if seed would change anything, for CI.")


def run(options: dict[str, Any], *, out: OutputWrapper, style: Style) -> int:
    """Compare and print."""
    startup.refuse_unready()
    made = plan(schedules)
    if options["as_json"]:
        print_json(as_dict(made), out=out)
    else:
        out.write("\n".join(lines(made, style=style)))
    return ATTENTION if options["check"] and not made.is_empty else OK


def as_dict(made: Plan) -> dict[str, Any]:
    """The plan as JSON shows it."""

    def changes(columns: Any) -> dict[str, Any]:
        return {column: {"old": old, "new": new} for column, (old, new) in columns.items()}

    return {
        "owner": made.origin.owner,
        "create": [row["external_id"] for row in made.created],
        "change": {name: changes(columns) for name, columns in made.changed.items()},
        "reparent": made.reparented,
        "retire": list(made.retired),
        "revive": made.revived,
        "new_groups": {name: dict(stated) for name, stated in made.new_groups.items()},
        "change_groups": {name: changes(columns) for name, columns in made.changed_groups.items()},
        "unchanged": made.unchanged,
        "warnings": list(made.warnings),
    }


def lines(made: Plan, *, style: Style) -> Iterator[str]:
    """The plan as text: by group, the new, the changed and the retired manifests."""
    yield f"Owner: {get_config().owner}"
    for group, entries in sorted(_by_group(made, style=style).items()):
        yield style.MIGRATE_HEADING(group)
        yield from (f"  {entry}" for entry in entries)
    yield from (style.WARNING(warning) for warning in made.warnings)
    changed = len(made.changed) - len(made.revived)
    yield (
        f"{len(made.created)} to create, {changed} to change, {len(made.retired)} to retire, "
        f"{len(made.revived)} to revive, {made.unchanged} unchanged."
    )


def _by_group(made: Plan, *, style: Style) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = defaultdict(list)
    for name in made.new_groups:
        entries[name].append(style.SUCCESS("+ new group"))
    for name, columns in made.changed_groups.items():
        entries[name] += [style.WARNING(f"~ group {line}") for line in _changes(columns)]
    for row in made.created:
        parents = f" after {', '.join(parents_in(row))}" if parents_in(row) else ""
        entries[row["group"]].append(style.SUCCESS(f"+ {row['external_id']} ({_kind(row)}{parents})"))
    for name, columns in made.changed.items():
        mark, paint = ("^", style.SUCCESS) if "retired_at" in columns else ("~", style.WARNING)
        group = columns["group"].new if "group" in columns else made.stored[name]["group"]
        entries[group].append(paint(f"{mark} {name}" + (" is declared again" if mark == "^" else "")))
        entries[group] += [f"    {line}" for line in _changes(columns)]
    for name in made.retired:
        entries[made.stored[name]["group"]].append(style.ERROR(f"- {name} is no longer declared"))
    return entries


def _kind(row: Any) -> str:
    """The schedule type; of a join that it is one, and of a fan-in which members it waits for."""
    if not row["is_join"]:
        return str(row["schedule_type"])
    return f"fan-in over {row['fan_in']}" if row["fan_in"] else "join"


def _changes(columns: Any) -> list[str]:
    """The columns before and after; of the parents of a join those that come and go."""
    shown = [f"{column}: {old!r} -> {new!r}" for column, (old, new) in sorted(columns.items()) if column not in SILENT]
    if "parents" in columns:
        old, new = map(set, columns["parents"])
        shown += [f"+ edge from {name}" for name in sorted(new - old)] + [
            f"- edge from {name}" for name in sorted(old - new)
        ]
    return shown
