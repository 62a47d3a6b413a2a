"""The rules about runs of the graph that hold whenever the loops have come to rest."""

from chainsched.flow.maintain.fsck import run_fsck
from chainsched.testing import Workbench

# About runs, tokens and alarms; the others are about the graph itself, processes and limits.
CHECKS = ("members", "joins_ahead", "tokens", "run_end", "parts", "alarm_missing", "alarm_forbidden")


def check_rules(bench: Workbench) -> None:
    """Every token is counted, every run is closed exactly if nothing of it is open, and no alarm is missing."""
    found = run_fsck(now=bench.now, checks=CHECKS)
    assert not found, [f"{finding.subject}: {finding.evidence}" for finding in found]
