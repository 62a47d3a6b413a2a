"""Permits to begin jobs: a pipe from which a child and its supervisor both take.

A supervisor puts in one for each job that it gives, and then gives it; the child takes one out before it begins a job.
What the supervisor takes out again the child cannot begin any more, whatever it is doing: a job that holds Python's
lock, or a child that was stopped, keeps nothing that waits behind it. The kernel hands each permit to one of the two.
"""

from __future__ import annotations

import contextlib
import os
import struct

# The round in which a job was given. Permits are alike within a round, and jobs begin in the order of giving: of what
# a child has not begun, the last ones are those whose permits are still there.
_PERMIT = struct.Struct("!I")
_CHUNK = 1024 * _PERMIT.size


class StartTokens:
    """The supervisor's side."""

    def __init__(self) -> None:
        self.descriptor, self._entrance = os.pipe()
        for end in (self.descriptor, self._entrance):
            os.set_blocking(end, False)
        self.round = 0

    def grant(self, number: int) -> None:
        """Permit so many jobs more. They are fewer than a pipe holds."""
        os.write(self._entrance, _PERMIT.pack(self.round) * number)

    def revoke(self) -> int:
        """Take back the permits that are still there, and begin another round; returns how many they were."""
        size = 0
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.descriptor, _CHUNK):
                size += len(data)
        self.round += 1
        return size // _PERMIT.size

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._entrance)


class StartTokenReader:
    """The child's side."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held: int | None = None

    def covers(self, given_in: int) -> bool:
        """Whether a job that was given in this round may begin, which uses up its permit; else it was taken back.

        A permit of a later round is kept for the job that comes with it.
        """
        if self._held is None:
            with contextlib.suppress(BlockingIOError):
                (self._held,) = _PERMIT.unpack(os.read(self._descriptor, _PERMIT.size))
        if self._held != given_in:
            return False
        self._held = None
        return True
