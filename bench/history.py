"""Finished executions of an earlier time: copies of those that ran, fifty of each, which makes a million."""

from dataclasses import replace

from bench.installed import Installed
from bench.throughput import Amounts, measure

COPIES = 50
COLUMNS = """
SELECT string_agg(quote_ident(column_name), ', ' ORDER BY ordinal_position), string_agg(
    CASE WHEN data_type = 'uuid' THEN 'gen_random_uuid()' ELSE quote_ident(column_name) END,
    ', ' ORDER BY ordinal_position)
FROM information_schema.columns WHERE table_name = 'chainsched_metadata' AND column_name <> 'id'
"""


def fill(installed: Installed, amounts: Amounts) -> int:
    """Run every manifest once and copy the executions; returns how many the table has then."""
    measure(installed, amounts)
    names, values = installed.database.row(COLUMNS)
    installed.database.run(
        # Foreign keys point to where those of the originals do; to check them would take most of the time.
        "SET session_replication_role = replica",
        f"INSERT INTO chainsched_metadata ({names}) SELECT {values} FROM chainsched_metadata, generate_series(2, {COPIES})",  # noqa: S608, E501 - our own names
        "RESET session_replication_role",
    )
    rows, last = installed.database.row("SELECT count(*), max(id) FROM chainsched_metadata")
    only_new = f"{installed.contestant.recorded} AND id > {last}"
    installed.contestant = replace(installed.contestant, recorded=only_new)
    return int(rows)
