"""Named rows to lock, so that one process at a time takes a turn, across any number of hosts."""

from __future__ import annotations

from datetime import datetime

from django.db import models

from chainsched.db import bulk
from chainsched.db.compiled import NOW, CompiledQuery, CompiledUpdate, Parameter
from chainsched.db.fields import PinnedManager

DISPATCH = "dispatch"
GRAPH = "graph"
CLEANUP = "cleanup"


class NamedLockQuerySet(models.QuerySet["NamedLock"]):
    """The locks."""

    def hold(self, name: str, *, now: datetime) -> NamedLock:
        """Hold the named row until the transaction ends, waiting for another holder, and store the time.

        The lock is taken by a write, so that it also makes a transaction on SQLite the only one.
        """
        if not _TURN.run(name=name, now=now):
            bulk.insert(NamedLock, [{"name": name}], returning=("name",), skip_conflicts=True)
            _TURN.run(name=name, now=now)
        return NamedLock(name=name, turns=_TURNS.column(name=name)[0], turned_at=now)

    def lock(self, name: str) -> None:
        """Hold the named row until the transaction ends, without taking a turn."""
        list(self.filter(name=name).select_for_update().values_list("name"))

    def next_version(self) -> int:
        """Count the version of the graph up, which new edges belong to. From then on the caller holds its lock."""
        graph = self.filter(name=GRAPH)
        if not graph.update(version=models.F("version") + 1):
            bulk.insert(NamedLock, [{"name": GRAPH}], returning=("name",), skip_conflicts=True)
            graph.update(version=models.F("version") + 1)
        return graph.values_list("version", flat=True).get()

    def present_version(self) -> int:
        """The version of the graph."""
        return self.filter(name=GRAPH).values_list("version", flat=True).first() or 0


NAME = Parameter("name", models.CharField())
_TURN = CompiledUpdate(lambda: NamedLock.objects.filter(name=NAME), turned_at=NOW)
_TURNS = CompiledQuery(lambda: NamedLock.objects.filter(name=NAME).values_list("turns"))


class NamedLock(models.Model):
    """A row to lock for a step that only one process may take at a time."""

    name = models.CharField(max_length=40, primary_key=True, help_text="The purpose of the lock.")
    turns = models.JSONField(
        default=dict, blank=True, help_text="For dispatch: the turn that fairness has reached at each priority."
    )
    version = models.BigIntegerField(
        default=0, db_default=0, help_text="For the graph: how often its edges were changed."
    )
    turned_at = models.DateTimeField(null=True, blank=True, help_text="When the last turn was taken.")

    objects = PinnedManager.from_queryset(NamedLockQuerySet)()

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)

    def __str__(self) -> str:
        return self.name
