"""A job that fails with a secret in its exception leaves it in no row, page, log line or output of a command."""

from __future__ import annotations

import io
import json
import logging
from dataclasses import dataclass
from typing import Any

import pytest
from django.apps import apps
from django.core.management import call_command
from django.db import connection, transaction

from chainsched import GiveUp, RunContext, workflow
from chainsched.models import DeadLetter, Manifest, Metadata
from tests.admin.test_pages import text_of
from tests.admin.world import client_of, list_of, url_of
from tests.domain.test_redaction_corpus import PARTS, RAISED, WRITTEN
from tests.drive import new_bench

pytestmark = pytest.mark.django_db


@dataclass(frozen=True)
class Failure:
    """The entry of the corpus to fail with."""

    entry: str


@workflow(name="tests.fail_as_libraries_do")
def fail_as_libraries_do(job: Failure, run: RunContext) -> None:
    if job.entry in RAISED:
        try:
            RAISED[job.entry][0]()
        except Exception as error:
            run.progress(1, 2, str(error)[:200])
            raise GiveUp(f"db1 gave up: {error}") from error
    raise GiveUp(WRITTEN[job.entry][0])


def dump() -> str:
    """Every value of every table of ours."""
    found: list[str] = []
    with connection.cursor() as cursor:
        for model in apps.get_app_config("chainsched").get_models():
            cursor.execute(f"SELECT * FROM {model._meta.db_table}")  # noqa: S608 - our own tables
            found += [str(row) for row in cursor.fetchall()]
    return "\n".join(found)


def printed(*arguments: str) -> str:
    out = io.StringIO()
    try:
        call_command("chainsched", *arguments, stdout=out, stderr=out)
    except SystemExit as ended:
        out.write(str(ended))
    return out.getvalue()


@pytest.fixture
def fail(caplog: pytest.LogCaptureFixture) -> Any:
    """Let a manifest for each of these entries fail, each to the dead letter."""

    def fail_with(entries: Any) -> None:
        caplog.set_level(logging.DEBUG)
        bench = new_bench()
        for entry in entries:
            Manifest.objects.schedule(fail_as_libraries_do, entry, Failure(entry), None).trigger()
        bench.drain()
        assert DeadLetter.objects.count() == len(entries)

    return fail_with


@workflow(name="tests.violate")
def violate(job: Failure) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("CREATE TEMP TABLE orders (id int NOT NULL, api_token text UNIQUE)")
        cursor.execute("INSERT INTO orders VALUES (1, %s)", ["-".join(PARTS)])
        cursor.execute(job.entry, {"secret": "-".join(PARTS)})


def found_in(text: str) -> list[str]:
    return [part for part in PARTS if part in text]


def test_no_row_and_no_line_of_a_log_or_command_holds_a_secret(fail: Any, caplog: pytest.LogCaptureFixture) -> None:
    fail([*RAISED, *WRITTEN])
    rows = dump()
    assert "db1" in rows
    assert found_in(rows) == found_in(caplog.text) == []
    for arguments in (("status",), ("fsck",), ("health",), *(("explain", entry) for entry in WRITTEN)):
        assert found_in(printed(*arguments)) == [], arguments


def test_no_page_shows_a_secret_to_those_who_may_see_payloads(fail: Any) -> None:
    entries = [*RAISED, *list(WRITTEN)[::3]]
    fail(entries)
    client = client_of("manager")
    urls = [list_of(model) for model in (Metadata, DeadLetter, Manifest)] + [url_of(DeadLetter, "triage")]
    urls += [url_of(Metadata, "change", pk) for pk in Metadata.objects.values_list("pk", flat=True)]
    urls += [url_of(DeadLetter, "change", pk) for pk in DeadLetter.objects.values_list("pk", flat=True)]
    shown = {url: text_of(client, url) for url in urls}
    assert any("db1" in text for text in shown.values())
    assert {url: found_in(text) for url, text in shown.items() if found_in(text)} == {}


@pytest.mark.parametrize("role", ["viewer", "operator"])
def test_others_see_type_and_fingerprint_and_nothing_of_the_reason(fail: Any, role: str) -> None:
    fail(["psycopg: unique"])
    client = client_of(role)
    (letter,), (execution,) = DeadLetter.objects.all(), Metadata.objects.all()
    pages = [url_of(DeadLetter, "change", letter.pk), url_of(Metadata, "change", execution.pk)]
    for url in pages:
        assert "GiveUp" in text_of(client, url)
        assert letter.fingerprint in text_of(client, url)
    for url in [*pages, list_of(DeadLetter), list_of(Metadata), url_of(DeadLetter, "triage")]:
        assert "orders_token" not in text_of(client, url)


def test_the_rest_of_a_reason_stays(fail: Any) -> None:
    fail([*RAISED, *WRITTEN])
    reasons = dict(Metadata.objects.values_list("manifest_external_id", "failure_reason"))
    missing = {
        entry: [part for part in telling if part not in reasons[entry]] for entry, (_, telling) in WRITTEN.items()
    }
    assert {entry: parts for entry, parts in missing.items() if parts} == {}
    assert "[redacted]" in json.dumps(reasons)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="needs PostgreSQL")
@pytest.mark.parametrize(
    ("statement", "telling"),
    [
        ("INSERT INTO orders VALUES (2, %(secret)s)", ("duplicate key", "(api_token)", "already exists")),
        ("INSERT INTO orders VALUES (NULL, 'x' || %(secret)s)", ("null value in column", "orders")),
        ("INSERT INTO orders (id, api_token) VALUES (3, 'x' 'canary-k3str3l', 4)", ("syntax error", "orders")),
        ("SELECT * FROM orders WHERE api_token = 'canary-k3str3l' AND missing = 1", ("missing", "does not exist")),
        ("ALTER ROLE postgres PASSWORDS 'canary-k3str3l'", ("ALTER ROLE",)),
    ],
)
def test_what_postgresql_says_of_a_statement_is_redacted(statement: str, telling: tuple[str, ...]) -> None:
    bench = new_bench()
    Manifest.objects.schedule(violate, "violating", Failure(statement), None).trigger()
    bench.drain()
    execution = Metadata.objects.latest("id")
    stored = execution.failure_reason + execution.failure_traceback
    assert found_in(stored) == []
    assert [part for part in telling if part not in execution.failure_reason] == []
