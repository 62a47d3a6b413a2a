"""One mark a job: when its code ran, appended to a file that the bench reads.

A write of eight bytes with O_APPEND is atomic over threads and processes and costs about 1 µs, the same for everyone.
Needs the standard library only, because it is imported in the processes of every contestant.
"""

import functools
import os
import struct
import time
from array import array
from pathlib import Path

VARIABLE = "CHAINSCHED_BENCH_MARKS"
SIZE = 8


def mark() -> None:
    """Add the present moment, by the clock that all processes of a machine share."""
    os.write(_descriptor(), struct.pack("d", time.monotonic()))


@functools.cache
def _descriptor() -> int:
    return os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)


class Marks:
    """The file of marks, as its reader sees it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.touch()

    def clear(self) -> None:
        """Forget all marks; processes that have the file open go on in it."""
        os.truncate(self.path, 0)

    @property
    def count(self) -> int:
        return self.path.stat().st_size // SIZE

    @property
    def times(self) -> list[float]:
        """The moments, in the order of the clock."""
        return sorted(array("d", self.path.read_bytes()))
