"""The database session of a child, from job to job."""

from collections.abc import Sequence
from typing import Any

import pytest
from django.db import connection

from chainsched.domain.states import ExecutionState
from chainsched.models import Manifest, Metadata
from tests.processes.command import stop
from tests.processes.servers import own_postgres
from tests.testapp import workflows
from tests.waiting import wait_until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.postgres]

SOIL, LOOK = "SET search_path = pg_catalog", "SELECT 1"


def run_in_turn(statements: Sequence[str]) -> list[Any]:
    """Let the child run a job with each of these statements, one after the other; what they saw."""
    names = [f"job-{Manifest.objects.count() + number}" for number in range(len(statements))]
    for name, statement in zip(names, statements, strict=True):
        manifest = Manifest.objects.schedule(workflows.use_session, name, statement, None, max_retries=1)
        manifest.trigger()
        wait_until(Metadata.objects.filter(manifest=manifest, ended_at__isnull=False).exists)
    ended = {it.manifest_external_id: it for it in Metadata.objects.filter(manifest_external_id__in=names)}
    assert {it.state for it in ended.values()} == {ExecutionState.COMPLETED}
    return [ended[name].output for name in names]


def test_jobs_of_one_child_use_one_session_and_see_nothing_of_each_other(launch):
    scheduler = launch("run_scheduler", "--processes", "1")
    seen = run_in_turn([LOOK, SOIL, LOOK])
    assert len({it["pid"] for it in seen}) == 1
    assert seen[0] == seen[2] != seen[1]
    assert stop(scheduler)[0] == 0


def test_a_restart_of_the_database_between_jobs_fails_none(launch):
    with own_postgres() as postgres:
        scheduler = launch("run_scheduler", "--processes", "1")
        run_in_turn([LOOK])
        connection.close()
        postgres.restart("fast")
        run_in_turn([LOOK])
        assert stop(scheduler)[0] == 0
