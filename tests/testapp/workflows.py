"""Workflows that the tests schedule."""

import contextlib
import logging
import sys
from dataclasses import dataclass
from typing import Any

from asgiref.sync import sync_to_async
from django.db import IntegrityError, connection, transaction

from chainsched import GiveUp, RunContext, correlation, workflow
from chainsched.models import ManifestGroup
from tests.testapp import misdeeds

__all__ = ["misdeeds"]


@dataclass(frozen=True)
class Slice:
    table: str
    size: int = 500


@workflow
def copy(job: Slice) -> dict[str, object]:
    return {"table": job.table, "rows": job.size}


@workflow
def ping() -> str:
    return "pong"


@workflow
def use_session(statement: str) -> dict[str, object]:
    """Execute a statement; what it then sees of its session."""
    with connection.cursor() as cursor:
        cursor.execute(statement)
        cursor.execute("SELECT pg_backend_pid(), current_setting('search_path')")
        pid, search_path = cursor.fetchone()
    return {"pid": pid, "search_path": search_path}


@workflow
def fail() -> None:
    raise RuntimeError("row 17 is broken")


@workflow
def give_up() -> None:
    raise GiveUp("the source is gone")


@workflow
async def copy_async(job: Slice) -> str:
    return job.table


@workflow
async def count_jobs(run: RunContext) -> list[str]:
    """Ask the database in each of the ways that Django has for async code, and write to it."""
    await ManifestGroup.objects.acreate(name=f"made by {run.external_id}")
    names = [group.name async for group in ManifestGroup.objects.order_by("name")]
    counted = await sync_to_async(ManifestGroup.objects.count)()
    assert counted == len(names) == await ManifestGroup.objects.acount()
    return names


@workflow
async def exit_async() -> None:
    sys.exit("gone")


@workflow
def activate_slowly(run: RunContext) -> str:
    """Report, activate, and end early if asked to."""
    for done in range(3):
        run.progress(done, 3, message="token=swordfish")
        if run.is_cancelled():
            return "stopped"
    first = run.activate("child", Slice("runtime", 7))
    rest = run.activate_many([("child", Slice("again")), ("other", None)])
    return f"{first} {rest} {[parent.output for parent in run.parents]} {run.join}"


@workflow
def describe(run: RunContext) -> dict[str, object]:
    return {
        "execution_id": run.execution_id,
        "external_id": run.external_id,
        "attempt": run.attempt,
        "cron_expression": run.cron_expression,
        "parent_execution_id": run.parent_execution_id,
        "root_execution_id": run.root_execution_id,
        "correlation_id": str(run.correlation_id),
    }


@workflow
def activate_copy(run: RunContext) -> bool:
    return run.activate("child", Slice("runtime", 7))


@workflow
def publish() -> dict[str, str]:
    """Publish a message and trigger a manifest; its output are the headers that the message would take along."""
    from chainsched.models import Manifest  # noqa: PLC0415 - models are not ready when workflows are imported

    logging.getLogger(__name__).warning("publishing")
    Manifest.objects.get(external_id="triggered").trigger()
    return correlation.headers("m1")


@workflow
async def tell_scope() -> str | None:
    here = correlation.current()
    return here.correlation_id if here else None


@workflow
def stumble(job: Slice, run: RunContext) -> str:
    """Fail the first time and succeed the second."""
    if run.attempt == 1:
        raise RuntimeError("once more")
    return job.table


@workflow
def describe_run(run: RunContext) -> dict[str, Any]:
    """What it learns about the join that it is a run of, and about the executions before it."""
    join = run.join
    return {
        "run": run.run_id,
        "join": join and [join.needed, join.arrived, join.outcome, [it.external_id for it in join.missing]],
        "parents": [[parent.external_id, parent.output] for parent in run.parents],
    }


@workflow
async def report_async(run: RunContext) -> bool:
    """Report progress from an event loop."""
    run.progress(1, 2)
    run.progress(2, 2)
    return run.is_cancelled()


@workflow
def violate() -> None:
    """Write what a constraint refuses."""
    ManifestGroup.objects.create(name="taken")


@workflow
async def violate_async() -> None:
    """The same from an event loop."""
    await ManifestGroup.objects.acreate(name="taken")


@workflow
def swallow_a_violation() -> None:
    """The same, and go on."""
    ManifestGroup.objects.create(name="by the job")
    with contextlib.suppress(IntegrityError):
        ManifestGroup.objects.create(name="taken")


@workflow
def secure_a_violation() -> None:
    """The same with a savepoint."""
    ManifestGroup.objects.create(name="by the job")
    with contextlib.suppress(IntegrityError), transaction.atomic():
        ManifestGroup.objects.create(name="taken")


@workflow
def roll_back() -> None:
    """Ask for a rollback of the transaction around it."""
    ManifestGroup.objects.create(name="by the job")
    transaction.set_rollback(True)
