"""A proof of the checker: with each guard switched off, a short run must turn red that is green with the guard."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import cache

import django

from chaos.fleet import ROOT
from tests.postgres import on_signals

SEED = "1"


def prove(names: Sequence[str]) -> int:
    """Run without each of these guards, or of all, and print the violated invariants; 1 if a run stayed green."""
    django.setup()
    from chaos.guards import GUARDS, find_guard  # noqa: PLC0415 - needs the models to be loaded

    guards = {name: find_guard(name) for name in names or GUARDS}
    unnoticed = 0
    for name, guard in guards.items():
        started = time.monotonic()
        red_anyway = _violated_with_all_guards(*guard.run)
        red = violated(["--without", name, *guard.run])
        is_noticed = set(guard.turns_red) <= set(red) and not red_anyway
        unnoticed += not is_noticed
        line = {"without": name, "is_noticed": is_noticed, "violated": red, "violated_with_it": red_anyway}
        print(json.dumps({**line, "seconds": round(time.monotonic() - started, 1)}), flush=True)
    return 1 if unnoticed else 0


@cache
def _violated_with_all_guards(*arguments: str) -> list[str]:
    """The invariants that the same run violates with all guards on; several guards share one run."""
    return violated(arguments)


def violated(arguments: Sequence[str]) -> list[str]:
    """Run the chaos in a process of its own and return the invariants that did not hold."""
    command = [sys.executable, "-m", "chaos", "--seed", SEED, *arguments]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        # It handles signals itself, and ends in order.
        on_signals(lambda number, _: process.send_signal(number))
        output, errors = process.communicate()
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    for line in lines:
        shutil.rmtree(line.get("logs", ""), ignore_errors=True)
    verdicts = [line for line in lines if "invariant" in line]
    if not verdicts:
        raise SystemExit(f"{' '.join(command)} did not come to a verdict:\n{errors}")
    return [verdict["invariant"] for verdict in verdicts if verdict["violations"]]
