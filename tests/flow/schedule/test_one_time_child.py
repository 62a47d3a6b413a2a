"""One-time children: what they wait for, the order of the locks, and a price that does not grow with the graph."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chainsched import Every, ManifestItem
from chainsched.db import bulk, locks
from chainsched.exceptions import CycleError
from chainsched.models import Dependency, Manifest, ManifestGroup, ManifestState, NamedLock, Near
from chainsched.models.named_lock import GRAPH
from chainsched.testing import Workbench
from tests.drive import manifest, new_bench
from tests.testapp.workflows import ping

pytestmark = pytest.mark.django_db

# So many that PostgreSQL reads no table as a whole because it is small.
FEW, MANY = 20, 5000


@pytest.fixture
def bench() -> Iterator[Workbench]:
    with new_bench() as bench:
        yield bench


class Cost:
    """The statements of a block and, on PostgreSQL, the rows that they read."""

    statements = 0
    rows = 0


@contextmanager
def measured() -> Iterator[Cost]:
    cost = Cost()
    bulk.analyze(Manifest, ManifestGroup, ManifestState, Dependency, Near)
    if connection.vendor == "postgresql":
        # As in a transaction of our own: every statement of a stage has its index.
        locks.set_locally(connection, locks.BY_INDEX)
    before = _rows_read()
    with CaptureQueriesContext(connection) as queries:
        yield cost
    cost.statements = len(queries)
    cost.rows = _rows_read() - before


def _rows_read() -> int:
    if connection.vendor != "postgresql":
        return 0
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables "
            "WHERE relname LIKE 'chainsched_%'"
        )
        return int(cursor.fetchone()[0] or 0)


def below_one_head(number: int) -> str:
    """All edges leave from one manifest; the child is to hang below one of those below it."""
    Manifest.objects.schedule(ping, "head", None, None, group="heads")
    items = [ManifestItem(str(at), depends_on="head") for at in range(number)]
    Manifest.objects.schedule_many_dependent(ping, "m", items, group="members")
    return f"m-{number // 2}"


def pairs_in_groups_of_their_own(number: int) -> str:
    tops = [ManifestItem(str(at)) for at in range(number)]
    Manifest.objects.schedule_many(ping, "top", tops, Every.hours(1), group="tops")
    items = [ManifestItem(str(at), group=f"own-{at}", depends_on=f"top-{at}") for at in range(number)]
    Manifest.objects.schedule_many_dependent(ping, "m", items)
    return f"m-{number // 2}"


@pytest.mark.parametrize(
    ("graph", "options"),
    [
        (below_one_head, {}),
        (below_one_head, {"group": "members"}),
        (below_one_head, {"group": "one-times"}),
        (pairs_in_groups_of_their_own, {}),
    ],
)
def test_a_child_costs_the_same_in_a_large_graph(
    bench: Workbench, graph: Callable[[int], str], options: dict[str, Any]
) -> None:
    costs = []
    for number in (FEW, MANY):
        parent = graph(number)
        Manifest.objects.schedule_child(ping, "first", None, parent=f"m-{number - 1}", **options)
        with measured() as cost:
            Manifest.objects.schedule_child(ping, "child", None, parent=parent, **options)
        costs.append(cost)
        assert manifest("child").depth == 2
        Manifest.objects.all().delete()
        ManifestGroup.objects.all().delete()
    small, large = costs
    assert large.statements == small.statements
    assert large.rows <= small.rows + FEW, f"{large.rows} rows in place of {small.rows}"


def test_a_circle_of_groups_far_away_from_the_child_is_found(bench: Workbench) -> None:
    Manifest.objects.schedule(ping, "a", None, None, group="a")
    for above, below in (("a", "b"), ("b", "c"), ("c", "d")):
        Manifest.objects.schedule_dependent(ping, below, None, depends_on=above, group=below)
    with pytest.raises(CycleError, match=r"manifest groups: \[a, b, c, d\]"):
        Manifest.objects.schedule_child(ping, "child", None, parent="d", group="a")
    Manifest.objects.schedule_child(ping, "child", None, parent="d", group="e")


def test_a_circle_through_groups_that_are_new_and_stored_ones_is_found(bench: Workbench) -> None:
    Manifest.objects.schedule(ping, "b", None, None, group="b")
    Manifest.objects.schedule_dependent(ping, "c", None, depends_on="b", group="c")
    items = [ManifestItem("p", depends_on="c", group="new"), ManifestItem("q", depends_on="p", group="b")]
    with pytest.raises(CycleError, match="among manifest groups"):
        Manifest.objects.schedule_many_dependent(ping, None, items)


def test_an_edge_that_the_declaration_replaces_makes_no_circle(bench: Workbench) -> None:
    Manifest.objects.schedule(ping, "a", None, None, group="a")
    Manifest.objects.schedule(ping, "b", None, None, group="b")
    Manifest.objects.schedule_dependent(ping, "child", None, depends_on="a", group="b")
    Manifest.objects.schedule_dependent(ping, "child", None, depends_on="b", group="a")
    assert manifest("child").group.name == "a"


@pytest.mark.parametrize("is_done", [True, False])
def test_one_that_is_declared_again_waits_for_a_later_outcome(bench: Workbench, is_done: bool) -> None:
    for name in ("parent", "other"):
        Manifest.objects.schedule(ping, name, None, None).trigger()
    if is_done:
        Manifest.objects.schedule_child(ping, "child", None, parent="parent")
    else:
        Manifest.objects.schedule(ping, "child", None, None)
    bench.drain()
    assert (manifest("child").done_at is not None) is is_done
    Manifest.objects.schedule_child(ping, "child", None, parent="other")
    assert bench.drain() == []
    manifest("other").trigger()
    assert sorted(bench.drain()) == ["child", "other"]
    assert manifest("child").done_at is not None


@pytest.mark.postgres
def test_all_states_are_locked_by_one_statement_after_the_graph(bench: Workbench) -> None:
    Manifest.objects.schedule(ping, "new-parent", None, None)
    Manifest.objects.schedule(ping, "parent", None, None).trigger()
    Manifest.objects.schedule_child(ping, "child", None, parent="parent")
    bench.drain()
    with CaptureQueriesContext(connection) as queries:
        Manifest.objects.schedule_child(ping, "child", None, parent="new-parent")
    locks = [query["sql"] for query in queries if "FOR NO KEY UPDATE" in query["sql"] and "SKIP" not in query["sql"]]
    assert len(locks) == 1
    ids = [manifest(name).id for name in ("new-parent", "parent", "child")]
    assert all(str(id_) in locks[0] for id_ in ids), locks
    statements = [query["sql"] for query in queries]
    graph = next(at for at, sql in enumerate(statements) if "chainsched_namedlock" in sql and "'graph'" in sql)
    assert graph < statements.index(locks[0])


def test_a_manifest_that_got_a_parent_since_it_was_looked_at_is_written_under_the_lock_on_the_graph(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether to lock the graph is decided before any lock; the plan that is made under the locks has the last word."""
    Manifest.objects.schedule(ping, "parent", None, None)
    Manifest.objects.schedule(ping, "job", None, None)
    held = []
    hold, lock = NamedLock.objects.hold, ManifestState.objects.lock

    def hold_and_note(name: str, **named: Any) -> NamedLock:
        held.append(name)
        return hold(name, **named)

    monkeypatch.setattr(NamedLock.objects, "hold", hold_and_note)

    def lock_late(manifest_ids: list[int]) -> list[int]:
        monkeypatch.setattr(ManifestState.objects, "lock", lock)
        Manifest.objects.schedule_dependent(ping, "job", None, depends_on="parent")
        held.clear()
        return lock(manifest_ids)

    monkeypatch.setattr(ManifestState.objects, "lock", lock_late)
    Manifest.objects.schedule(ping, "job", None, Every.hours(1))
    assert held == [GRAPH]
    assert manifest("job").depends_on is None
    assert manifest("parent").child_edges.count() == 0
