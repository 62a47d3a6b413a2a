"""What was measured, as numbers by name: the same in the JSON, in the table and for the targets."""

import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from bench.quiet import Idle, Lonely
from bench.scale import Scaled, Speed
from bench.throughput import Run

# A number, or numbers by name.
Numbers = dict[str, Any]


def spread(values: Iterable[float]) -> Numbers:
    """The median of the rounds, and between what they lie."""
    found = list(values)
    return {"median": statistics.median(found), "min": min(found), "max": max(found)}


def percentiles(values: Sequence[float]) -> Numbers:
    """The median and the 99th percentile of all samples of all rounds."""
    ordered = sorted(values)
    at = round(0.99 * (len(ordered) - 1))
    return {"p50": statistics.median(ordered), "p99": ordered[at], "samples": len(ordered)}


def of_contestant(runs: Sequence[Run], *, jobs: int) -> Numbers:
    """The figures of a contestant over all rounds; latencies in milliseconds."""
    numbers: Numbers = {
        "jobs": jobs,
        "rounds": len(runs),
        "jobs_a_second": spread(run.rate for run in runs),
        "cpu_us_a_job": spread(run.cpu for run in runs),
        "postgresql_us_a_job": spread(run.server_cpu for run in runs),
        "enqueued_together_a_second": spread(run.bulk for run in runs),
    }
    if one_by_one := [run.one_by_one for run in runs if run.one_by_one is not None]:
        numbers["enqueued_one_by_one_a_second"] = spread(one_by_one)
    for name, samples in (("start_ms", [run.starts for run in runs]), ("hop_ms", [run.hops for run in runs])):
        if pooled := [seconds * 1000 for sample in samples for seconds in sample]:
            numbers[name] = percentiles(pooled)
    return numbers


def of_scale(rounds: Sequence[Scaled], *, jobs: int) -> Numbers:
    """The figures with many due and queued at once."""
    return {
        "jobs": jobs,
        "rounds": len(rounds),
        "due_at_once": _of_speeds([scaled.into_queue for scaled in rounds]),
        "long_queue": _of_speeds([scaled.long for scaled in rounds]),
        "short_queue": _of_speeds([scaled.short for scaled in rounds]),
    }


def _of_speeds(speeds: Sequence[Speed]) -> Numbers:
    return {"a_second": spread(one.rate for one in speeds), "cpu_us": spread(one.cpu for one in speeds)}


def of_quiet(idle: Idle, lonely: Lonely) -> Numbers:
    """The figures of a scheduler that has little to do."""
    return {
        "idle": {
            "own_percent_of_a_core": idle.own_cpu,
            "postgresql_percent_of_a_core": idle.server_cpu,
            "statements_a_second": idle.statements,
        },
        "lonely_run": {"own_ms": lonely.own_cpu, "postgresql_ms": lonely.server_cpu},
    }
