"""Rows: one file a model, the QuerySet above its Model; raw SQL and lock hints live here."""

from chainsched.models.cancelled_tree import CancelledTree
from chainsched.models.dead_letter import DeadLetter
from chainsched.models.errand import Errand
from chainsched.models.errand_letter import ErrandLetter
from chainsched.models.loop import Loop
from chainsched.models.manifest import Manifest
from chainsched.models.manifest_group import ManifestGroup
from chainsched.models.manifest_state import ManifestState
from chainsched.models.metadata import Metadata
from chainsched.models.process import Process
from chainsched.models.tally import Tally
from chainsched.models.work_queue import WorkQueue

__all__ = [
    "CancelledTree",
    "DeadLetter",
    "Errand",
    "ErrandLetter",
    "Loop",
    "Manifest",
    "ManifestGroup",
    "ManifestState",
    "Metadata",
    "Process",
    "Tally",
    "WorkQueue",
]
