"""The job that chainsched runs in the comparison."""

from chainsched import workflow


@workflow
def do_nothing() -> None:
    """Nothing: what is measured is everything around it."""
