"""The jobs of the example: ordinary functions with typed inputs. Nothing here says when they run."""

import asyncio
import time
from dataclasses import dataclass

from chainsched import RunContext, workflow

ROWS_PER_REGION = {"eu": 120, "us": 300, "asia": 210}


@dataclass(frozen=True)
class Region:
    """Which region a stage works on."""

    name: str


@dataclass(frozen=True)
class Repair:
    """Which rows of a region to repair; the run that finds them says which."""

    region: str
    rows: list[int]


@dataclass(frozen=True)
class TableSlice:
    """A part of a table, by the ids of its rows."""

    table: str
    first_id: int
    last_id: int


@dataclass(frozen=True)
class Account:
    """Which account to add up."""

    name: str


@dataclass(frozen=True)
class Export:
    """Where to send the export."""

    partner: str


@workflow
def extract(region: Region, run: RunContext) -> dict[str, object]:
    """Read a region's rows; wake the dormant repair job if some of them look wrong."""
    time.sleep(0.2)
    suspicious = _find_suspicious_rows(run)
    if suspicious:
        run.activate(f"etl-{region.name}-repair", Repair(region.name, suspicious))
    return {"region": region.name, "rows": ROWS_PER_REGION[region.name], "suspicious": len(suspicious)}


@workflow
def transform(region: Region) -> dict[str, object]:
    """Convert what was extracted."""
    time.sleep(0.1)
    return {"region": region.name, "converted": ROWS_PER_REGION[region.name]}


@workflow
def load(region: Region) -> dict[str, object]:
    """Write what was transformed."""
    time.sleep(0.1)
    return {"region": region.name, "written": ROWS_PER_REGION[region.name]}


@workflow
def repair(job: Repair) -> dict[str, object]:
    """Mend the rows that an extract found suspicious."""
    return {"region": job.region, "repaired": job.rows}


@workflow
def sync_table(part: TableSlice) -> dict[str, object]:
    """Copy one slice of a table."""
    time.sleep(0.05)
    return {"table": part.table, "copied": part.last_id - part.first_id + 1}


@workflow
def report(run: RunContext) -> dict[str, object]:
    """Say for which time the report was made."""
    return {"period_ends": run.scheduled_for.isoformat()}


@workflow
def open_books() -> None:
    """Begin a closing: both accounts are added up after it."""


@workflow
def add_up(account: Account) -> dict[str, object]:
    """Add up one account."""
    time.sleep(0.1)
    return {"account": account.name, "sum": len(account.name) * 100}


@workflow
def close_books(run: RunContext) -> dict[str, object]:
    """Compare the accounts; it runs after both of them, and gets their outputs."""
    return {parent.output["account"]: parent.output["sum"] for parent in run.parents}


@workflow
async def check_sources() -> dict[str, object]:
    """Ask all sources at once whether they are up."""
    answers = await asyncio.gather(*(_ask(region) for region in ROWS_PER_REGION))
    return dict(answers)


@workflow
def export_to_partner(job: Export) -> None:
    """Fail, as the partner's server has been down for years."""
    raise ConnectionError(f"{job.partner} does not answer")


def _find_suspicious_rows(run: RunContext) -> list[int]:
    """Pretend that the sources deliver bad rows in the first eight of every fifteen seconds."""
    second = run.scheduled_for.second
    return [second + 17, second + 42] if second % 15 < 8 else []


async def _ask(region: str) -> tuple[str, str]:
    await asyncio.sleep(0.1)
    return region, "up"
