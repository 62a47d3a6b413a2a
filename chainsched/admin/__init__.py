"""The control room: Django's admin for operators. Every page only shows; what is done is done by actions.

The bodies are mixins. A theme combines them with a ModelAdmin of its own, as below with Django's.
"""

from django.contrib import admin

from chainsched.admin.bases import ModelAdmin
from chainsched.admin.errands import ErrandLetterPage, ErrandPage
from chainsched.admin.executions import MetadataPage
from chainsched.admin.groups import ManifestGroupPage
from chainsched.admin.letters import DeadLetterPage
from chainsched.admin.manifests import ManifestPage
from chainsched.admin.processes import CancelledTreePage, LoopPage, ProcessPage
from chainsched.admin.queue import WorkQueuePage
from chainsched.models import (
    CancelledTree,
    DeadLetter,
    Errand,
    ErrandLetter,
    Loop,
    Manifest,
    ManifestGroup,
    Metadata,
    Process,
    WorkQueue,
)

__all__ = [
    "CancelledTreeAdmin",
    "CancelledTreePage",
    "DeadLetterAdmin",
    "DeadLetterPage",
    "ErrandAdmin",
    "ErrandLetterAdmin",
    "ErrandLetterPage",
    "ErrandPage",
    "LoopAdmin",
    "LoopPage",
    "ManifestAdmin",
    "ManifestGroupAdmin",
    "ManifestGroupPage",
    "ManifestPage",
    "MetadataAdmin",
    "MetadataPage",
    "ProcessAdmin",
    "ProcessPage",
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


@admin.register(Errand)
class ErrandAdmin(ErrandPage, ModelAdmin):
    """Errands in Django's own admin."""


@admin.register(ErrandLetter)
class ErrandLetterAdmin(ErrandLetterPage, ModelAdmin):
    """The letters of errands in Django's own admin."""


@admin.register(Process)
class ProcessAdmin(ProcessPage, ModelAdmin):
    """Processes in Django's own admin."""


@admin.register(Loop)
class LoopAdmin(LoopPage, ModelAdmin):
    """Loops in Django's own admin."""


@admin.register(CancelledTree)
class CancelledTreeAdmin(CancelledTreePage, ModelAdmin):
    """Cancelled trees in Django's own admin."""
