"""The table of loops: each entry has its turn, its interval, and loops that it can wake."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from chainsched.conf import get_config
from chainsched.db import notify
from chainsched.domain.loops import LOOPS, TURNING, VITAL, WORKER, Loop
from chainsched.runtime.loops.loops import make_turn

COMMANDS = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"


@pytest.mark.parametrize("name", LOOPS)
def test_the_module_of_the_name_takes_the_turns(name: str) -> None:
    assert import_module(f"chainsched.runtime.loops.{name}").__doc__
    assert callable(make_turn(name))


@pytest.mark.parametrize("loop", TURNING.values(), ids=lambda loop: loop.name)
def test_the_interval_is_a_setting_and_the_loops_it_wakes_exist(loop: Loop) -> None:
    assert getattr(get_config(), loop.interval) > 0
    assert set(loop.wakes) <= set(TURNING) - {loop.name}


def test_each_topic_of_a_notification_is_a_loop_or_the_worker() -> None:
    assert {notify.MANAGER, notify.DISPATCHER, notify.BULK_DECISIONS, notify.WORKER} <= set(TURNING)


def test_jobs_need_manager_dispatcher_and_reaper() -> None:
    assert set(VITAL) == {"manager", "dispatcher", "reaper"}
    assert WORKER not in LOOPS


@pytest.mark.parametrize("loop", LOOPS.values(), ids=lambda loop: loop.name)
def test_the_reference_names_the_loop_with_its_interval(loop: Loop) -> None:
    (line,) = [
        line for line in COMMANDS.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{loop.name}` |")
    ]
    assert f"`{loop.interval.upper()}`" in line
