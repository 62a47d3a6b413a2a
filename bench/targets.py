"""What chainsched is to reach in the comparison, and whether it did. Speed never fails the bench: it is reported."""

from collections.abc import Callable
from dataclasses import dataclass

from bench.results import Numbers

# Rows a second into the queue before the hot path was rewritten, on 2 quiet cores: the one figure of another run.
DUE_AT_ONCE_BEFORE = 13_000.0


@dataclass(frozen=True, slots=True)
class Target:
    """A figure, and the bound that it is to be at or above, or at or below."""

    name: str
    find: Callable[[Numbers], float]
    bound: float
    is_upper: bool = False
    aim: float | None = None

    def judge(self, results: Numbers) -> Numbers | None:
        """What was found and whether that reaches the target; None if something that it needs was not measured."""
        try:
            found = self.find(results)
        except (KeyError, TypeError, ZeroDivisionError):
            return None
        return {
            "name": self.name,
            "found": found,
            "bound": self.bound,
            "is_upper": self.is_upper,
            "aim": self.aim,
            "reached": found <= self.bound if self.is_upper else found >= self.bound,
        }


def judge(results: Numbers) -> list[Numbers]:
    """The verdicts on all targets for which there are figures."""
    return [verdict for target in TARGETS if (verdict := target.judge(results)) is not None]


def _ratio(figure: str, part: str, ours: str, theirs: str) -> Callable[[Numbers], float]:
    def find(results: Numbers) -> float:
        contestants = results["contestants"]
        return float(contestants[ours][figure][part] / contestants[theirs][figure][part])

    return find


def _rate(ours: str, theirs: str) -> Callable[[Numbers], float]:
    return _ratio("jobs_a_second", "median", ours, theirs)


def _cpu(ours: str, theirs: str) -> Callable[[Numbers], float]:
    return _ratio("cpu_us_a_job", "median", ours, theirs)


def _quiet(part: str, figure: str) -> Callable[[Numbers], float]:
    return lambda results: float(results["quiet"][part][figure])


def _into_queue(results: Numbers) -> float:
    return float(results["scale"]["due_at_once"]["a_second"]["median"] / DUE_AT_ONCE_BEFORE)


def _long_queue(results: Numbers) -> float:
    scale = results["scale"]
    return float(scale["long_queue"]["a_second"]["median"] / scale["short_queue"]["a_second"]["median"])


OURS, DUE = "chainsched-trigger", "chainsched-due"
TARGETS = (
    Target("jobs/s from triggers / pgqueuer", _rate(OURS, "pgqueuer"), 0.5, aim=0.7),
    Target("jobs/s from due manifests / pgqueuer", _rate(DUE, "pgqueuer"), 0.5, aim=0.7),
    Target("CPU a job from triggers / pgqueuer", _cpu(OURS, "pgqueuer"), 2.0, is_upper=True, aim=1.5),
    Target("CPU a job from due manifests / pgqueuer", _cpu(DUE, "pgqueuer"), 2.0, is_upper=True, aim=1.5),
    Target("jobs/s / Procrastinate", _rate(OURS, "procrastinate"), 12.0),
    Target("jobs/s / Celery with results", _rate(OURS, "celery"), 15.0),
    Target("jobs/s with default settings / tuned", _rate("chainsched-default", OURS), 0.9),
    Target(
        "trigger() / defer() of Procrastinate, calls a second",
        _ratio("enqueued_one_by_one_a_second", "median", OURS, "procrastinate"),
        0.5,
    ),
    Target("trigger to start, median / pgqueuer", _ratio("start_ms", "p50", OURS, "pgqueuer"), 2.0, is_upper=True),
    Target("chain hop, median / Celery with results", _ratio("hop_ms", "p50", OURS, "celery"), 2.0, is_upper=True),
    Target("due at once: rows/s into the queue / before", _into_queue, 2.0),
    Target("jobs/s with a long queue / with a short one", _long_queue, 0.9),
    Target("jobs/s with a million finished / with none", _rate("finished", OURS), 0.9),
    Target("CPU a job, two schedulers and workers / one", _cpu("two-schedulers", OURS), 1.1, is_upper=True),
    Target("lonely run, ms of CPU", _quiet("lonely_run", "own_ms"), 10.0, is_upper=True),
    Target("idle, % of a core", _quiet("idle", "own_percent_of_a_core"), 1.0, is_upper=True),
    Target("idle, statements a second", _quiet("idle", "statements_a_second"), 5.0, is_upper=True),
)
