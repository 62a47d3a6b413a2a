"""Workflows that misbehave in every way that is known."""

import asyncio
import ctypes
import json
import math
import os
import re
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction

from chainsched import RunContext, workflow


@workflow
def exit_without_a_word() -> None:
    os._exit(0)


@workflow
def exit_with_a_code() -> None:
    os._exit(3)


@workflow
def leave() -> None:
    sys.exit()


@workflow
def crash() -> None:
    ctypes.string_at(0)


@workflow
def abort() -> None:
    os.abort()


@workflow
def kill_itself() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@workflow
def term_itself() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)


@workflow
def run_out_of_memory() -> None:
    raise MemoryError


@workflow
def hoard() -> None:
    """Take more memory than the process may have, which is little more than it has."""
    has = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (has + 64 * 1024 * 1024, most))
    taken = []
    try:
        while True:
            taken.append(bytearray(1024 * 1024))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


@workflow
def devour() -> None:
    """Take all the memory that there is, after a while; meant for a process whose memory is limited."""
    time.sleep(1)
    taken = []
    while True:
        taken.append(b"x" * (16 * 1024 * 1024))


@workflow
def devour_unseen(is_served: str, run: RunContext) -> None:
    """Take all the memory in a way that the kernel does not ascribe to this process, once there is this file."""
    run.progress(0)
    while not Path(is_served).exists():
        time.sleep(0.05)
    file = os.memfd_create("devoured")
    while True:
        os.write(file, b"x" * (16 * 1024 * 1024))


@workflow
def kill_itself_by_number() -> None:
    """By a signal that has no name."""
    os.kill(os.getpid(), signal.SIGRTMIN + 5)


@workflow
def hold_pythons_lock() -> None:
    """Let no other thread of this process run, for hours, in one step that is not made of Python's."""
    sum(range(10**13))


@workflow
def oversleep(run: RunContext) -> None:
    run.progress(0)
    time.sleep(600)


@workflow
def spin() -> None:
    while True:
        pass


@workflow
def ignore_everything(run: RunContext) -> None:
    run.progress(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        try:
            time.sleep(60)
        except BaseException:  # noqa: BLE001, S112 - the misdeed
            continue


@workflow
def block_in_c() -> None:
    re.match(r"(a+)+$", "a" * 64 + "b")


@workflow
async def oversleep_async() -> None:
    await asyncio.sleep(60)


@workflow
def interrupt_from_the_keyboard() -> None:
    raise KeyboardInterrupt


@workflow
def close_everything() -> None:
    os.closerange(3, 256)
    time.sleep(1)


@workflow
def start_and_wait(run: RunContext) -> None:
    """Have a shell start something, and wait for it."""
    run.progress(0)
    subprocess.run("sleep 600 & wait", shell=True, check=False)  # noqa: S602


@workflow
async def block_a_thread(run: RunContext) -> None:
    """Wait for a thread that cannot be cancelled."""
    run.progress(0)
    await asyncio.to_thread(time.sleep, 600)


@workflow
def leave_a_daemon() -> None:
    """Leave a process behind that is nobody's child and has a session of its own, and die."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv("/bin/sleep", ["chainsched-daemon", "61"])  # noqa: S606
        os._exit(0)
    os.wait()
    os._exit(1)


@workflow
def return_nonsense() -> Any:
    return {"thing": object()}


@workflow
def return_no_number() -> float:
    return math.nan


@workflow
def return_too_much() -> str:
    return "x" * (2 * 1024 * 1024)


@workflow
def raise_nul_bytes() -> None:
    raise ValueError("a\x00b\ud800")


@workflow
def tell_pid() -> int:
    return os.getpid()


@workflow
def stay(seconds: float, run: RunContext) -> str:
    run.progress(0)
    time.sleep(seconds)
    return "stayed"


@workflow
async def tell_loop() -> list[int]:
    await asyncio.sleep(0.2)
    return [os.getpid(), id(asyncio.get_running_loop())]


@workflow
def stop_when_told(run: RunContext) -> str:
    """Work until told to stop, and tell how far it is."""
    done = 0
    while not run.is_cancelled():
        done += 1
        run.progress(done, 1_000_000, "counting")
        time.sleep(0.01)
    raise RuntimeError("told to stop")


@workflow
def tick(run: RunContext) -> str:
    """Write a line to a file again and again, so that a witness outside the database knows when it ran.

    It ends when a file says that it is enough.
    """
    path = os.environ["CHAINSCHED_TEST_TICKS"]
    enough = Path(f"{path}-{run.external_id}")
    run.progress(0)
    with Path(path).open("a", buffering=1) as file:
        while not enough.exists():
            file.write(f"{run.external_id} {run.execution_id} {os.getpid()} {time.monotonic()}\n")
            time.sleep(0.02)
    return "ticked"


@workflow
def leave_a_mark(run: RunContext) -> None:
    """Write one line as a job that ticks does."""
    with Path(os.environ["CHAINSCHED_TEST_TICKS"]).open("a") as file:
        file.write(f"{run.external_id} {run.execution_id} {os.getpid()} {time.monotonic()}\n")


@workflow
def boast(run: RunContext) -> str:
    """Show progress that no database can store, for long enough that it is tried."""
    run.progress(math.nan, math.inf, "a\x00b\ud800")
    time.sleep(0.5)
    return "boasted"


@workflow
def boast_in_json(run: RunContext) -> str:
    """Show and return a text of JSON in which half a character is escaped, beside what must be redacted."""
    text = json.dumps({"password": "hunter22", "a": "\ud800"})
    run.progress(1, message=text)
    time.sleep(0.5)
    return text


@workflow
async def leave_async() -> None:
    sys.exit()


@workflow
async def block_the_loop() -> None:
    time.sleep(60)


@workflow
def part_ways() -> str:
    """Let a copy of the process leave by the way on which the job came."""
    if (copy := os.fork()) == 0:
        sys.exit()
    os.waitpid(copy, 0)
    return "whole"


@workflow
def leave_a_transaction_open() -> None:
    transaction.atomic().__enter__()


@workflow
def write_in_an_open_block(name: str) -> None:
    transaction.atomic().__enter__()
    Group.objects.create(name=name)


@workflow
async def write_in_an_open_block_async(name: str) -> None:
    await sync_to_async(transaction.atomic().__enter__)()
    await Group.objects.acreate(name=name)


@workflow
def leave_two_blocks_open() -> None:
    transaction.atomic().__enter__()
    transaction.atomic(savepoint=False).__enter__()


@workflow
def fail_in_an_open_block() -> None:
    transaction.atomic().__enter__()
    raise RuntimeError("row 17 is broken")


@workflow
def write_without_commit(name: str) -> None:
    transaction.set_autocommit(False)
    Group.objects.create(name=name)


@workflow
async def write_without_commit_async(name: str) -> None:
    await sync_to_async(transaction.set_autocommit)(False)
    await Group.objects.acreate(name=name)


@workflow
def begin_by_hand(name: str) -> None:
    connection.cursor().execute("BEGIN")
    Group.objects.create(name=name)


@workflow
def commit_by_hand(name: str) -> int:
    """Write without autocommit, commit, and look once more."""
    transaction.set_autocommit(False)
    Group.objects.create(name=name)
    transaction.commit()
    return Group.objects.filter(name=name).count()


@workflow
def set_an_alarm() -> None:
    signal.alarm(1)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


@workflow
def write_down(name: str) -> None:
    Group.objects.create(name=name)


@workflow
async def break_connection_async() -> None:
    """Lose the connection of asynchronous queries, as a restart of the database does."""
    await Group.objects.acount()
    await sync_to_async(_break_connection)()


def _break_connection() -> None:
    connection.connection.close()


@workflow
async def count_async() -> int:
    return await Group.objects.acount()
