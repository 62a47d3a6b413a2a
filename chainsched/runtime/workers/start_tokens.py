"""Start tokens: a pipe from which a child and its supervisor both take, one token per job.

A supervisor writes a token for each job and then assigns the job; the child reads a token before it begins the job.
When the supervisor has read the token back, the child cannot begin the job any more, even if it is busy: a job that
holds Python's lock, or a child that was stopped, does not block the jobs that wait behind it. The kernel gives each
token to exactly one of the two.

A token also says until when the job may begin: until then, by the monotonic clock that all processes of a host share,
no other process can have been given the job. A child that was stopped, and goes on before its supervisor does, sees by
it that its time is over.
"""

from __future__ import annotations

import contextlib
import os
import struct

# A token is the round in which its job was assigned, and the time until which it may begin. Jobs begin in the order of
# assignment: if n tokens are still in the pipe, they are those of the last n jobs that the child has not begun. Its
# size divides that of a page, so that a pipe is never full in the middle of a token.
_TOKEN = struct.Struct("!Qd")
_CHUNK = 1024 * _TOKEN.size


class StartTokens:
    """The supervisor's side."""

    def __init__(self) -> None:
        self.descriptor, self._write_end = os.pipe()
        for end in (self.descriptor, self._write_end):
            os.set_blocking(end, False)
        self.round = 0

    def grant(self, number: int, *, until: float) -> None:
        """Write tokens for so many jobs, which may begin until this time. They are fewer than a pipe holds."""
        os.write(self._write_end, _TOKEN.pack(self.round, until) * number)

    def revoke(self) -> int:
        """Take back the tokens that are still there, and begin another round; returns their number."""
        size = 0
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.descriptor, _CHUNK):
                size += len(data)
        self.round += 1
        return size // _TOKEN.size

    def close(self) -> None:
        os.close(self.descriptor)
        os.close(self._write_end)


class StartTokenReader:
    """The child's side."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._held: tuple[int, float] | None = None

    def use(self, given_in: int) -> float | None:
        """Use the token of a job that was assigned in this round; returns the time until which the job may begin.

        None if the job was taken back. A token of a later round is kept for the job that comes with it.
        """
        held = self._held
        if held is None:
            try:
                held = _TOKEN.unpack(os.read(self._descriptor, _TOKEN.size))
            except BlockingIOError:
                return None
        if held[0] != given_in:
            self._held = held
            return None
        self._held = None
        return held[1]
