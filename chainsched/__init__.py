"""Bulk job orchestration inside Django: the public names.

Importable before Django's app registry is ready; models are reached through ``chainsched.models``.
"""

from chainsched.domain.declarations import ManifestItem
from chainsched.domain.exclusions import Exclude
from chainsched.domain.run_context import RunContext
from chainsched.domain.schedules import Cron, Every, Once
from chainsched.domain.states import MisfirePolicy, RunCondition
from chainsched.exceptions import ChainschedError, GiveUp
from chainsched.flow.schedule.declare import schedules
from chainsched.registry import workflow
from chainsched.secret import Secret

__version__ = "0.1.0"

__all__ = [
    "ChainschedError",
    "Cron",
    "Every",
    "Exclude",
    "GiveUp",
    "ManifestItem",
    "MisfirePolicy",
    "Once",
    "RunCondition",
    "RunContext",
    "Secret",
    "schedules",
    "workflow",
]
