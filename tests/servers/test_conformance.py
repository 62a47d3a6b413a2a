"""Each task server offers the whole interface, with the names and arguments by which it is called."""

import inspect

import pytest
from django.db import connection

from chainsched.conf import SERVERS
from chainsched.domain.routing import are_taken
from chainsched.flow.operate.take import Taken
from chainsched.servers import TaskServer, get_server
from tests.factories import NOW, make_execution, make_manifest, make_process, make_queue_row
from tests.servers import own

METHODS = sorted(TaskServer.__abstractmethods__)

each_server = pytest.mark.parametrize("name", [*SERVERS, own.PATH])


@pytest.fixture
def server(name, settings):
    settings.CHAINSCHED = {"TASK_SERVER": name}
    return get_server()


def test_the_interface_has_the_methods_that_callers_use():
    assert METHODS == ["cancel", "forget", "pools", "recent_workflows", "submit", "take"]


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
def test_a_server_knows_the_workflows_that_can_be_run(server):
    make_process(heartbeat_at=NOW, workflows=["testapp.ping"])
    assert are_taken("testapp.ping", "default", pools=server.pools(now=NOW))


@each_server
@pytest.mark.django_db
def test_work_reaches_a_server_in_one_way(server):
    """Its workers take queued rows, or executions are submitted to it, which it can still run then; never both."""
    process = make_process(heartbeat_at=NOW, workflows=["testapp.ping"])
    make_queue_row(make_manifest(state={}))
    taken = server.take(process=process, limit=5, now=NOW)
    if not any(pool.is_fed for pool in server.pools(now=NOW)):
        assert [item.workflow for item in taken.claims] == ["testapp.ping"]
        assert not list(server.recent_workflows(now=NOW))
    else:
        assert taken == Taken()
        names = {name for pool in server.pools(now=NOW) for name in pool.workflows}
        assert names <= set(server.recent_workflows(now=NOW))


@each_server
@pytest.mark.django_db
def test_a_turn_that_dispatched_nothing_changes_no_row(server, django_assert_num_queries):
    make_execution()
    with django_assert_num_queries(0, connection=connection):
        server.submit([])
        server.cancel([])
        server.forget([])
