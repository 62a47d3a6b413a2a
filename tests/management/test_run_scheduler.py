"""The commands: their options, their answers to bad input, and what they print."""

import time
from io import StringIO

import pytest
from django.apps import apps
from django.core.management import CommandError, call_command
from django.db import connection

from chainsched import Every
from chainsched.db import sqlite_file
from chainsched.domain.states import ExecutionState
from chainsched.exceptions import UnfitFileSystem
from chainsched.flow.schedule.declare import schedules
from chainsched.models import Manifest, Metadata, Process
from chainsched.runtime.support.deadlines import is_before
from tests.testapp import workflows

pytestmark = pytest.mark.django_db(transaction=True)

needs_sqlite = pytest.mark.skipif(connection.vendor != "sqlite", reason="about SQLite")


@pytest.fixture
def declared():
    schedules.schedule(workflows.copy, "job", workflows.Slice("t"), Every.hours(1))
    yield
    schedules.clear()


@pytest.fixture
def until_done(monkeypatch):
    """Let the time that --for gives be long enough for one job, on whichever machine."""

    def is_before_or_not_done(deadline):
        if is_before(deadline):
            return True
        time.sleep(0.05)
        return not Metadata.objects.filter(state=ExecutionState.COMPLETED).exists()

    monkeypatch.setattr("chainsched.runtime.process.supervisor.is_before", is_before_or_not_done)


def run(*arguments):
    """Run a command here, with its jobs in threads: a test's own process is no place to fork from."""
    output = StringIO()
    call_command(*arguments, "--in-process", stdout=output)
    return output.getvalue()


def test_once_seeds_and_takes_one_turn_of_everything(declared):
    output = run("run_scheduler", "--once")
    assert "Seeded: 1 created, 0 changed, 0 retired, 0 unchanged." in output
    assert Metadata.objects.get().output == {"table": "t", "rows": 500}


def test_for_ends_by_itself(declared, until_done):
    output = run("run_scheduler", "--for", "1", "--processes", "2")
    loops = "reaper, reconciler, cleaner, bulk_decisions, manager, dispatcher"
    assert f"Scheduler started: {loops}; 2 jobs at once in this process." in output
    assert output.endswith("Scheduler stopped.\n")
    assert Metadata.objects.get().state == ExecutionState.COMPLETED


def test_by_default_there_is_a_process_for_each_core_that_may_be_used(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 2, 5}, raising=False)
    assert "Worker started: 3 jobs at once" in run("run_worker", "--for", "0.1")


def test_loops_can_be_chosen(declared):
    run("run_scheduler", "--once", "--loops", "manager", "--processes", "0")
    assert Manifest.objects.get().queue_rows.count() == 1
    assert not Metadata.objects.exists()


def test_seeding_at_start_can_be_turned_off(declared, settings):
    settings.CHAINSCHED = {"SEED": {"on_start": False}}
    assert "Seeded" not in run("run_scheduler", "--once")
    assert not Manifest.objects.exists()


def test_a_worker_runs_what_a_scheduler_elsewhere_queued(declared, until_done):
    run("run_scheduler", "--once", "--processes", "0")
    assert not Metadata.objects.exists()
    output = run("run_worker", "--for", "1", "--processes", "1")
    assert output == "Worker started: 1 jobs at once in this process. Ctrl-C stops it.\nWorker stopped.\n"
    assert Metadata.objects.get().state == ExecutionState.COMPLETED


def _now():
    from chainsched.db.clock import database_now  # noqa: PLC0415

    return database_now()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run_scheduler", "--for", "0"], "'0' is not a number of seconds above 0"),
        (["run_scheduler", "--for", "soon"], "'soon' is not a number of seconds above 0"),
        (["run_scheduler", "--processes", "-1"], "'-1' is not a whole number"),
        (["run_scheduler", "--once", "--for", "3"], "not allowed with argument"),
        (["run_scheduler", "--loops", "carousel"], "invalid choice: 'carousel'"),
        (["run_worker", "--processes", "0"], "'0' is below 1"),
        (["run_worker", "--queues", "a,,b"], "the name of a queue must be a text of the letters a to z"),
        (["run_scheduler", "--queues", "two words"], "'two words' is none"),
    ],
)
def test_bad_options_are_refused_in_words(arguments, words):
    with pytest.raises(CommandError, match=words):
        run(*arguments)


def test_a_worker_takes_jobs_from_the_queues_that_it_names(until_done):
    for name, queue in (("light", None), ("heavy", "heavy")):
        Manifest.objects.schedule(workflows.ping, name, None, None, queue=queue).trigger()
    output = run("run_worker", "--for", "1", "--processes", "1", "--queues", "other, heavy")
    assert "Worker started: 1 jobs at once in this process, from queues heavy, other." in output
    assert Process.objects.get().queues == ["heavy", "other"]
    assert Metadata.objects.get().manifest_external_id == "heavy"


@pytest.mark.parametrize("command", ["run_scheduler", "run_worker"])
def test_names_of_queues_that_nothing_uses_are_named(command):
    Manifest.objects.schedule(workflows.ping, "job", None, None, queue="heavy")
    output = run(command, "--for", "0.1", "--queues", "heavy,heayv")
    assert output.count("Nothing uses queue") == 1
    assert "Nothing uses queue 'heayv'; in use are default, heavy." in output


@pytest.mark.parametrize("command", ["run_scheduler", "run_worker"])
def test_a_schedules_module_that_cannot_be_imported_stops_the_start(command, monkeypatch):
    config = apps.get_app_config("chainsched")
    monkeypatch.setattr(config, "undiscovered", {"shop.schedules": NameError("name 'Evry' is not defined")})
    with pytest.raises(CommandError, match=r"shop\.schedules cannot be imported: NameError: name 'Evry'"):
        run(command)
    assert not Process.objects.exists()


@needs_sqlite
@pytest.mark.parametrize("command", ["run_scheduler", "run_worker"])
def test_a_database_file_on_a_network_file_system_stops_the_start(command, monkeypatch, tmp_path):
    monkeypatch.setattr(sqlite_file, "MOUNTS", tmp_path / "mountinfo")
    sqlite_file.MOUNTS.write_text("22 1 0:50 / / rw,relatime - nfs4 10.0.0.1:/export rw\n")
    with pytest.raises(
        CommandError, match=r"test\.sqlite3 is on the network file system nfs4.* Use PostgreSQL"
    ) as refused:
        run(command, "--for", "1")
    assert isinstance(refused.value.__cause__, UnfitFileSystem)
    assert refused.value.__cause__.file_system == "nfs4"
    assert not Process.objects.exists()
