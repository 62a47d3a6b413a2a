"""Health is told within seconds, whatever the database does."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from io import StringIO
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.core.management import call_command
from django.db import OperationalError, connection

from chainsched import api
from chainsched.domain.results import Health
from chainsched.runtime.support import health_probe
from chainsched.runtime.support.background import run_in_background
from tests.factories import NOW, make_process

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 30
TURNS = dict.fromkeys(("manager", "dispatcher", "reaper"), NOW.isoformat())


def get(client):
    answer = client.get("/chainsched/health/")
    return answer.status_code, answer.json()


def command(*arguments):
    out = StringIO()
    with pytest.raises(SystemExit) as ended:
        call_command("chainsched", "health", *arguments, stdout=out, no_color=True)
    return ended.value.code, out.getvalue()


@pytest.mark.django_db(transaction=True)
class TestADatabaseThatDoesNotAnswer:
    @pytest.fixture(autouse=True)
    def asked(self, monkeypatch):
        """A database that stands still until the test is over; says how often it was asked."""
        asked, is_over = [], threading.Event()

        def wait() -> Health:
            is_over.wait(PATIENCE)
            return Health()

        def ask(work: Callable[[], Health]) -> Future[Health]:
            # Here and not in its thread, which may come to it after the limit.
            asked.append(run_in_background(work))
            return asked[-1]

        monkeypatch.setattr(health_probe, "run_in_background", ask)
        monkeypatch.setattr(health_probe, "LIMIT", 0.2)
        monkeypatch.setattr(health_probe, "shared_probe", health_probe.SharedProbe())
        monkeypatch.setattr(api, "health", wait)
        yield asked
        is_over.set()
        for answer in asked:
            answer.result(PATIENCE)

    def test_the_page_says_that_it_fails(self, client):
        assert get(client) == (503, {"status": "failing"})

    def test_nor_does_a_project_with_a_transaction_for_each_request_wait_longer(self, client, monkeypatch):
        monkeypatch.setitem(connection.settings_dict, "ATOMIC_REQUESTS", True)
        assert get(client) == (503, {"status": "failing"})

    def test_the_command_says_so_and_ends(self):
        assert command() == (1, "The database did not answer within 0.2 s.\n")
        assert json.loads(command("--json")[1])["is_healthy"] is False

    def test_whoever_asks_meanwhile_asks_with_the_first(self, client, asked):
        for _ in range(3):
            get(client)
        assert len(asked) == 1

    def test_one_that_was_asked_long_ago_is_asked_again(self, client, asked, monkeypatch):
        get(client)
        monkeypatch.setattr(health_probe, "RENEWAL", 0.0)
        get(client)
        assert len(asked) == 2


@pytest.mark.django_db(transaction=True)
def test_outside_a_transaction_it_is_asked_over_a_connection_of_its_own(client, monkeypatch):
    threads = []

    def look() -> Health:
        threads.append(threading.current_thread())
        return Health()

    monkeypatch.setattr(api, "health", look)
    assert get(client) == (200, {"status": "ok"})
    assert get(client) == (200, {"status": "ok"})
    assert len(threads) == 2
    assert threading.current_thread() not in threads


@pytest.mark.django_db
def test_inside_a_transaction_it_is_asked_there(client, monkeypatch):
    monkeypatch.setattr(api, "database_now", lambda: NOW)
    make_process(heartbeat_at=NOW, turns=TURNS, workflows=["w"])
    assert get(client) == (200, {"status": "ok"})


class TestTablesThatAreMissing:
    @pytest.fixture(autouse=True)
    def _without_tables(self, db):
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE chainsched_process RENAME TO chainsched_gone")

    def test_the_page_fails_and_raises_nothing(self, client):
        assert get(client) == (503, {"status": "failing"})

    def test_the_command_says_so(self):
        code, output = command()
        assert code == 1
        assert "chainsched_process" in output
        assert output.count("\n") == 1


@pytest.mark.django_db
def test_users_that_cannot_be_looked_up_see_no_details(client, monkeypatch):
    client.force_login(User.objects.create_user("ada"))
    monkeypatch.setattr(api, "health", lambda: Health(processes=({"host": "secret"},)))
    monkeypatch.setattr(User, "has_perm", refuse)
    assert get(client) == (200, {"status": "ok"})


def refuse(*_args):
    raise OperationalError("gone")


def test_the_command_ends_although_a_server_takes_connections_and_says_nothing():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        began_at = time.monotonic()
        ended = subprocess.run(
            [sys.executable, "manage.py", "chainsched", "health"],
            cwd=ROOT,
            env={
                **os.environ,
                "DJANGO_SETTINGS_MODULE": "tests.settings",
                "CHAINSCHED_TEST_DATABASE_URL": f"postgresql://nobody@127.0.0.1:{port}/none",
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (ended.returncode, ended.stdout) == (1, "The database did not answer within 5 s.\n")
    assert time.monotonic() - began_at < PATIENCE
