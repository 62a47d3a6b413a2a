"""Workflows that the tests schedule."""

import logging
from dataclasses import dataclass
from typing import Any

from chainsched import GiveUp, RunContext, correlation, workflow
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
def fail() -> None:
    raise RuntimeError("row 17 is broken")


@workflow
def give_up() -> None:
    raise GiveUp("the source is gone")


@workflow
async def copy_async(job: Slice) -> str:
    return job.table


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
