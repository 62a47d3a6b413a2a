"""chainsched beside its peers, and alone at scale and at rest; docs/explanation/performance.md says how and why.

    python -m tests.postgres --durable -- python -m bench.compare [--only NAME,NAME] [--count N] [--rounds N]
        [--no-latency] [--tiny] [--json PATH]

Says what each round found while it runs, and prints the tables in the end. Speed never makes it fail; it fails if a
part of chainsched could not be measured. Peers that are missing or fail are left out, and so said loudly.
"""

import argparse
import json
import os
import platform
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench import report
from bench.obstacles import versions
from bench.processes import end_in_order
from bench.run import NAMES, Bench, Plan
from bench.server import Server
from bench.throughput import Amounts

TINY_JOBS = 50


def main() -> int:
    """Measure and print; the exit code is 1 if a part of chainsched could not be measured."""
    options = _arguments()
    end_in_order()
    server = Server()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="chainsched-bench-") as folder:
        bench = Bench(_plan(options), server, Path(folder))
        try:
            bench.measure()
        finally:
            server.remove()
    found = {"about": _about(bench.plan, server, load_before=load_before), **bench.results()}
    print(report.as_text(found))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    return 1 if bench.has_failed else 0


def _plan(options: argparse.Namespace) -> Plan:
    if options.tiny:
        amounts = Amounts(TINY_JOBS, singles=10, starts=3, chains=1, has_latencies=options.latencies)
        return Plan(options.only, rounds=1, amounts=amounts, quiet_seconds=2, is_tiny=True)
    amounts = Amounts(options.count, singles=500, starts=150, chains=30, has_latencies=options.latencies)
    return Plan(options.only, rounds=options.rounds, amounts=amounts, quiet_seconds=30)


def _about(plan: Plan, server: Server, *, load_before: float) -> dict[str, Any]:
    return {
        "is_tiny": plan.is_tiny,
        "count": plan.amounts.count,
        "rounds": plan.rounds,
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "postgresql": server.version,
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
        "versions": versions(),
    }


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare")
    parser.add_argument("--only", type=_names, default=NAMES, help=f"Some of {', '.join(NAMES)}.")
    parser.add_argument(
        "--count", type=int, default=20_000, help="Jobs in a run; of slow peers fewer, of fast ones more."
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--no-latency", action="store_false", dest="latencies", help="Only jobs a second and their CPU."
    )
    parser.add_argument("--tiny", action="store_true", help="A few jobs of everyone, to see that all works.")
    parser.add_argument("--json", metavar="PATH", help="Write all numbers there.")
    return parser.parse_args()


def _names(text: str) -> Sequence[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in NAMES]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: there is no such name")
    return names


if __name__ == "__main__":
    raise SystemExit(main())
