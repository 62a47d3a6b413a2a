"""A program that forks one child on a host where forks fail at first; prints the reports of the fork server.

Not in a test itself, which has threads and must not fork.
"""

import errno
import json
import os
import select
import socket
import sys
from typing import Any

import django

PATIENCE = 30
# The forks that fail, counted from that of the fork server itself.
FAILING = (2, 3)

real_fork = os.fork
forks = 0


def fork() -> int:
    global forks  # noqa: PLW0603 - the fork server counts on in its own copy
    forks += 1
    if forks in FAILING:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
    return real_fork()


def main() -> None:
    django.setup()
    from chainsched.runtime.workers.fork_server import ForkServer  # noqa: PLC0415 - needs the models to be loaded

    os.fork = fork
    fork_server = ForkServer(lambda end: end.recv(1))
    ours, theirs = socket.socketpair()
    with theirs:
        fork_server.fork(theirs)
    print_report(fork_server.channel)
    ours.close()
    print_report(fork_server.channel)
    fork_server.close()


def print_report(channel: Any) -> None:
    ready, _, _ = select.select([channel.socket], [], [], PATIENCE)
    messages, is_open = channel.receive() if ready else ([], False)
    sys.stdout.write(json.dumps([is_open, *messages]) + "\n")


if __name__ == "__main__":
    main()
