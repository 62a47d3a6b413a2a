"""Processes that start together and seed: one row each, no error, no deadlock; old and new versions side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from django.db import connection

from chainsched import Every, ManifestItem
from chainsched.models import Manifest, ManifestGroup, ManifestState
from tests.concurrency.threads import at_once
from tests.processes.command import ROOT, database_url
from tests.testapp import workflows

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.django_db(transaction=True),
    pytest.mark.usefixtures("patience"),
]


# What each process runs: it says that it is ready, and then seeds each range of members that it is told, one a line.
SEEDER = """
import json, sys, traceback
import django
django.setup()
from chainsched import Every, ManifestItem
from chainsched.flow.schedule.declare import Schedules
from chainsched.flow.schedule.seed import seed
from chainsched.db.clock import database_now
from tests.testapp import workflows

print("ready", flush=True)
for line in sys.stdin:
    numbers = range(*json.loads(line))
    declared = Schedules()
    declared.schedule(workflows.ping, "anchor", None, Every.hours(1), group="anchor")
    declared.schedule_many(
        workflows.copy, "extract", [ManifestItem(str(n), workflows.Slice(f"t{n}")) for n in numbers], Every.hours(1)
    ).include_many(
        workflows.copy,
        "load",
        [ManifestItem(str(n), workflows.Slice(f"t{n}"), depends_on=f"extract-{n}") for n in numbers if n % 2],
    )
    try:
        seeded = seed(declared, now=database_now())
        answer = {"created": len(seeded.created), "changed": len(seeded.changed), "retired": len(seeded.retired)}
    except Exception:
        answer = {"error": traceback.format_exc()}
    print(json.dumps(answer), flush=True)
"""


@contextmanager
def a_process() -> Iterator[subprocess.Popen[str]]:
    """A process of its own on the test's database, ready to seed; it ends when its input does."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "CHAINSCHED_TEST_DATABASE_URL": database_url(),
    }
    with subprocess.Popen(
        [sys.executable, "-c", SEEDER],
        cwd=ROOT,
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
        yield process


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    with ExitStack() as stack:
        yield [stack.enter_context(a_process()) for _ in range(2)]


def seed_at_once(processes: Sequence[subprocess.Popen[str]], *ranges: tuple[int, int]) -> list[dict[str, Any]]:
    """Let each process seed its range of members, all at the same time."""
    for process, numbers in zip(processes, ranges, strict=True):
        assert process.stdin
        process.stdin.write(json.dumps(numbers) + "\n")
    for process in processes:
        assert process.stdin
        process.stdin.flush()
    answers = [json.loads(process.stdout.readline()) for process in processes if process.stdout]
    assert not [answer["error"] for answer in answers if "error" in answer]
    return answers


def forget_everything() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE chainsched_manifest, chainsched_manifeststate, chainsched_manifestgroup, "
            "chainsched_namedlock CASCADE"
        )


def living() -> set[str]:
    return set(Manifest.objects.filter(retired_at__isnull=True).values_list("external_id", flat=True))


def members(first: int, last: int) -> set[str]:
    """What a process that declares these numbers wants to live."""
    loads = {f"load-{number}" for number in range(first, last) if number % 2}
    return {"anchor", *(f"extract-{number}" for number in range(first, last)), *loads}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_processes_that_seed_the_same_five_thousand_at_once_make_five_thousand_rows(processes):
    """3,333 extracts, every second one with its load, and an anchor; twenty times from nothing."""
    numbers = (0, 3333)
    expected = len(members(*numbers))
    assert expected == 5000
    for _ in range(20):
        forget_everything()
        answers = seed_at_once(processes, numbers, numbers)
        assert sorted(answer["created"] for answer in answers) == [0, expected]
        assert [answer["changed"] + answer["retired"] for answer in answers] == [0, 0]
        assert Manifest.objects.count() == ManifestState.objects.count() == expected
        assert ManifestState.objects.filter(next_run_at__isnull=False).count() == 3334
    assert ManifestGroup.objects.count() == 3


@pytest.mark.slow
def test_an_old_and_a_new_version_that_seed_side_by_side_end_in_one_of_the_two_states(processes):
    old, new = (0, 300), (100, 400)
    for _ in range(10):
        forget_everything()
        seed_at_once(processes, old, new)
        assert living() in (members(*old), members(*new))
        seed_at_once(processes, old, new)
        assert living() in (members(*old), members(*new))
        assert Manifest.objects.count() == ManifestState.objects.count() == len(members(0, 400))
        seed_at_once(processes, new, new)
        assert living() == members(*new), "when only the new version is left its state stays"
        idle = ManifestState.objects.filter(manifest__retired_at__isnull=False)
        assert not idle.filter(next_run_at__isnull=False).exists()


def write(ids: Sequence[str], *, group: str | None) -> Callable[[], int]:
    """Write a batch at run time, in this order; without a group each member has its own."""
    items = [ManifestItem(item_id, group=group or item_id) for item_id in ids]
    return lambda: len(Manifest.objects.schedule_many(workflows.ping, "batch", items, Every.hours(1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "group",
    [
        pytest.param(None, id="a group each"),
        pytest.param("new", id="one new group"),
        pytest.param("old", id="a group that exists"),
    ],
)
def test_two_that_write_the_same_manifests_at_run_time_in_opposite_order_do_not_block_each_other(group):
    ids = [f"job-{number}" for number in range(800)]
    for _ in range(12):
        forget_everything()
        ManifestGroup.objects.create(name="old")
        assert at_once(write(ids, group=group), write(ids[::-1], group=group)) == [800, 800]
        assert Manifest.objects.count() == ManifestState.objects.count() == 800
