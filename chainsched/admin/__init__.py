"""The rows in Django's admin, to look at only: nothing can be added, changed or deleted here.

Inputs, outputs and tracebacks are in no list, and on a row's own page for superusers only.
"""

from chainsched.admin.pages import (
    DeadLetterAdmin,
    LoopAdmin,
    ManifestAdmin,
    ManifestGroupAdmin,
    ManifestStateAdmin,
    MetadataAdmin,
    ProcessAdmin,
    WorkQueueAdmin,
)

__all__ = [
    "DeadLetterAdmin",
    "LoopAdmin",
    "ManifestAdmin",
    "ManifestGroupAdmin",
    "ManifestStateAdmin",
    "MetadataAdmin",
    "ProcessAdmin",
    "WorkQueueAdmin",
]
