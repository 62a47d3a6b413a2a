"""What ``misdeeds.tick`` wrote: who ran when, by a clock that all processes of a host share."""

from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

VARIABLE = "CHAINSCHED_TEST_TICKS"


class Run(NamedTuple):
    """One stretch of a job, from its first tick to its last."""

    began: float
    ended: float
    execution: int
    pid: int


def end(path: Path, manifest: str) -> None:
    """Let every run of this manifest end."""
    Path(f"{path}-{manifest}").touch()


def read(path: Path) -> dict[str, list[Run]]:
    """The runs of each manifest, in the order in which they began."""
    ticks: dict[tuple[str, int, int], list[float]] = defaultdict(list)
    for line in path.read_text().splitlines():
        manifest, execution, pid, at = line.split()
        ticks[manifest, int(execution), int(pid)].append(float(at))
    runs: dict[str, list[Run]] = defaultdict(list)
    for (name, of_execution, in_process), times in ticks.items():
        runs[name].append(Run(min(times), max(times), of_execution, in_process))
    return {manifest: sorted(found) for manifest, found in runs.items()}


def overlaps(path: Path) -> list[tuple[str, Run, Run]]:
    """Pairs of runs of one manifest that ran at the same time."""
    return [
        (manifest, earlier, later)
        for manifest, runs in read(path).items()
        for earlier, later in pairwise(runs)
        if later.began <= earlier.ended
    ]
