"""Addresses with ids that are no numbers, or too large: every page and action answers without an error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

from chainsched.admin.kit.operations import PAGE_ACTION
from chainsched.models import DeadLetter, Manifest, ManifestGroup, WorkQueue
from chainsched.operations import OPERATIONS, TARGETS, Operation
from tests.admin.world import MODELS, url_of

pytestmark = pytest.mark.django_db

ODD = {
    "0": "0",
    "negative": "-1",
    "larger than a column": str(2**63),
    "larger than Python reads": "9" * 5000,
    "text": "abc",
    "a fraction": "1.5",
    "digits of another script": "\u0663",
    "quoted NUL": "_00",
    "NUL": "a\x00b",
    "half of a pair": "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    "a quote": "1'--",
    "not a number": "nan",
    "dots": "..",
}
# Those that failed once; the others are asked by .ci/run.
CHOSEN = ("larger than a column", "larger than Python reads", "NUL")
each_odd = pytest.mark.parametrize(
    "odd",
    [pytest.param(odd, id=name, marks=() if name in CHOSEN else pytest.mark.slow) for name, odd in ODD.items()],
)
each_operation = pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: f"{each.target}-{each.name}")
# Parameters of lists that name a row or a value.
LISTS = ("q", "p", "o", "e", "all", "status", "state", "due", "group", "workflow", "by_bulk_decision", "outcome")


def addresses(odd: str) -> Iterator[str]:
    named = quote(odd, safe="")
    for model in MODELS:
        base = url_of(model, "changelist")
        for view in ("change/", "history/", "delete/", ""):
            yield f"{base}{named}/{view}"
        for parameter in (
            *LISTS,
            "id",
            "id__exact",
            "id__in",
            "pk",
            "manifest",
            "group__id__exact",
            "manifest__id__exact",
        ):
            yield f"{base}?{parameter}={named}"
    graph = url_of(ManifestGroup, "graph")
    yield f"{url_of(ManifestGroup, 'changelist')}{named}/members/"
    for parameter in ("group", "q", "p", "format", "size", "focus"):
        yield f"{graph}?{parameter}={named}"
        yield f"{url_of(DeadLetter, 'triage')}?{parameter}={named}"
        yield f"{reverse('admin:app_list', args=['chainsched'])}?{parameter}={named}"


@each_odd
def test_no_page_fails(superuser: Client, world: Manifest, odd: str) -> None:
    superuser.raise_request_exception = False
    found = {address: superuser.get(address).status_code for address in addresses(odd)}
    assert {address: code for address, code in found.items() if code >= 500} == {}


@each_operation
def test_no_action_fails(superuser: Client, world: Manifest, operation: Operation) -> None:
    superuser.raise_request_exception = False
    base = url_of(TARGETS[operation.target].model, "changelist")
    answer = {"confirmed": "yes", "reason": "why", "count": "1", "index": "0"}
    failed: list[Any] = []
    for odd in (ODD[name] for name in CHOSEN):
        chosen: dict[str, Any] = {"_selected_action": odd}
        posts: list[tuple[str, dict[str, Any]]] = [
            (base, {"action": operation.name, **chosen}),
            (base, {"action": operation.name, **chosen, **answer}),
            (base, {"action": operation.name, "select_across": "1", "newest": odd, **chosen, **answer, "count": "7"}),
            (base, {"action": odd, **chosen}),
            (f"{base}{quote(odd, safe='')}/change/", {PAGE_ACTION: operation.name, **chosen, **answer}),
            (base, {"action": operation.name, "_selected_action": [odd, "1"], **answer, "count": odd}),
        ]
        failed += [(url, data) for url, data in posts if superuser.post(url, data).status_code >= 500]
    assert failed == []
    assert not LogEntry.objects.exists()
    assert WorkQueue.objects.filter(cancel_reason="why").count() == 0
