"""Reports: a pipe on which a child says which of its jobs began and ended, without waking its supervisor.

A report is in the pipe before the job that it announces begins, and outlives the child, so that the supervisor of a
child that was killed knows all that it began and finished. The supervisor reads many reports at once: every few
milliseconds while they come, and otherwise when the pipe has one again. What cannot wait, or does not fit, goes by the
socket of the child.
"""

from __future__ import annotations

import json
import os
import select
from collections.abc import Sequence
from typing import Any

from chainsched.runtime.workers.protocol import Message

# While reports come, the pipe is read again after this time.
LOOK_SECONDS = 0.003
NO_JOB = 0
CHUNK = 64 * 1024

# The job that has ended and its packed outcome (None for one that completed without an output), the job that begins
# next, and the monotonic time; NO_JOB where there is none.
Report = tuple[int, Message | None, int, float]


class Reports:
    """The supervisor's side."""

    def __init__(self) -> None:
        self.descriptor, self.write_end = os.pipe()
        for end in (self.descriptor, self.write_end):
            os.set_blocking(end, False)

    def read(self) -> tuple[Sequence[Report], str]:
        """The reports that have arrived since, up to bytes that are none; and why they are none, if there are such.

        A report is written whole or not at all, so no part of one is left for the next time.
        """
        lines = bytearray()
        try:
            while data := os.read(self.descriptor, CHUNK):
                lines += data
                if len(data) < CHUNK:
                    break
        except BlockingIOError:
            pass
        return _parsed(bytes(lines)) if lines else ((), "")

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self.write_end)


def _parsed(lines: bytes) -> tuple[Sequence[Report], str]:
    try:
        # One call for all of them: no line break is inside of one, because JSON escapes it.
        return json.loads(b"[%b]" % lines.rstrip(b"\n").replace(b"\n", b",")), ""
    except (ValueError, RecursionError):
        return _parsed_singly(lines)


def _parsed_singly(lines: bytes) -> tuple[Sequence[Report], str]:
    found: list[Report] = []
    for line in lines.splitlines():
        try:
            found.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            return found, str(error)
    return found, ""


class ReportWriter:
    """The child's side."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, report: bytes) -> bool:
        """Write a report whole; False if it is too long for that, or the pipe is full."""
        if len(report) > select.PIPE_BUF:
            return False
        try:
            os.write(self._descriptor, report)
        except BlockingIOError:
            return False
        return True


def pack_report(ended: int, outcome: Message | None, began: int, now: float) -> bytes:
    """A report as it travels."""
    packed: Any = "null" if outcome is None else json.dumps(outcome, separators=(",", ":"))
    return b"[%d,%b,%d,%f]\n" % (ended, packed.encode(), began, now)
