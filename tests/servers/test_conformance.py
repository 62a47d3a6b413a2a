"""Each task server offers the whole interface, with the names and arguments by which it is called."""

import inspect

import pytest
from django.db import connection

from chainsched.conf import SERVERS
from chainsched.servers import TaskServer, get_server
from tests.factories import NOW, make_execution, make_process
from tests.servers import own

METHODS = sorted(TaskServer.__abstractmethods__)

each_server = pytest.mark.parametrize("name", [*SERVERS, own.PATH])


@pytest.fixture
def server(name, settings):
    settings.CHAINSCHED = {"TASK_SERVER": name}
    return get_server()


def test_the_interface_has_the_methods_that_callers_use():
    assert METHODS == ["known_workflows", "recent_workflows", "submit"]


@each_server
def test_the_setting_names_the_class(server, name):
    path = SERVERS.get(name, name)
    assert f"{type(server).__module__}.{type(server).__qualname__}" == path


@each_server
@pytest.mark.parametrize("method", METHODS)
def test_a_server_takes_the_arguments_of_the_interface(server, method):
    declared = inspect.signature(getattr(TaskServer, method)).parameters
    offered = inspect.signature(getattr(type(server), method)).parameters
    assert {name: parameter.kind for name, parameter in offered.items()} == {
        name: parameter.kind for name, parameter in declared.items()
    }


@each_server
@pytest.mark.django_db
def test_a_server_can_still_run_the_workflows_that_it_knows(server):
    make_process(heartbeat_at=NOW, workflows=["testapp.ping"])
    known = server.known_workflows(now=NOW)
    assert "testapp.ping" in known
    assert set(known) <= set(server.recent_workflows(now=NOW))


@each_server
@pytest.mark.django_db
def test_a_turn_that_dispatched_nothing_changes_no_row(server, django_assert_num_queries):
    make_execution()
    with django_assert_num_queries(0, connection=connection):
        server.submit([])
