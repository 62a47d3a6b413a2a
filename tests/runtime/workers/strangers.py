"""A program whose nursery inherits a process that it may not end, as one of another user's; prints what it says.

Not in a test itself, which has threads and must not fork.
"""

import json
import os
import select
import signal
import socket
import sys
from collections.abc import Callable
from typing import Any

import django

PATIENCE = 30

real_kill: Callable[[int, int], None] = os.kill


def kill(pid: int, number: int) -> None:
    """Refuse, as the kernel does."""
    if number == signal.SIGKILL:
        raise PermissionError
    real_kill(pid, number)


def leave_somebody_behind(end: socket.socket) -> None:
    """What a child does with its socket: it starts somebody else, who lives on until the nursery is gone."""
    if os.fork() == 0:
        os.setsid()
        end.close()
        sys.stdin.read(1)
        os._exit(0)


def main() -> None:
    django.setup()
    from chainsched.runtime.workers.fork_server import ForkServer  # noqa: PLC0415 - needs the models to be loaded

    os.kill = kill
    fork_server = ForkServer(leave_somebody_behind)
    for _ in range(2):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            fork_server.fork(theirs)
            hear_of_death(fork_server.channel)
    fork_server.close()


def hear_of_death(channel: Any) -> None:
    """Print what is said until somebody has died, or nobody speaks any more."""
    is_there = True
    messages: list[dict[str, int]] = []
    while is_there and not any("died" in message for message in messages):
        ready, _, _ = select.select([channel.socket], [], [], PATIENCE)
        said, is_there = channel.receive() if ready else ([], False)
        messages += said
    sys.stdout.write(json.dumps([is_there, *messages]) + "\n")


if __name__ == "__main__":
    main()
