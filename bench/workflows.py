"""The job that chainsched runs in the comparison."""

from bench.marks import mark
from chainsched import workflow


@workflow
def do_nothing() -> None:
    """Do nothing but leave its mark: the benchmark measures the work of chainsched around it."""
    mark()
