"""Notes that transactions leave for rows that they may not wait for. Both tables are empty when nothing is under way.

A transaction inserts notes and never changes one; ``flow.run.consume`` and ``flow.run.fold_notes`` take them away.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from django.db import connections, models

from chainsched.db.compiled import CompiledQuery, Ids, Parameter
from chainsched.db.fields import IdList, PinnedManager
from chainsched.db.id_in import id_in
from chainsched.models.manifest import manifest_is_known


class NoteQuerySet(models.QuerySet[Any]):
    """Taking notes away, and returning them."""

    def _take(self, key: str, ids: Collection[int], columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
        """Delete the notes with one of these keys, and return their columns in the order of their ids."""
        found = self.filter(id_in(**{key: ids})).order_by("id")
        rows = list(found.values_list("id", *columns))
        taken = _delete(self.db, self.model._meta.db_table, [row[0] for row in rows])
        return [row[1:] for row in rows if row[0] in taken]


def _delete(alias: str, table: str, ids: Collection[int]) -> set[int]:
    if not ids:
        return set()
    connection = connections[alias]
    many = "= ANY(%s)" if connection.vendor == "postgresql" else "IN (SELECT value FROM json_each(%s))"
    with connection.cursor() as cursor:
        cursor.execute(
            f"DELETE FROM {table} WHERE id {many} RETURNING id",  # noqa: S608 - the table comes from the models
            [list(ids) if connection.vendor == "postgresql" else str(list(ids))],
        )
        return {row[0] for row in cursor.fetchall()}


class DueNoteQuerySet(NoteQuerySet):
    """Notes to dependents."""

    def page(self, *, after: int, limit: int) -> list[tuple[int, int]]:
        """The ids and children of the next notes; those to a child that this version does not know stay."""
        return _PAGE.rows(after_id=after, limit=limit)

    def waiting_for(self, child_ids: Collection[int]) -> set[int]:
        """Those of these manifests that a note waits for."""
        return set(_CHILDREN_WITH_NOTES.column(ids=child_ids))

    def take(self, note_ids: Collection[int]) -> list[tuple[Any, ...]]:
        """Take notes away: child, run, parent execution, tokens, is_again."""
        return self._take("id", note_ids, ("child_id", "run_id", "parent_execution_id", "tokens", "is_again"))


AFTER_ID = Parameter("after_id", models.BigIntegerField())
_PAGE = CompiledQuery(
    lambda: (
        DueNote.objects.filter(manifest_is_known("child_id"), id__gt=AFTER_ID)
        .order_by("id")
        .values_list("id", "child_id")
    ),
    has_limit=True,
)
_CHILDREN_WITH_NOTES = CompiledQuery(lambda: DueNote.objects.filter(id_in(child_id=Ids())).values_list("child_id"))


class DueNote(models.Model):
    """An outcome that makes a dependent due; without a parent execution: look again, an obstacle came or went."""

    child_id = models.BigIntegerField(help_text="The manifest that is due.")
    run_id = models.BigIntegerField(null=True, blank=True, help_text="The newest run that it is due in.")
    parent_execution_id = models.BigIntegerField(default=0, help_text="The execution that it is due for.")
    tokens = IdList(help_text="The tokens of the item: one or more in each of its runs.")
    is_again = models.BooleanField(default=False, help_text="Whether an earlier item may have ended in its run.")

    objects = PinnedManager.from_queryset(DueNoteQuerySet)()

    if TYPE_CHECKING:
        id: int

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        indexes = (models.Index(fields=["child_id"], name="chainsched_duenote_child"),)

    def __str__(self) -> str:
        return f"note to manifest {self.child_id}"


class JoinNoteQuerySet(NoteQuerySet):
    """Notes to joins."""

    def states(self, *, after: int, limit: int) -> list[int]:
        """The next JoinStates that notes wait for, by id."""
        return _STATES.column(after_id=after, limit=limit)

    def take(self, state_ids: Collection[int]) -> list[tuple[Any, ...]]:
        """Take all notes of these JoinStates away: state, open, arrived, gated, newest."""
        return self._take("state_id", state_ids, ("state_id", "open", "arrived", "gated", "newest"))


_STATES = CompiledQuery(
    lambda: JoinNote.objects.filter(state_id__gt=AFTER_ID).order_by("state_id").values_list("state_id").distinct(),
    has_limit=True,
)


class JoinNote(models.Model):
    """The changes that a transaction made for one JoinState; adding up the notes is safe in any order."""

    state_id = models.BigIntegerField(help_text="The JoinState.")
    open = models.IntegerField(default=0, help_text="Items opened, less items ended.")
    arrived = models.IntegerField(default=0, help_text="Edges that matched.")
    gated = models.IntegerField(default=0, help_text="Gates that matched.")
    newest = models.BigIntegerField(default=0, help_text="The newest execution that arrived; 0 for none.")

    objects = PinnedManager.from_queryset(JoinNoteQuerySet)()

    if TYPE_CHECKING:
        id: int

    class Meta:
        base_manager_name = "objects"
        default_permissions = ("view",)
        indexes = (models.Index(fields=["state_id"], name="chainsched_joinnote_state"),)

    def __str__(self) -> str:
        return f"note to JoinState {self.state_id}"
