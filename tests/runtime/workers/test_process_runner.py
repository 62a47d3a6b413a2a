"""The supervisor's side of its children, with sockets in their place."""

import math
import os
import selectors
import signal
import socket
import subprocess
import threading
import time

import pytest

from chainsched.domain import outcomes
from chainsched.domain.outcomes import Finished
from chainsched.domain.states import ExecutionState
from chainsched.runtime.workers.child_state import ChildState, Job, is_unresponsive
from chainsched.runtime.workers.process_runner import ProcessRunner
from chainsched.runtime.workers.protocol import Channel, encode, pack_outcome
from chainsched.runtime.workers.reports import NO_JOB, ReportWriter, pack_report
from chainsched.runtime.workers.start_tokens import StartTokenReader
from tests.runtime.workers.claims import PROCESS, claim
from tests.waiting import wait_until

PATIENCE = 20


class ForkServer:
    """Reports starts and exits of children as the test calls for them."""

    pid = 4711

    def __init__(self):
        ours, self._says = socket.socketpair()
        self.channel = Channel(ours)
        self.ends = []
        self._pipes = []
        self._started = 0

    def fork(self, end):
        wire = socket.socket(fileno=os.dup(end.fileno()))
        _, pipes, _, _ = socket.recv_fds(wire, 1, 2)
        self.ends.append(End(wire, *pipes))
        self._pipes += pipes

    def start_child(self, process):
        self._started += 1
        self._says.send(encode({"started": process.pid}))

    def report_exit(self, process):
        self._says.send(encode({"exited": process.pid, "status": -signal.SIGKILL}))

    def end_all(self, process):
        """Start all requested children, and let them exit."""
        while self._started < len(self.ends):
            self.start_child(process)
        for _ in self.ends:
            self.report_exit(process)

    def close(self):
        self.channel.close()
        self._says.close()
        for end in self.ends:
            end.close()
        for pipe in self._pipes:
            os.close(pipe)


class End(Channel):
    """A child's end of the wire."""

    def __init__(self, wire, tokens, reports):
        super().__init__(wire)
        self._tokens = StartTokenReader(tokens)
        self.reports = reports

    def may_begin(self, *, given_in=0):
        return self.may_begin_until(given_in=given_in) is not None

    def may_begin_until(self, *, given_in=0):
        return self._tokens.use(given_in)

    def begin(self, execution_id, *, given_in=0):
        assert self.may_begin(given_in=given_in)
        self.report(began=execution_id)

    def report(self, *, ended=NO_JOB, outcome=None, began=NO_JOB):
        assert ReportWriter(self.reports).write(pack_report(ended, outcome, began, time.monotonic()))


@pytest.fixture
def fork_server():
    return ForkServer()


@pytest.fixture
def process():
    """A process that does nothing, to be passed off as a child."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as started:
        yield started
        started.kill()


@pytest.fixture
def results():
    """Set when there may be something to collect, or to claim."""
    return threading.Event()


@pytest.fixture
def children(fork_server, process, results):
    running = ProcessRunner(fork_server, processes=2, threads=2, on_result=results.set)
    running.open()
    use_lease(running, PROCESS)
    wait_until(lambda: len(fork_server.ends) == 2)
    yield running
    running.withdraw()
    # Until then it asks for a child in the place of each that dies.
    wait_until(lambda: running._is_draining)
    fork_server.end_all(process)
    running.close()


def use_lease(children, process_id, *, until=math.inf):
    children.use_lease(process_id, until=lambda: until, on_expiry=lambda: None)


def given(end):
    """What a child was given to run, once it was."""
    messages, _ = first_addressed(end).receive()
    return [item[0] for message in messages for item in message.get("run", ())]


def given_in_all(end, *, number):
    """The same, until it was given so many, perhaps by several messages."""
    taken: list[int] = []
    while len(taken) < number:
        taken += given(end)
    return taken


def first_addressed(*ends):
    """The first of these that was sent a message, once it was."""
    with selectors.DefaultSelector() as selector:
        for end in ends:
            selector.register(end.socket, selectors.EVENT_READ, end)
        return next(key.data for key, _ in selector.select(PATIENCE))


def received(end):
    """The kinds of messages that a child received."""
    messages, _ = end.receive()
    return {name for message in messages for name in message}


def killer_of(process):
    """The signal that ended a process, once it has; it is not waited for, so that its pid is not reused."""
    how = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return wait_until(lambda: os.waitid(os.P_PID, process.pid, how)).si_status


def test_what_a_child_does_not_begin_is_given_to_another(children, fork_server, process, monkeypatch):
    monkeypatch.setattr("chainsched.runtime.workers.child_state.ANSWER_SECONDS", 0.2)
    fork_server.start_child(process)
    children.start(claim(1))
    assert given(fork_server.ends[0]) == [1]
    assert killer_of(process) == signal.SIGKILL
    fork_server.report_exit(process)
    fork_server.start_child(process)
    assert given(fork_server.ends[1]) == [1]
    assert children.collect().finished == []


def test_jobs_are_returned_while_no_child_starts(children, fork_server, process, monkeypatch, caplog):
    monkeypatch.setattr("chainsched.runtime.workers.free_slots.NO_CHILD_SECONDS", 0.2)
    children.start(claim(1))
    wait_until(lambda: children.collect().withdrawn == [1])
    assert children.free == 0
    caplog.set_level("INFO")
    fork_server.start_child(process)
    wait_until(lambda: "A worker child has started; taking jobs again." in caplog.messages)
    assert caplog.text.count("No worker child started within 0 s; returning") == 1


def test_there_is_room_where_there_is_a_child(children, fork_server, process, results):
    assert children.free == 0
    fork_server.start_child(process)
    wait_until(lambda: children.free == 2)
    assert results.wait(PATIENCE)
    children.start(claim(1))
    assert children.free == 1
    assert given(fork_server.ends[0]) == [1]
    assert children.free == 1
    results.clear()
    fork_server.start_child(process)
    wait_until(lambda: children.free == 3)
    assert results.wait(PATIENCE)


def test_what_waits_behind_a_long_job_is_taken_back_without_asking(children, fork_server, process, monkeypatch):
    monkeypatch.setattr("chainsched.runtime.workers.child_state.STUCK_SECONDS", 0.1)
    fork_server.start_child(process)
    end = fork_server.ends[0]
    for number in (1, 2):
        children.start(claim(number))
        assert given(end) == [number]
    end.begin(1)
    wait_until(lambda: children.collect().withdrawn == [2])
    assert not end.may_begin()
    # It has a free thread, and does not use it.
    assert received(end) == {"answer"}
    assert children.free == 0
    end.send({"answered": True})
    wait_until(lambda: children.free == 1)


def test_a_child_that_runs_long_jobs_in_all_threads_gets_no_more(children, fork_server, process, monkeypatch):
    monkeypatch.setattr("chainsched.runtime.workers.child_state.STUCK_SECONDS", 0.1)
    monkeypatch.setattr("chainsched.domain.lookahead.Lookahead.ahead", 10)
    fork_server.start_child(process)
    wait_until(lambda: children.free == 12)
    children.start(claim(1))
    children.start(claim(2))
    begin_all(fork_server.ends[0], number=2)
    wait_until(lambda: children.free == 0)
    fork_server.ends[0].send({"finished": 1, "outcome": pack_outcome(outcomes.completed(None))})
    wait_until(lambda: children.free == 11)


def test_a_cancelled_job_that_waits_is_not_begun_and_the_others_are(children, fork_server, process, monkeypatch):
    monkeypatch.setattr("chainsched.domain.lookahead.Lookahead.ahead", 10)
    fork_server.start_child(process)
    end = fork_server.ends[0]
    wait_until(lambda: children.free == 12)
    for number in (1, 2, 3):
        children.start(claim(number))
    assert given_in_all(end, number=3) == [1, 2, 3]
    end.begin(1)
    children.cancel([2])
    (cancelled,) = wait_until(lambda: children.collect().finished)
    assert (cancelled.execution_id, cancelled.outcome.state) == (2, ExecutionState.CANCELLED)
    assert given(end) == [3]
    end.begin(3, given_in=1)


def test_jobs_that_overstay_together_do_not_wait_for_each_other(children, fork_server, process, settings):
    settings.CHAINSCHED = {"KILL_GRACE": 1, "SHUTDOWN_TIMEOUT": 3600}
    fork_server.start_child(process)
    children.start(claim(1, timeout=0))
    children.start(claim(2, timeout=0))
    begin_all(fork_server.ends[0], number=2)
    assert killer_of(process) == signal.SIGKILL
    fork_server.report_exit(process)
    finished = wait_until(lambda: children.collect().finished)
    assert {item.outcome.failure_type for item in finished} == {"timeout"}


def test_what_a_dead_child_has_reported_counts_also_if_it_was_not_read_before(
    children, fork_server, process, monkeypatch
):
    monkeypatch.setattr("chainsched.runtime.workers.child_pool.LOOK_SECONDS", 3600)
    monkeypatch.setattr("chainsched.domain.lookahead.Lookahead.ahead", 10)
    fork_server.start_child(process)
    wait_until(lambda: children.free == 12)
    children.start(*map(claim, (1, 2, 3)))
    end = fork_server.ends[0]
    assert given_in_all(end, number=3) == [1, 2, 3]
    end.begin(1)
    assert end.may_begin()
    end.report(ended=1, began=2)
    fork_server.report_exit(process)
    ended = {item.execution_id: item.outcome for item in gathered(children, number=2)}
    assert ended[1].state == ExecutionState.COMPLETED
    assert ended[2].failure_type == "killed"
    wait_until(lambda: len(fork_server.ends) == 3)
    fork_server.start_child(process)
    assert given(first_addressed(*fork_server.ends[1:])) == [3]


def test_a_child_whose_exit_and_last_message_are_found_together_is_read_once(children, fork_server, process):
    """Its socket and pipe are closed by then, and their numbers may be those of another child."""
    fork_server.start_child(process)
    wait_until(lambda: children.free >= 2)
    is_held, may_go_on = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        may_go_on.wait(PATIENCE)

    children._mailbox.post(hold)
    assert is_held.wait(PATIENCE)
    fork_server.report_exit(process)
    fork_server.ends[0].close()
    may_go_on.set()
    wait_until(lambda: len(fork_server.ends) == 3)
    fork_server.start_child(process)
    children.start(claim(1))
    assert given(first_addressed(*fork_server.ends[1:])) == [1]


def test_a_result_waits_for_no_job_behind_it(children, fork_server, process, monkeypatch):
    monkeypatch.setattr("chainsched.domain.lookahead.Lookahead.ahead", 10)
    fork_server.start_child(process)
    wait_until(lambda: children.free == 12)
    children.start(*map(claim, (1, 2, 3)))
    end = fork_server.ends[0]
    assert given_in_all(end, number=3) == [1, 2, 3]
    end.begin(1)
    (child, _) = children._pool
    # The first takes so long that the supervisor looks no more.
    wait_until(lambda: child.is_watched)
    assert end.may_begin()
    end.report(ended=1, outcome=pack_outcome(outcomes.completed("done")), began=2)
    (finished,) = gathered(children, number=1)
    assert (finished.execution_id, finished.outcome.output) == (1, "done")
    wait_until(lambda: child.is_watched)


@pytest.mark.parametrize(
    "garbage",
    [
        b"\xff\n",
        b"[1,null,2,0.5\n",
        b"{}\n",
        b"[1,null,2]\n",
        b"[1,7,2,0.5]\n",
        b"[0,null,[1],0.5]\n",
        b'[0,null,1,"x"]\n',
        b'[1,null,0,"x"]\n',
        b"[1,null,0,1]\n",
    ],
)
def test_a_child_that_reports_what_is_none_is_replaced(children, fork_server, process, garbage, caplog):
    fork_server.start_child(process)
    children.start(claim(1))
    end = fork_server.ends[0]
    assert given(end) == [1]
    end.begin(1)
    os.write(end.reports, garbage)
    assert killer_of(process) == signal.SIGKILL
    fork_server.report_exit(process)
    (finished,) = gathered(children, number=1)
    assert finished.outcome.failure_type == "killed"
    assert "malformed" in finished.outcome.failure_reason
    assert [message for message in caplog.messages if "sent a malformed message" in message]


def test_what_a_child_may_have_begun_after_garbage_does_not_run_again(children, fork_server, process, monkeypatch):
    """Its reports from then on are not read. A job without its start token may have begun, and one with it has not."""
    monkeypatch.setattr("chainsched.domain.lookahead.Lookahead.ahead", 10)
    fork_server.start_child(process)
    wait_until(lambda: children.free == 12)
    children.start(*map(claim, (1, 2, 3)))
    end = fork_server.ends[0]
    assert given_in_all(end, number=3) == [1, 2, 3]
    end.begin(1)
    assert end.may_begin()
    os.write(end.reports, b"debug\n")
    end.report(ended=1, began=2)
    assert killer_of(process) == signal.SIGKILL
    fork_server.report_exit(process)
    ended = {item.execution_id: item.outcome.failure_type for item in gathered(children, number=2)}
    assert ended == {1: "killed", 2: "killed"}
    wait_until(lambda: len(fork_server.ends) == 3)
    fork_server.start_child(process)
    assert given(first_addressed(*fork_server.ends[1:])) == [3]


@pytest.mark.parametrize("at", [b"NaN", b"0.0", b"-1e300", b"1e300"])
def test_a_time_that_cannot_be_counts_as_the_latest_one(children, fork_server, process, at):
    fork_server.start_child(process)
    wait_until(lambda: children.free >= 2)
    children.start(claim(1))
    end = fork_server.ends[0]
    assert given(end) == [1]
    assert end.may_begin()
    os.write(end.reports, b"[0,null,1,%b]\n" % at)
    (child, _) = children._pool
    (job,) = wait_until(lambda: child.begun)
    assert job.given_at <= job.began_at <= time.monotonic()
    os.write(end.reports, b"[1,null,0,%b]\n" % at)
    (finished,) = gathered(children, number=1)
    assert finished.outcome.state == ExecutionState.COMPLETED
    assert children.free >= 0


def gathered(children, *, number):
    """So many results, once they came."""
    finished: list[Finished] = []

    def is_there() -> bool:
        finished.extend(children.collect().finished)
        return len(finished) >= number

    wait_until(is_there)
    return finished


def test_a_claim_that_comes_over_after_its_lease_was_lost_is_not_begun(children, fork_server, process):
    children.kill()
    children.start(claim(1))
    use_lease(children, PROCESS + 1)
    children.start(claim(2))
    children.start(claim(3, process_id=PROCESS + 1))
    wait_until(lambda: len(fork_server.ends) == 4)
    for _ in range(3):
        fork_server.start_child(process)
    # The first two were requested before, and are killed as soon as they start.
    assert given(fork_server.ends[2]) == [3]
    assert children.running == 1


def test_a_job_that_a_child_declines_is_given_again_under_the_present_lease(children, fork_server, process):
    first, renewed = (time.monotonic() + seconds for seconds in (3600, 7200))
    use_lease(children, PROCESS, until=first)
    fork_server.start_child(process)
    children.start(claim(1))
    end = fork_server.ends[0]
    assert given(end) == [1]
    assert end.may_begin_until() == first
    use_lease(children, PROCESS, until=renewed)
    end.send({"declined": 1})
    assert given(end) == [1]
    assert end.may_begin_until() == renewed
    assert children.running == 1


def test_a_child_that_exits_at_its_start_is_logged_and_not_replaced_at_once(
    children, fork_server, process, caplog, monkeypatch
):
    monkeypatch.setattr("chainsched.runtime.workers.child_pool.FAILED_START_PAUSE", 3600)
    fork_server.start_child(process)
    # Its socket closes before the fork server reports its exit.
    fork_server.ends[0].socket.shutdown(socket.SHUT_RDWR)
    assert killer_of(process) == signal.SIGKILL
    assert len(fork_server.ends) == 2
    # The pause begins again with its exit.
    monkeypatch.setattr("chainsched.runtime.workers.child_pool.FAILED_START_PAUSE", 0.1)
    fork_server.report_exit(process)
    wait_until(lambda: len(fork_server.ends) == 3)
    assert [message for message in caplog.messages if "exited before its first job" in message]


def test_what_a_child_that_retires_still_runs_takes_room(children, fork_server, process):
    for _ in range(2):
        fork_server.start_child(process)
    wait_until(lambda: children.free == 4)
    children.start(claim(1))
    end = first_addressed(*fork_server.ends)
    assert given(end) == [1]
    end.begin(1)
    end.send({"retiring": True})
    wait_until(lambda: len(fork_server.ends) == 3)
    fork_server.start_child(process)
    wait_until(lambda: children.free == 3)


def test_a_replacement_gets_no_more_than_a_retiring_child_leaves(children, fork_server, process):
    for _ in range(2):
        fork_server.start_child(process)
    children._lookahead.learn(0.01)
    wait_until(lambda: children.free > 8)
    for number in range(1, 9):
        children.start(claim(number))
    first, second = fork_server.ends
    held = {first: given(first), second: given(second)}
    while sum(map(len, held.values())) < 8:
        addressed = first_addressed(first, second)
        held[addressed] += given(addressed)
    first.begin(held[first][0])
    first.send({"retiring": True})
    wait_until(lambda: len(fork_server.ends) == 3)
    fork_server.start_child(process)
    # One runs in the child that retires: with two in the other one there is a place for one more.
    for number in held[second][2:]:
        second.send({"finished": number, "outcome": pack_outcome(outcomes.completed(None))})
    assert len(given(fork_server.ends[2])) == 1


def begin_all(end, *, number):
    """Begin so many jobs in place of a child, once they have come, and in one breath: each has its clock from then."""
    taken = given_in_all(end, number=number)
    assert all(end.may_begin() for _ in taken)
    end.socket.sendall(b"".join(encode({"began": execution_id}) for execution_id in taken))


def child(*jobs, **state):
    held = {number: Job(claim(number), claimed_at=0.0, began_at=began_at) for number, began_at in enumerate(jobs)}
    return ChildState(channel=None, start_tokens=None, reports=None, pid=1, jobs=held, **state)


@pytest.mark.parametrize(
    ("seen", "is_given_up"),
    [
        (child(None, last_message_at=0.0), True),
        (child(None, last_message_at=90.0), False),
        (child(5.0, None, last_message_at=0.0), False),
        (child(last_message_at=0.0), False),
        (child(None, last_message_at=0.0, is_killed=True), False),
    ],
    ids=["silent", "sent a message lately", "busy with another job", "without work", "killed already"],
)
def test_a_child_is_given_up_that_has_work_and_does_not_begin(seen, is_given_up):
    assert is_unresponsive(seen, now=100.0) is is_given_up
