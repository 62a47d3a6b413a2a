"""The witness file: how it is written and read."""

import json
import os
from types import SimpleNamespace

import pytest

from chaos import witness
from chaos.witness import Run, gather, witnessed


def line(event, *, execution=1, pid=7, at=0.0, is_whole=False):
    known = {"event": event, "execution": execution, "manifest": "job", "attempt": 1, "pid": pid, "member": "worker-1"}
    return json.dumps({**known, "at": at, "is_whole": is_whole})


def context():
    return SimpleNamespace(execution_id=5, external_id="job", attempt=2)


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv(witness.FILE, str(tmp_path / "witness.jsonl"))
    monkeypatch.setenv(witness.MEMBER, "worker-1")
    return tmp_path / "witness.jsonl"


def test_a_run_writes_its_beginning_before_and_its_end_after_the_work(file):
    with witnessed(context()):
        (run,) = witness.read(file)
        assert run.ended is None
    (run,) = witness.read(file)
    assert (run.execution, run.manifest, run.attempt, run.pid) == (5, "job", 2, os.getpid())
    assert run.member == "worker-1"
    assert run.is_whole
    assert run.ended >= run.began


def test_a_run_that_raises_ends_and_is_not_whole(file):
    with pytest.raises(ZeroDivisionError), witnessed(context()):
        _ = 1 / 0
    (run,) = witness.read(file)
    assert run.ended is not None
    assert not run.is_whole


def test_a_file_that_does_not_exist_holds_no_runs(tmp_path):
    assert witness.read(tmp_path / "witness.jsonl") == []


def test_a_run_without_an_end_was_cut_off():
    (run,) = gather([line("begin", at=1.0)])
    assert run.ended is None


def test_one_execution_in_two_processes_is_two_runs():
    runs = gather([line("begin", pid=1, at=1.0), line("begin", pid=2, at=2.0), line("end", pid=1, at=3.0)])
    assert [(run.pid, run.ended) for run in runs] == [(1, 3.0), (2, None)]


def test_one_execution_again_in_the_same_process_is_two_runs():
    runs = gather([line("begin", at=1.0), line("end", at=2.0), line("begin", at=3.0), line("end", at=4.0)])
    assert [(run.began, run.ended) for run in runs] == [(1.0, 2.0), (3.0, 4.0)]


@pytest.mark.parametrize(
    ("ended", "seen", "until"),
    [
        pytest.param(2.0, {7: 9.0}, 2.0, id="its end, if it wrote one"),
        pytest.param(None, {7: 9.0}, 9.0, id="the last sight of its process, if it was cut off"),
        pytest.param(None, {7: 0.5}, 1.0, id="its beginning, if its process was seen only before"),
        pytest.param(None, {}, 1.0, id="its beginning, if its process was never seen"),
    ],
)
def test_a_run_certainly_went_on_until(ended, seen, until):
    run = Run(1, "job", 1, 7, "worker-1", began=1.0, ended=ended)
    assert run.until(seen) == until
