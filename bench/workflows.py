"""The job that chainsched runs in the comparison."""

from chainsched import workflow


@workflow
def do_nothing() -> None:
    """Do nothing: the benchmark measures the work of chainsched around it."""
