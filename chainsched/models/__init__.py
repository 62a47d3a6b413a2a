"""Tables: one file per model, the QuerySet above its Model; raw SQL and lock hints live here."""

from chainsched.models.bulk_decision import BulkDecision
from chainsched.models.bulk_decision_item import BulkDecisionItem
from chainsched.models.cancelled_tree import CancelledTree
from chainsched.models.dead_letter import DeadLetter
from chainsched.models.hourly_statistic import HourlyStatistic
from chainsched.models.manifest import Manifest
from chainsched.models.manifest_group import ManifestGroup
from chainsched.models.manifest_state import ManifestState
from chainsched.models.metadata import Metadata
from chainsched.models.named_lock import NamedLock
from chainsched.models.process import Process
from chainsched.models.work_queue import WorkQueue

__all__ = [
    "BulkDecision",
    "BulkDecisionItem",
    "CancelledTree",
    "DeadLetter",
    "HourlyStatistic",
    "Manifest",
    "ManifestGroup",
    "ManifestState",
    "Metadata",
    "NamedLock",
    "Process",
    "WorkQueue",
]
