"""Health: each loop's last turn and each process's heartbeat, by command and by view."""

import json
from datetime import timedelta
from io import StringIO

import psycopg
import pytest
from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import OperationalError, connection
from django.test import RequestFactory

from chainsched import api, views
from chainsched.db.clock import database_now
from chainsched.db.sessions import Access
from chainsched.flow.inspect import health as examining
from chainsched.flow.inspect.health import check_health
from chainsched.servers import get_server
from tests.factories import NOW, make_process

pytestmark = pytest.mark.django_db

TURNS = {"manager": NOW.isoformat(), "dispatcher": NOW.isoformat(), "reaper": NOW.isoformat()}


def scheduler(**columns):
    return make_process(kind="scheduler", **{"heartbeat_at": NOW, "turns": TURNS, "workflows": ["w"], **columns})


def look(now=NOW):
    return check_health(pools=get_server().pools(now=now), now=now)


def problems(now=NOW):
    return look(now).problems


def test_all_is_well_when_loops_turn_and_somebody_can_work():
    scheduler()
    assert look().is_healthy


def test_nobody_alive_is_a_problem_for_each_loop_and_for_jobs():
    found = problems()
    assert len(found) == 4
    assert "No process runs the manager; start run_scheduler." in found
    assert any("can run jobs" in problem for problem in found)


@pytest.mark.parametrize("columns", [{"stopped_at": NOW}, {"lost_at": NOW}, {"heartbeat_at": NOW - timedelta(hours=1)}])
def test_a_process_that_stopped_was_lost_or_is_silent_does_not_count(columns):
    scheduler(**columns)
    assert len(problems()) == 4


@pytest.mark.parametrize("loop", ["manager", "dispatcher", "reaper"])
def test_a_loop_that_stands_still_in_a_living_process_is_a_problem(loop):
    late = (NOW - timedelta(seconds=95)).isoformat()
    scheduler(turns={**TURNS, loop: late})
    assert problems() == (f"The {loop} has not turned for 95 s.",)


def test_late_receivers_are_a_note_and_no_problem():
    scheduler(host="jobs-1", pid=811, signals={"waiting": 3, "oldest_seconds": 90, "dropped": 0, "is_dropping": False})
    scheduler(signals={"waiting": 3, "oldest_seconds": 1, "dropped": 0, "is_dropping": False})
    health = look()
    assert health.is_healthy
    (note,) = health.notes
    assert note.startswith("3 signals of jobs-1:811 wait for receivers of the project, the first for 90 s.")
    assert health.processes[0]["signals"]["waiting"] == 3


def test_one_scheduler_that_turns_is_enough():
    late = (NOW - timedelta(seconds=95)).isoformat()
    scheduler(turns=dict.fromkeys(TURNS, late))
    scheduler()
    assert problems() == ()


def test_a_worker_that_gets_nothing_done_is_a_problem_of_its_own_process():
    late = (NOW - timedelta(seconds=95)).isoformat()
    scheduler(host="jobs-1", pid=811, turns={**TURNS, "worker": NOW.isoformat()})
    make_process(host="jobs-2", pid=812, heartbeat_at=NOW, workflows=["w"], turns={"reaper": late, "worker": late})
    assert problems() == ("The worker of jobs-2:812 has not completed a turn for 95 s; see its log for the reason.",)


def test_a_worker_that_is_not_heard_of_yet_is_none():
    scheduler(turns=TURNS, started_at=NOW - timedelta(hours=1))
    assert problems() == ()


@pytest.mark.postgres
def test_a_database_that_takes_no_writes_is_the_one_problem():
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL default_transaction_read_only = on")
    (problem,) = problems()
    assert "takes no writes" in problem
    assert "default_transaction_read_only" in problem


@pytest.mark.postgres
def test_it_is_a_problem_before_anybody_has_failed_for_it():
    scheduler()
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL default_transaction_read_only = on")
    assert not look().is_healthy


def test_a_standby_is_named_as_what_it_is(monkeypatch):
    monkeypatch.setattr(examining, "access", lambda: Access(is_standby=True, is_read_only=False))
    (problem,) = problems()
    assert "standby" in problem
    assert "run_scheduler" not in problem


def test_loops_without_anybody_who_runs_jobs_are_a_problem():
    scheduler(workflows=[])
    assert len(problems()) == 1
    make_process(heartbeat_at=NOW, workflows=["w"])
    assert problems() == ()


def test_the_inline_server_needs_no_worker(settings):
    settings.CHAINSCHED = {"TASK_SERVER": "inline"}
    scheduler(workflows=[])
    assert problems() == ()


class TestTheCommand:
    @pytest.fixture(autouse=True)
    def _at_now(self, monkeypatch):
        monkeypatch.setattr(api, "database_now", lambda: NOW)

    def call(self, *arguments):
        out = StringIO()
        try:
            call_command("chainsched", "health", *arguments, stdout=out, no_color=True)
        except SystemExit as ended:
            return ended.code, out.getvalue()
        return 0, out.getvalue()

    def test_it_ends_well(self):
        scheduler()
        assert self.call() == (0, "All is well: 1 processes are alive.\n")

    def test_it_names_what_is_wrong(self):
        code, output = self.call()
        assert code == 1
        assert "No process runs the manager" in output

    def test_for_programs_it_prints_json(self):
        scheduler()
        _, output = self.call("--json")
        assert json.loads(output)["is_healthy"] is True

    def test_a_database_that_does_not_answer_is_a_problem(self, monkeypatch):
        monkeypatch.setattr(api, "database_now", unavailable)
        assert self.call() == (1, "The database does not answer: gone\n")
        assert json.loads(self.call("--json")[1])["is_healthy"] is False


def unavailable():
    raise OperationalError("gone")


class TestTheView:
    @pytest.fixture(autouse=True)
    def _at_now(self, monkeypatch):
        monkeypatch.setattr(api, "database_now", lambda: NOW)

    def get(self, client, **options):
        answer = client.get("/chainsched/health/", **options)
        return answer.status_code, answer.json()

    def test_anybody_learns_whether_all_is_well_and_nothing_else(self, client):
        assert self.get(client) == (503, {"status": "failing"})
        scheduler(host="secret-host")
        assert self.get(client) == (200, {"status": "ok"})

    def test_who_may_see_processes_sees_why(self, client):
        user = User.objects.create_user("ada")
        user.user_permissions.add(Permission.objects.get(codename="view_process"))
        client.force_login(user)
        status, body = self.get(client)
        assert status == 503
        assert "No process runs the manager; start run_scheduler." in body["problems"]

    def test_a_database_that_does_not_answer_is_a_failure_not_an_error(self, monkeypatch):
        monkeypatch.setattr(api, "database_now", unavailable)
        answer = views.health(RequestFactory().get("/"))
        assert (answer.status_code, json.loads(answer.content)) == (503, {"status": "failing"})

    def test_it_cannot_be_posted_to_and_is_never_cached(self, client):
        assert client.post("/chainsched/health/").status_code == 405
        assert "no-store" in client.get("/chainsched/health/")["Cache-Control"]


def test_processes_that_hear_no_notices_are_a_note_and_no_problem():
    scheduler()
    assert look().notes == ()
    for number in range(4):
        make_process(host="far", pid=number + 1, heartbeat_at=NOW, workflows=["w"], deaf_since=NOW)
    make_process(host="gone", pid=9, heartbeat_at=NOW, deaf_since=NOW, stopped_at=NOW)
    (note,) = look().notes
    assert "worker far:1, worker far:2, worker far:3 and 1 more" in note
    assert "LISTEN" in note
    assert look().is_healthy


@pytest.mark.postgres
@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_stays_open_is_named():
    scheduler()
    parameters = connection.get_connection_params()
    for own in ("context", "cursor_factory"):
        parameters.pop(own, None)
    with psycopg.connect(**{**parameters, "application_name": "report"}) as other:
        other.execute("SELECT 1")
        (note,) = look(database_now() + timedelta(minutes=10)).notes
    assert "report" in note
