"""Real processes and a trigger of the project that refuses one row: the others go on, and in the end it runs, too."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection

from chainsched import api
from chainsched.domain.states import ExecutionState
from chainsched.models import Manifest, Metadata
from tests.processes.command import stop
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.postgres]

OTHERS = [f"good-{number}" for number in range(20)]


@contextmanager
def refused(table: str) -> Iterator[None]:
    """Let the database refuse new rows of the manifest that is bad in this table."""
    with connection.cursor() as cursor:
        cursor.execute(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF NEW.manifest_external_id = 'bad' THEN RAISE 'not this one'; END IF; RETURN NEW; END $$"
        )
        cursor.execute(f"CREATE TRIGGER refuse BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()")
    try:
        yield
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DROP FUNCTION refuse CASCADE")


@pytest.mark.parametrize("table", ["chainsched_workqueue", "chainsched_metadata"])
def test_the_others_run_and_it_runs_when_the_cause_is_gone(launch, table):
    head = Manifest.objects.schedule(workflows.ping, "head", None, None)
    for name in ["bad", *OTHERS]:
        Manifest.objects.schedule_dependent(workflows.ping, name, None, depends_on="head")
    process = launch("run_scheduler", "--processes", "1", settings={"RECONCILE_INTERVAL": 1})
    with refused(table):
        head.trigger()
        wait_until(lambda: completed() >= {"head", *OTHERS})
        wait_until(lambda: api.explain(api.find("bad")).code == "put_aside")
    wait_until(lambda: "bad" in completed())
    code, output = stop(process)
    assert code == 0
    assert "put aside: ProgrammingError: not this one" in output


def completed() -> set[str]:
    ended = Metadata.objects.filter(state=ExecutionState.COMPLETED)
    return set(ended.values_list("manifest_external_id", flat=True))
