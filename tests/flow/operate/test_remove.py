"""Removing a manifest: what becomes of the manifests below it."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from chainsched import Every
from chainsched.exceptions import LimitExceeded
from chainsched.flow.maintain.clean import clean, policy
from chainsched.flow.maintain.fsck import run_fsck
from chainsched.models import Manifest
from tests.drive import manifest, new_bench
from tests.factories import make_many_manifests
from tests.testapp import workflows

pytestmark = pytest.mark.django_db

NAMES = ["a", "b", "c", "d", "e", "f"]


@pytest.fixture
def bench():
    with new_bench() as bench:
        yield bench


@pytest.fixture
def chain():
    """Six manifests, each below the one before: as deep as MAX_JOB_DEPTH allows."""
    with new_bench() as bench:
        last = Manifest.objects.schedule(workflows.ping, NAMES[0], None, Every.hours(1))
        for name in NAMES[1:]:
            last = Manifest.objects.schedule_dependent(workflows.ping, name, None, depends_on=last.external_id)
        yield bench


def depths() -> dict[str, int]:
    return dict(Manifest.objects.values_list("external_id", "depth"))


@pytest.mark.postgres
def test_the_states_of_any_number_are_locked_by_one_statement_before_any_other_row(bench):
    make_many_manifests(1100, due=0)
    with CaptureQueriesContext(connection) as queries:
        assert Manifest.objects.all().delete()[1]["chainsched.Manifest"] == 1100
    statements = [query["sql"] for query in queries]
    locks = [at for at, sql in enumerate(statements) if "FOR NO KEY UPDATE" in sql and "SKIP LOCKED" not in sql]
    written = [at for at, sql in enumerate(statements) if "workqueue" in sql or sql.startswith("DELETE")]
    assert len(locks) == 1
    assert locks[0] < min(written)


@pytest.mark.parametrize(
    ("removed", "left"),
    [
        (["a"], {"b": 0, "c": 1, "d": 2, "e": 3, "f": 4}),
        (["c"], {"a": 0, "b": 1, "d": 0, "e": 1, "f": 2}),
        (["a", "b", "d"], {"c": 0, "e": 0, "f": 1}),
        (["f"], {"a": 0, "b": 1, "c": 2, "d": 3, "e": 4}),
    ],
)
def test_the_manifests_below_a_removed_one_count_their_ancestors_again(chain, removed, left):
    Manifest.objects.filter(external_id__in=removed).delete()
    assert depths() == left
    assert run_fsck(now=chain.now) == []


def test_a_chain_that_lost_its_head_may_get_another_level(chain):
    with pytest.raises(LimitExceeded, match="MAX_JOB_DEPTH"):
        Manifest.objects.schedule_dependent(workflows.ping, "g", None, depends_on="f")
    manifest("a").delete()
    Manifest.objects.schedule_dependent(workflows.ping, "g", None, depends_on="f")
    assert depths()["g"] == 5


def test_retention_that_removes_a_retired_head_does_the_same(chain):
    Manifest.objects.filter(external_id="a").update(retired_at=chain.now - timedelta(days=400))
    assert clean(policy(), now=chain.now).removed["manifests"] == 1
    assert depths() == {"b": 0, "c": 1, "d": 2, "e": 3, "f": 4}
