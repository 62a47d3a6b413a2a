"""Tables: one file per model, the QuerySet above its Model; raw SQL and lock hints live here."""

from chainsched.models.bulk_decision import BulkDecision
from chainsched.models.bulk_decision_item import BulkDecisionItem
from chainsched.models.dead_letter import DeadLetter
from chainsched.models.dependency import Dependency
from chainsched.models.graph_run import GraphRun
from chainsched.models.hourly_statistic import HourlyStatistic
from chainsched.models.join_state import JoinState
from chainsched.models.manifest import Manifest
from chainsched.models.manifest_group import ManifestGroup
from chainsched.models.manifest_state import ManifestState
from chainsched.models.metadata import Metadata
from chainsched.models.named_lock import NamedLock
from chainsched.models.near import Near
from chainsched.models.notes import DueNote, JoinNote
from chainsched.models.process import Process
from chainsched.models.taken_over import TakenOver
from chainsched.models.work_queue import WorkQueue

__all__ = [
    "BulkDecision",
    "BulkDecisionItem",
    "DeadLetter",
    "Dependency",
    "DueNote",
    "GraphRun",
    "HourlyStatistic",
    "JoinNote",
    "JoinState",
    "Manifest",
    "ManifestGroup",
    "ManifestState",
    "Metadata",
    "NamedLock",
    "Near",
    "Process",
    "TakenOver",
    "WorkQueue",
]
