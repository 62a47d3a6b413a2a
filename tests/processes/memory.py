"""A limit of the kernel on the memory of processes: what goes beyond it makes the kernel kill one of them."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.waiting import wait_until

CONTROL_GROUPS = Path("/sys/fs/cgroup")
MEGABYTE = 1024 * 1024


class MemoryLimit:
    """A control group, of the first or the second kind, whose processes share so much memory."""

    def __init__(self, path: Path, megabytes: int) -> None:
        self._path = path
        for name in ("memory.limit_in_bytes", "memory.max"):
            self._set(name, str(megabytes * MEGABYTE))
        # Memory that is swapped out would not be missed.
        self._set("memory.memsw.limit_in_bytes", str(megabytes * MEGABYTE))
        self._set("memory.swap.max", "0")

    @property
    def command(self) -> list[str]:
        """Begins a command for which, and for all that it starts, the limit holds from its first moment."""
        return ["sh", "-c", 'echo $$ > "$0" && exec "$@"', str(self._path / "cgroup.procs")]

    def _set(self, name: str, value: str) -> None:
        if (self._path / name).exists():
            (self._path / name).write_text(value)


@contextlib.contextmanager
def memory_limit(*, megabytes: int) -> Iterator[MemoryLimit]:
    """Make such a group, and remove it when its processes are gone; skips the test where that is not allowed."""
    parents = [CONTROL_GROUPS / "memory", CONTROL_GROUPS]
    parent = next((parent for parent in parents if _limits_memory(parent)), None)
    if parent is None:
        pytest.skip(
            "NOT RUN: no control group for memory can be made here; it takes root and a writable /sys/fs/cgroup"
        )
    path = parent / f"chainsched-test-{uuid.uuid4().hex}"
    path.mkdir()
    try:
        yield MemoryLimit(path, megabytes)
    finally:
        wait_until(lambda: not (path / "cgroup.procs").read_text())
        path.rmdir()


def _limits_memory(parent: Path) -> bool:
    """Whether groups below this one can limit memory, and can be made by us."""
    is_first_kind = (parent / "memory.limit_in_bytes").exists()
    subtree = parent / "cgroup.subtree_control"
    is_second_kind = subtree.exists() and "memory" in subtree.read_text().split()
    return (is_first_kind or is_second_kind) and os.access(parent, os.W_OK)
