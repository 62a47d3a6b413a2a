"""``chainsched status``: groups with their limits and loads, dead letters, and live processes."""

from __future__ import annotations

import time
from argparse import ArgumentParser
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style
from django.db.models import Count, Q

from chainsched.conf import get_config
from chainsched.db.clock import database_now
from chainsched.management.options import positive_seconds
from chainsched.management.verbs import OK, add_json, print_json
from chainsched.models import DeadLetter, Manifest, ManifestGroup, Metadata, NamedLock, Process, WorkQueue

HELP = "Show groups, limits, active and queued jobs, dead letters, and live processes."

CLEAR_SCREEN = "\x1b[H\x1b[2J"


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options about the format and repetition."""
    add_json(parser)
    parser.add_argument(
        "--watch",
        nargs="?",
        const=2.0,
        type=positive_seconds,
        metavar="SECONDS",
        help="Show it repeatedly, every 2 seconds or as given, until Ctrl-C.",
    )


def run(options: dict[str, Any], *, out: OutputWrapper, style: Style) -> int:
    """Read and print, once or until interrupted."""
    if options["as_json"]:
        print_json(look(database_now()), out=out)
        return OK
    out.write("\n".join(lines(look(database_now()), style=style)))
    try:
        while options["watch"]:
            time.sleep(options["watch"])
            out.write(CLEAR_SCREEN + "\n".join(lines(look(database_now()), style=style)))
    except KeyboardInterrupt:
        pass
    return OK


def look(now: datetime) -> dict[str, Any]:
    """The current state, in a constant number of statements."""
    active = Metadata.objects.active_by_group()
    queued = dict(WorkQueue.objects.queued().order_by().values_list("group_id").annotate(Count("id")))
    letters = dict(DeadLetter.objects.awaiting().order_by().values_list("manifest__group_id").annotate(Count("id")))
    return {
        "at": now,
        "max_active_jobs": get_config().max_active_jobs,
        "manifests": Manifest.objects.filter(retired_at__isnull=True).count(),
        "active": sum(active.values()),
        "queued": sum(queued.values()),
        "dead_letters": sum(letters.values()),
        "last_dispatch": NamedLock.objects.filter(name="dispatch").values_list("turned_at", flat=True).first(),
        "groups": [
            {**group, "active": active.get(id_, 0), "queued": queued.get(id_, 0), "dead_letters": letters.get(id_, 0)}
            for id_, group in _groups()
        ],
        "processes": [dict(row) for row in _processes(now)],
    }


def lines(seen: dict[str, Any], *, style: Style) -> Iterator[str]:
    """The state as text."""
    limit = seen["max_active_jobs"] or "no limit"
    yield style.MIGRATE_HEADING(f"chainsched at {seen['at']:%Y-%m-%d %H:%M:%S %Z}")
    yield f"{seen['manifests']} manifests; {seen['active']} active ({limit}), {seen['queued']} queued"
    if seen["dead_letters"]:
        yield style.ERROR(f"dead letters that await a decision: {seen['dead_letters']}")
    yield ""
    yield style.MIGRATE_LABEL(f"{'group':<40} {'manifests':>9} {'active':>6} {'limit':>6} {'queued':>6} {'letters':>7}")
    for group in seen["groups"]:
        yield _group_line(group, style=style)
    yield ""
    yield from (f"{row['kind']} {row['host']}:{row['pid']}, alive" for row in seen["processes"])
    if not seen["processes"]:
        yield style.WARNING("No process is alive: start one with `manage.py run_scheduler`.")


def _group_line(group: dict[str, Any], *, style: Style) -> str:
    line = (
        f"{group['name'][:40]:<40} {group['manifests']:>9} {group['active']:>6} {group['max_active_jobs'] or '-':>6} "
        f"{group['queued']:>6} {group['dead_letters']:>7}"
    )
    if not group["is_enabled"]:
        return style.WARNING(line + "  disabled")
    return style.ERROR(line) if group["dead_letters"] else line


def _groups() -> Iterator[tuple[int, dict[str, Any]]]:
    members = Count("manifests", filter=Q(manifests__retired_at__isnull=True))
    columns = ("id", "name", "is_enabled", "priority", "max_active_jobs", "members")
    for row in ManifestGroup.objects.annotate(members=members).order_by("name").values(*columns):
        group: dict[str, Any] = dict(row)
        group["manifests"] = group.pop("members")
        yield group.pop("id"), group


def _processes(now: datetime) -> Any:
    beaten_since = now - timedelta(seconds=get_config().process_expiry)
    alive = Process.objects.alive(beaten_since=beaten_since).order_by("id")
    return alive.values("kind", "host", "pid", "started_at", "heartbeat_at")
