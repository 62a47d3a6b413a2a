"""The control room: Django's admin for operators. Pages only show rows; operators change them by actions.

The pages are mixins. A theme combines them with a ModelAdmin of its own, as below with Django's.
"""

from django.contrib import admin

from chainsched.admin.kit.mixin_base import ModelAdmin
from chainsched.admin.pages.bulk_decisions import BulkDecisionItemPage, BulkDecisionPage
from chainsched.admin.pages.dead_letters import DeadLetterPage
from chainsched.admin.pages.executions import MetadataPage
from chainsched.admin.pages.groups import ManifestGroupPage
from chainsched.admin.pages.manifests import ManifestPage
from chainsched.admin.pages.processes import NamedLockPage, ProcessPage
from chainsched.admin.pages.queue import WorkQueuePage
from chainsched.admin.pages.runs import RunPage
from chainsched.models import (
    BulkDecision,
    BulkDecisionItem,
    DeadLetter,
    GraphRun,
    Manifest,
    ManifestGroup,
    Metadata,
    NamedLock,
    Process,
    WorkQueue,
)

__all__ = [
    "BulkDecisionAdmin",
    "BulkDecisionItemAdmin",
    "BulkDecisionItemPage",
    "BulkDecisionPage",
    "DeadLetterAdmin",
    "DeadLetterPage",
    "GraphRunAdmin",
    "ManifestAdmin",
    "ManifestGroupAdmin",
    "ManifestGroupPage",
    "ManifestPage",
    "MetadataAdmin",
    "MetadataPage",
    "NamedLockAdmin",
    "NamedLockPage",
    "ProcessAdmin",
    "ProcessPage",
    "RunPage",
    "WorkQueueAdmin",
    "WorkQueuePage",
]


@admin.register(ManifestGroup)
class ManifestGroupAdmin(ManifestGroupPage, ModelAdmin):
    """Groups in Django's own admin."""


@admin.register(Manifest)
class ManifestAdmin(ManifestPage, ModelAdmin):
    """Manifests in Django's own admin."""


@admin.register(Metadata)
class MetadataAdmin(MetadataPage, ModelAdmin):
    """Executions in Django's own admin."""


@admin.register(WorkQueue)
class WorkQueueAdmin(WorkQueuePage, ModelAdmin):
    """The work queue in Django's own admin."""


@admin.register(DeadLetter)
class DeadLetterAdmin(DeadLetterPage, ModelAdmin):
    """Dead letters in Django's own admin."""


@admin.register(BulkDecision)
class BulkDecisionAdmin(BulkDecisionPage, ModelAdmin):
    """Bulk decisions in Django's own admin."""


@admin.register(BulkDecisionItem)
class BulkDecisionItemAdmin(BulkDecisionItemPage, ModelAdmin):
    """The letters of bulk decisions in Django's own admin."""


@admin.register(Process)
class ProcessAdmin(ProcessPage, ModelAdmin):
    """Processes in Django's own admin."""


@admin.register(NamedLock)
class NamedLockAdmin(NamedLockPage, ModelAdmin):
    """Named locks in Django's own admin."""


@admin.register(GraphRun)
class GraphRunAdmin(RunPage, ModelAdmin):
    """Runs of the graph in Django's own admin."""
