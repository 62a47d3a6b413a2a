"""A program with a fork server that inherits a process that it may not kill, as another user's; prints its reports.

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


def leave_process_behind(end: socket.socket) -> None:
    """Start, as a child, a process that lives until the fork server is gone."""
    if os.fork() == 0:
        os.setsid()
        end.close()
        sys.stdin.read(1)
        os._exit(0)


def main() -> None:
    django.setup()
    from chainsched.runtime.workers.fork_server import ForkServer  # noqa: PLC0415 - needs the models to be loaded

    os.kill = kill
    fork_server = ForkServer(leave_process_behind)
    for _ in range(2):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            fork_server.fork(theirs)
            print_until_exit(fork_server.channel)
    fork_server.close()


def print_until_exit(channel: Any) -> None:
    """Print the reports until a child has exited, or the fork server has closed its channel."""
    is_open = True
    messages: list[dict[str, int]] = []
    while is_open and not any("exited" in message for message in messages):
        ready, _, _ = select.select([channel.socket], [], [], PATIENCE)
        received, is_open = channel.receive() if ready else ([], False)
        messages += received
    sys.stdout.write(json.dumps([is_open, *messages]) + "\n")


if __name__ == "__main__":
    main()
