"""A million executions, a hundred thousand manifests: what each page reads of them is bounded, by an index."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any
from urllib.parse import urlencode

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from chainsched.admin.kit.filters import NEWEST
from chainsched.flow.transactions import index_reads
from chainsched.models import DeadLetter, Manifest, ManifestGroup, Metadata, WorkQueue
from tests.admin.test_pages import MAX_QUERIES
from tests.admin.world import client_of, url_of
from tests.factories import make_group, make_letter, make_manifest
from tests.tidying import tidy

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

EXECUTIONS, MANIFESTS, LETTERS, QUEUE = 1_000_000, 100_000, 100_000, 300_000
AWAITING = 10_000
LARGE = [f"chainsched_{name}" for name in ("metadata", "manifest", "manifeststate", "deadletter", "workqueue")]
# What one step of a plan may touch: as many rows as the filters that have no index look at.
MAX_TOUCHED = NEWEST

FILL = [
    """INSERT INTO chainsched_manifestgroup (name, priority, is_enabled)
    SELECT 'group ' || i, 0, i <> 99 FROM generate_series(1, 100) i""",
    """INSERT INTO chainsched_manifest (external_id, group_id, workflow, schedule_type, cron_expression, timezone,
    interval_seconds, once_at, jitter_seconds, exclusions, misfire_policy, run_condition, is_join, fan_in,
    is_eager, runs_again_on_late, depth, is_enabled, owner, batch, is_declared, is_one_time, retired_at, done_at)
    SELECT 'job ' || lpad(i::text, 6, '0'), (SELECT min(id) FROM chainsched_manifestgroup) + i %% 100,
    CASE WHEN i %% 30000 = 7 THEN 'etl.rare' ELSE 'etl.w' || i %% 50 END,
    CASE WHEN i %% 30000 = 7 THEN 'once' WHEN i %% 10 = 0 THEN 'cron' ELSE 'interval' END,
    CASE WHEN i %% 10 = 0 AND i %% 30000 <> 7 THEN '0 9 * * *' ELSE '' END, '',
    CASE WHEN i %% 10 = 0 OR i %% 30000 = 7 THEN NULL ELSE 300 END,
    CASE WHEN i %% 30000 = 7 THEN now() END, 0, '[]', '', 0, false, '', false, false, 0, i %% 1000 <> 1,
    CASE WHEN i %% 30000 = 9 THEN 'rare' ELSE 'project' END, '', true, false,
    CASE WHEN i %% 5000 = 2 THEN now() END, CASE WHEN i %% 30000 = 7 THEN now() END
    FROM generate_series(1, %(manifests)s) i""",
    """INSERT INTO chainsched_manifeststate (manifest_id, next_run_at, due_execution, covered_execution,
    consecutive_failures, succeeded_execution, dead_lettered_execution, finished_execution, due_tokens)
    SELECT id, CASE WHEN id %% 5 > 0 THEN now() + id %% 500 * interval '10 minutes' END, 0, 0,
    CASE WHEN id %% 500 = 0 THEN 1 ELSE 0 END, 0, 0, 0, '{}' FROM chainsched_manifest""",
    """INSERT INTO chainsched_metadata (external_id, manifest_id, manifest_external_id, group_id, workflow, source,
    state, priority, attempt, claims, scheduled_for, created_at, started_at, ended_at, failure_type, failure_reason,
    failure_traceback, failure_fingerprint, cancel_requested, causation_id, root_correlation_id, tokens)
    SELECT gen_random_uuid(), m.id, m.external_id, m.group_id, m.workflow, 'schedule', s.state, 0, 1, 1, s.at, s.at,
    s.at, CASE WHEN s.state IN ('completed', 'failed', 'cancelled') THEN s.at END,
    CASE s.state WHEN 'failed' THEN 'ValueError' ELSE '' END, '', '', '', false, '', '', '{}'
    FROM (SELECT i, CASE WHEN i > %(executions)s - 200 THEN 'in_progress' WHEN i > %(executions)s - 400 THEN 'pending'
        WHEN i %% 100 = 0 THEN 'failed' WHEN i %% 50000 = 1 THEN 'cancelled' ELSE 'completed' END AS state,
        now() - (%(executions)s - i) * interval '1 second' AS at FROM generate_series(1, %(executions)s) i) s
    JOIN chainsched_manifest m ON m.id = (SELECT min(id) FROM chainsched_manifest) + s.i %% %(manifests)s ORDER BY i""",
    """INSERT INTO chainsched_workqueue (manifest_id, manifest_external_id, group_id, workflow, priority, turn, status,
    scheduled_for, attempt, source, causation_id, root_correlation_id, execution_id, cancel_reason, created_at, tokens)
    SELECT m.id, m.external_id, m.group_id, m.workflow, i %% 20, i, s.status, now(), 1,
    CASE WHEN i %% 10000 = 5 THEN 'trigger' ELSE 'schedule' END, '', '',
    CASE s.status WHEN 'dispatched' THEN i END, '', now(), '{}'
    FROM (SELECT i, CASE WHEN i > %(queue)s - 20000 THEN 'queued' WHEN i %% 50000 = 3 THEN 'cancelled'
        ELSE 'dispatched' END AS status FROM generate_series(1, %(queue)s) i) s
    JOIN chainsched_manifest m ON m.id = (SELECT min(id) FROM chainsched_manifest) + s.i %% %(manifests)s ORDER BY i""",
    """INSERT INTO chainsched_deadletter (manifest_id, execution_id, status, reason, failure_count, fingerprint,
    dead_lettered_at, resolved_at, note)
    SELECT (SELECT min(id) FROM chainsched_manifest) + i - 1, (SELECT min(id) FROM chainsched_metadata) + i,
    CASE WHEN i %% 10 = 0 THEN 'awaiting_intervention' WHEN i %% 9000 = 1 THEN 'acknowledged' ELSE 'retried' END,
    'no route to host', 3, CASE WHEN i %% 9000 < 10 THEN 'rare' ELSE 'kind' || i %% 90 END,
    now() - (%(letters)s - i) * interval '1 minute', CASE WHEN i %% 10 > 0 THEN now() END, ''
    FROM generate_series(1, %(letters)s) i""",
    "ANALYZE",
]


@pytest.fixture
def many_rows() -> None:
    tidy(*LARGE)
    sizes = {"executions": EXECUTIONS, "manifests": MANIFESTS, "letters": LETTERS, "queue": QUEUE}
    with connection.cursor() as cursor:
        for sql in FILL:
            cursor.execute(sql, sizes)


# What is typed into the filters: common, rare and unknown.
TYPED = {
    "by_workflow": ("etl.w1", "etl.rare", "unknown"),
    "by_manifest": ("etl.w1", "etl.rare", "unknown"),
    "by_group": ("group 1", "group 99", "unknown"),
    "by_manifest__group": ("group 1", "unknown"),
    "by_owner": ("project", "rare", "unknown"),
    "by_failure_type": ("ValueError", "unknown"),
    "by_fingerprint": ("kind1", "rare", "none", "unknown"),
}
SEARCHED = ("job 000007", "job 0", "job", "unknown", "group 1")
STATUSES = {DeadLetter: ("all", "retried", "acknowledged"), WorkQueue: ("all", "dispatched", "cancelled")}


def lists(client: Client) -> Iterator[tuple[str, dict[str, str]]]:
    """Every list as it opens, narrowed by each choice of each filter, and searched; some of it for each status."""
    for model in (Metadata, Manifest, WorkQueue, DeadLetter, ManifestGroup):
        address = url_of(model, "changelist")
        yield address, {}
        if model is not ManifestGroup:
            yield address, {"p": "20"}
        narrowed = list(_choices(client, address)) + [{"q": text} for text in SEARCHED]
        yield from ((address, query) for query in narrowed)
        for status in STATUSES.get(model, ()):
            yield from ((address, {"status": status, **query}) for query in narrowed if "status" not in query)


def single_pages() -> Iterator[tuple[str, dict[str, str]]]:
    """The overview, the triage, and the newest and the oldest row of each table; graphs count all manifests."""
    yield reverse("admin:app_list", args=["chainsched"]), {}
    yield url_of(DeadLetter, "triage"), {}
    for model in (Metadata, Manifest, WorkQueue, DeadLetter):
        for pk in (model.objects.earliest("pk").pk, model.objects.latest("pk").pk):
            yield url_of(model, "change", pk), {}


def _choices(client: Client, address: str) -> Iterator[dict[str, str]]:
    changelist: Any = client.get(address).context["cl"]
    for spec in changelist.filter_specs:
        (name,) = spec.expected_parameters()[:1]
        if name in TYPED:
            yield from ({name: text} for text in TYPED[name])
        elif hasattr(spec, "lookup_choices") and not hasattr(spec, "lookup_kwarg"):
            yield from ({name: str(value)} for value, _ in spec.lookup_choices)
        else:
            yield from ({name: str(value)} for value, _ in spec.field.flatchoices or [(1, ""), (0, "")])


def plan_of(sql: str) -> dict[str, Any]:
    with connection.cursor() as cursor:
        cursor.execute(f"EXPLAIN (ANALYZE, FORMAT JSON) {sql}")
        plan: dict[str, Any] = cursor.fetchone()[0][0]["Plan"]
        return plan


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)


def touched(node: dict[str, Any]) -> int:
    """The rows that a step of a plan gave or looked at in vain."""
    discarded = sum(node.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Index Recheck", "Join Filter"))
    return round((node["Actual Rows"] + discarded) * node["Actual Loops"])


def faults(sql: str) -> list[str]:
    """What is wrong with how a statement is carried out."""
    found = []
    for node in nodes(plan_of(sql)):
        if node["Node Type"] == "Seq Scan" and node["Relation Name"] in LARGE:
            found.append(f"reads all of {node['Relation Name']}")
        if touched(node) > MAX_TOUCHED:
            found.append(f"{node['Node Type']} touches {touched(node)}")
    return found


def faults_of(client: Client, address: str, query: dict[str, str]) -> list[str]:
    """What is wrong with the statements of a page, each carried out as it was there."""
    with CaptureQueriesContext(connection) as captured:
        page = client.get(address, query)
    assert page.status_code == 200
    found, is_looking = [], False
    asked = [entry["sql"] for entry in captured if "SAVEPOINT" not in entry["sql"]]
    for sql in asked:
        if sql.startswith("SELECT set_config"):
            is_looking = not is_looking
        elif sql.startswith("SELECT") and "chainsched_" in sql:
            with index_reads() if is_looking else nullcontext():
                found += [f"{fault}: {sql}" for fault in faults(sql)]
    return found + ([f"{len(asked)} queries"] if len(asked) > MAX_QUERIES else [])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_page_reads_a_bounded_part_of_large_tables_by_an_index(many_rows: None) -> None:
    client = client_of("superuser")
    pages = [*lists(client), *single_pages()]
    assert len(pages) > 150
    assert DeadLetter.objects.awaiting().count() == AWAITING
    wrong = {f"{address}?{urlencode(query)}": faults_of(client, address, query) for address, query in pages}
    told = "\n".join("\n    ".join([url, *found]) for url, found in wrong.items() if found)
    assert not told, told
    _forget_open_work_in_statistics()
    assert not faults_of(client, url_of(Manifest, "changelist"), {"state": "idle"})


def _forget_open_work_in_statistics() -> None:
    """Analyze the executions without those that are open: a sample of a million rows may contain none of them."""
    with connection.cursor() as cursor:
        cursor.execute("CREATE TEMPORARY TABLE open_work AS SELECT * FROM chainsched_metadata WHERE ended_at IS NULL")
        cursor.execute("DELETE FROM chainsched_metadata WHERE ended_at IS NULL")
        cursor.execute("ANALYZE chainsched_metadata")
        cursor.execute("INSERT INTO chainsched_metadata SELECT * FROM open_work")


def test_a_graph_looks_at_each_manifest_some_times_even_where_memory_is_short() -> None:
    number, group = 3_000, make_group("etl")
    Manifest.objects.bulk_create(Manifest(external_id=f"job-{i}", workflow="etl.w", group=group) for i in range(number))
    root = make_manifest("the last one that a scan would find", group=group)
    below = {"schedule_type": "dependent", "run_condition": 1, "depth": 1, "depends_on": root}
    Manifest.objects.exclude(pk=root.pk).update(**below)
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL work_mem = '64kB'; SET LOCAL hash_mem_multiplier = 1; ANALYZE chainsched_manifest")
    client = client_of("superuser")
    for address in (url_of(ManifestGroup, "graph"), url_of(ManifestGroup, "members", group.pk)):
        with CaptureQueriesContext(connection) as captured:
            assert client.get(address).status_code == 200
        asked = [entry["sql"] for entry in captured if '"chainsched_manifest"' in entry["sql"]]
        with index_reads():
            assert max(touched(node) for sql in asked for node in nodes(plan_of(sql))) < 10 * number


def test_the_test_knows_a_plan_that_reads_everything() -> None:
    make_letter()
    assert faults("SELECT * FROM chainsched_deadletter WHERE reason = 'x'") == ["reads all of chainsched_deadletter"]
