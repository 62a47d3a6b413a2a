"""A task server that the project names by its path: the loops ask it, and no command starts without it."""

from datetime import timedelta
from io import StringIO

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.test import override_settings

from chainsched import Every, api
from chainsched.flow.schedule.declare import schedules
from chainsched.management.commands.chainsched import VERBS
from chainsched.management.verbs.operate import operator_verbs
from chainsched.models import Manifest, Metadata, Process, WorkQueue
from chainsched.runtime.loops import dispatcher
from chainsched.runtime.loops.reaper import Reaper
from tests.factories import NOW, make_execution, make_manifest, make_process, make_queue_row
from tests.servers.own import PATH, OwnServer
from tests.testapp import workflows

pytestmark = pytest.mark.django_db

WRONG = {"TASK_SERVER": "no_such_shop.servers.Server", "MAX_RETRIES": "3", "PROCESS_EXPIRY": 9, "LISTENN": True}
# For each problem of WRONG, the fact and the remedy.
SENTENCES = [
    "names 'no_such_shop.servers.Server', but the module no_such_shop.servers cannot be imported",
    "Correct the path or the code.",
    "CHAINSCHED['MAX_RETRIES'] must be a whole number from 0 to 2147483647, not '3'.",
    "CHAINSCHED['PROCESS_EXPIRY'] (9) must be at least twice HEARTBEAT_INTERVAL (5)",
    "Raise the first or lower the second.",
    "CHAINSCHED has no option 'LISTENN'. Did you mean 'LISTEN'?",
]
NAMING_A_ROW = {"explain", *operator_verbs()}
COMMANDS = [
    ["run_scheduler", "--once"],
    ["run_scheduler", "--once", "--in-process"],
    ["run_scheduler", "--once", "--processes", "0"],
    ["run_worker", "--for", "1"],
    ["run_worker", "--for", "1", "--in-process"],
    *(["chainsched", verb, *(["1"] if verb in NAMING_A_ROW else [])] for verb in VERBS if verb != "acknowledge"),
    ["chainsched", "acknowledge", "1", "--reason", "because"],
]


@pytest.fixture
def own_server(settings, monkeypatch):
    monkeypatch.setattr("chainsched.db.clock._stopped_at", NOW)
    for told in ("submitted", "cancelled", "forgotten"):
        monkeypatch.setattr(OwnServer, told, [])
    settings.CHAINSCHED = {"TASK_SERVER": PATH}


@pytest.fixture
def declared():
    schedules.schedule(workflows.copy, "job", workflows.Slice("t"), Every.hours(1))
    yield
    schedules.clear()


def test_the_dispatcher_starts_rows_that_the_server_can_run_and_submits_the_executions(own_server):
    make_queue_row(workflow="testapp.ping")
    other = make_queue_row(workflow="testapp.copy")
    assert dispatcher.Dispatcher().turn(NOW).did == 1
    execution = Metadata.objects.get()
    assert execution.workflow == "testapp.ping"
    assert OwnServer.submitted == [execution.id]
    assert WorkQueue.objects.queued().get() == other


def test_the_reaper_takes_back_executions_that_the_server_can_no_longer_run(own_server, monkeypatch):
    row = make_queue_row(workflow="testapp.ping")
    dispatcher.Dispatcher().turn(NOW)
    reaper = Reaper(began_at=float("-inf"))
    assert reaper.turn(NOW).did == 0
    monkeypatch.setattr(OwnServer, "recent_workflows", lambda self, *, now: [])
    assert reaper.turn(NOW).did == 1
    assert OwnServer.forgotten == OwnServer.submitted
    assert WorkQueue.objects.queued().get() == row
    assert not Metadata.objects.exists()


def test_the_server_is_told_once_of_each_running_execution_that_is_to_stop(own_server):
    running = make_execution(make_manifest(state={}), state="in_progress")
    turns = dispatcher.Dispatcher()
    turns.turn(NOW)
    assert OwnServer.cancelled == []
    running.cancel()
    for _ in range(2):
        turns.turn(NOW)
    assert OwnServer.cancelled == [running.id]


def test_the_health_asks_the_server_and_no_process(own_server):
    turns = dict.fromkeys(("manager", "dispatcher", "reaper"), NOW.isoformat())
    make_process(kind="scheduler", heartbeat_at=NOW, turns=turns, workflows=[])
    assert api.health().problems == ()


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_a_wrong_setting_stops_each_command_with_one_error_before_it_starts(arguments, declared):
    out = StringIO()
    with override_settings(CHAINSCHED=WRONG), pytest.raises(CommandError) as refused:
        call_command(*arguments, stdout=out)
    for sentence in SENTENCES:
        assert str(refused.value).count(sentence) == 1
    assert out.getvalue() == ""
    for model in (Manifest, WorkQueue, Metadata, Process):
        assert not model.objects.exists()


def test_the_system_check_reports_each_problem():
    with override_settings(CHAINSCHED=WRONG):
        found = [message.msg for message in run_checks() if message.id == "chainsched.E001"]
    assert len(found) == len(WRONG)
    for sentence in SENTENCES:
        assert sentence in " ".join(found)


class TestSubmittingAgain:
    """A message may be lost on its way to the server."""

    @pytest.fixture
    def loop(self, own_server):
        make_queue_row(workflow="testapp.ping")
        loop = dispatcher.Dispatcher()
        loop.turn(NOW)
        (execution_id,) = OwnServer.submitted
        return loop, execution_id

    def test_an_execution_that_stays_unclaimed_is_submitted_again_once_a_minute(self, loop):
        turns, execution_id = loop
        for seconds in range(0, 181, 5):
            turns.turn(NOW + timedelta(seconds=seconds))
        assert OwnServer.submitted == [execution_id] * 3

    def test_one_that_was_claimed_is_not(self, loop):
        turns, execution_id = loop
        Metadata.objects.update(state="in_progress")
        turns.turn(NOW + timedelta(minutes=5))
        assert OwnServer.submitted == [execution_id]

    def test_a_server_without_room_gets_no_more_but_the_lost_ones_again(self, loop, monkeypatch):
        turns, execution_id = loop
        monkeypatch.setattr(OwnServer, "room", 0)
        make_queue_row(workflow="testapp.ping")
        turns.turn(NOW + timedelta(minutes=5))
        assert OwnServer.submitted == [execution_id] * 2
        assert WorkQueue.objects.queued().count() == 1

    def test_a_server_gets_as_many_as_it_has_room_for(self, own_server, monkeypatch):
        monkeypatch.setattr(OwnServer, "room", 2)
        for _ in range(3):
            make_queue_row(workflow="testapp.ping")
        dispatcher.Dispatcher().turn(NOW)
        assert len(OwnServer.submitted) == 2
