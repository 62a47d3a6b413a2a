"""The checker proves itself: with each guard switched off, a short run must turn red."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence

import django

from chaos.fleet import ROOT

SEED = "1"


def prove(names: Sequence[str]) -> int:
    """Run without each of these guards, or of all, and print what noticed; 1 if a run stayed green."""
    django.setup()
    from chaos.guards import GUARDS  # noqa: PLC0415 - needs the models to be loaded

    unnoticed = 0
    for name in names or GUARDS:
        started = time.monotonic()
        red = violated(["--without", name, "--seed", SEED, *GUARDS[name].run])
        is_noticed = GUARDS[name].turns_red in red
        unnoticed += not is_noticed
        seconds = round(time.monotonic() - started, 1)
        print(json.dumps({"without": name, "is_noticed": is_noticed, "violated": red, "seconds": seconds}), flush=True)
    return 1 if unnoticed else 0


def violated(arguments: Sequence[str]) -> list[str]:
    """Run the chaos in a process of its own and return the invariants that did not hold."""
    command = [sys.executable, "-m", "chaos", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    for line in lines:
        shutil.rmtree(line.get("logs", ""), ignore_errors=True)
    verdicts = [line for line in lines if "invariant" in line]
    if not verdicts:
        raise RuntimeError(f"{' '.join(command)} did not come to a verdict:\n{done.stderr}")
    return [verdict["invariant"] for verdict in verdicts if verdict["violations"]]
