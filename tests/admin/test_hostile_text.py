"""Text that comes from jobs, inputs and names is shown as text on every page, whatever it holds."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from django.db import models
from django.test import Client

from chainsched.admin.kit.page import PAYLOADS
from chainsched.domain.states import ExecutionState, QueueStatus, ScheduleType
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
from chainsched.models.manifest_state import ManifestState
from tests.admin.world import MODELS, every_page, list_of, url_of
from tests.factories import NOW, make_execution, store_input

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]

PROBES = {
    "tags and quotes": [
        "javascript:xss-probe",
        "<xss-probe onclick=alert(1)>x</xss-probe>",
        '"><xss-probe x="',
        "' onmouseover='xss-probe",
    ],
    "ends of elements": [
        "data:text/html,<xss-probe>",
        '" autofocus onfocus="xss-probe',
        "</script><script>xss-probe</script>",
        "</textarea></title></style><xss-probe>",
    ],
    "other syntax": [
        "--><xss-probe><!--",
        "]]><xss-probe>",
        "<svg><foreignObject><xss-probe></foreignObject></svg>",
    ],
    "what is decoded": [
        "&lt;xss-probe&gt;&#60;xss-probe&#62;",
        "{{ xss-probe }}{% include 'x' %}{{ request.user.password }}",
        "\u202exss-probe\u200b\u2066",
    ],
}
# Several in one text: the first that is taken for more than text is seen. An address counts at its beginning only.
each_text = pytest.mark.parametrize("text", [" ".join(probes) for probes in PROBES.values()], ids=list(PROBES))


class Inspector(HTMLParser):
    """Collects what of a page is alive: tags, and attributes with their values."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def inspect(page: str) -> Inspector:
    inspector = Inspector()
    inspector.feed(page)
    return inspector


def alive(page: str) -> list[str]:
    """What of the corpus the browser would take for more than text."""
    seen = inspect(page)
    found = sorted(seen.tags & {"xss-probe", "foreignobject"})
    found += [name for name, _ in seen.attributes if name.startswith("on")]
    # In a drawing, x is a number.
    found += [name for name, value in seen.attributes if name == "x" and not re.fullmatch(r"[\d.]+", value)]
    addressed = [value for name, value in seen.attributes if name in {"href", "src", "action", "formaction"}]
    return found + [value for value in addressed if value.lower().startswith(("javascript:", "data:"))]


def make_hostile(text: str) -> None:
    """One row of each model with the text in every column that holds text."""
    group = ManifestGroup.objects.create(**filled(ManifestGroup, text))
    cron = {"schedule_type": ScheduleType.CRON, "group": group}
    manifest = Manifest.objects.create(**filled(Manifest, text) | cron)
    child = {"schedule_type": ScheduleType.DEPENDENT, "run_condition": 1, "depends_on": manifest, "cron_expression": ""}
    other = ManifestGroup.objects.create(name=f"2{text}")
    dependent = Manifest.objects.create(**filled(Manifest, text) | child | {"group": other, "external_id": f"2{text}"})
    ManifestState.objects.create(manifest=dependent)
    ManifestState.objects.create(manifest=manifest, trigger_at=NOW, **filled(ManifestState, text))
    process = Process.objects.create(pid=1, started_at=NOW, heartbeat_at=NOW, **filled(Process, text))
    NamedLock.objects.create(**filled(NamedLock, text))
    refers = {"manifest": manifest, "group": group, "source": "schedule", "scheduled_for": NOW, "created_at": NOW}
    running = {"state": ExecutionState.IN_PROGRESS, "process": process, "cancel_requested": True, "started_at": NOW}
    run = Metadata.objects.create(**filled(Metadata, text) | refers | running)
    WorkQueue.objects.create(**filled(WorkQueue, text) | refers, priority=0, turn=1, status=QueueStatus.QUEUED)
    letter = {"manifest": manifest, "execution": run, "dead_lettered_at": NOW, **filled(DeadLetter, text)}
    decided = {"dead_letter": DeadLetter.objects.create(**letter), "outcome": "skipped", "decided_at": NOW}
    bulk_decision = BulkDecision.objects.create(verb="retry", total=1, created_at=NOW, **filled(BulkDecision, text))
    BulkDecisionItem.objects.create(bulk_decision=bulk_decision, **decided, **filled(BulkDecisionItem, text))
    began = {"head": manifest, "scheduled_for": NOW, "created_at": NOW, "cancelled_at": NOW}
    GraphRun.objects.create(**filled(GraphRun, text) | began)


def filled(model: type[models.Model], text: str) -> dict[str, Any]:
    """The text for every column that takes any text or document."""
    values: dict[str, Any] = {}
    for field in model._meta.concrete_fields:
        if isinstance(field, models.JSONField):
            values[field.name] = {text: [text, {"a": text}]}
        elif isinstance(field, models.CharField | models.TextField) and not field.choices:
            values[field.name] = text[: field.max_length]
    return values


def asked(client: Client) -> Iterator[str]:
    """The pages that ask before something is done."""
    for model in (Manifest, ManifestGroup, Metadata, WorkQueue, DeadLetter, BulkDecision):
        row = model.objects.earliest("pk")
        for action in ("trigger", "cancel", "retry", "activate", "set_limits", "run_again"):
            response = client.post(list_of(model), {"_selected_action": row.pk, "action": action, "index": 0})
            yield response.content.decode()
            form = {"_selected_action": row.pk, "CHANGE_FORM-action": action}
            yield client.post(url_of(model, "change", row.pk), form).content.decode()


@each_text
def test_it_is_inert_on_every_page(superuser: Client, text: str) -> None:
    make_hostile(text)
    pages = {url: superuser.get(url) for url in every_page()}
    assert {url for url, page in pages.items() if page.status_code != 200} == set()
    found = {url: alive(page.content.decode()) for url, page in pages.items()}
    assert {url: seen for url, seen in found.items() if seen} == {}
    assert [seen for page in asked(superuser) if (seen := alive(page))] == []


def test_it_is_shown_all_the_same(superuser: Client) -> None:
    text = "<xss-probe onclick=alert(1)>x</xss-probe>"
    make_hostile(text)
    for model in MODELS:
        page = inspect(superuser.get(url_of(model, "change", model.objects.earliest("pk").pk)).content.decode())
        assert text in "".join(page.text), model


@each_text
def test_it_is_inert_in_what_is_typed_into_the_address(superuser: Client, text: str) -> None:
    names = (
        "q",
        "by_group",
        "by_workflow",
        "by_owner",
        "by_fingerprint",
        "by_bulk_decision",
        "outcome",
        "state",
        "status",
        "o",
    )
    for model in MODELS:
        known = [name for name in names if name in "qo" or f"{name}=" in _filters_of(superuser, model)]
        for query in (dict.fromkeys(known, text), {"p": text}, {"e": text}, {"unknown": text}):
            page = superuser.get(url_of(model, "changelist"), query, follow=True)
            assert alive(page.content.decode()) == [], (model, query)


def _filters_of(client: Client, model: Any) -> str:
    specs = client.get(url_of(model, "changelist")).context["cl"].filter_specs
    return "".join(f"{name}=" for spec in specs for name in spec.expected_parameters())


def test_a_text_of_a_megabyte_does_not_make_a_page_of_a_megabyte(superuser: Client) -> None:
    long = "x" * 1_000_000
    columns = dict.fromkeys(("failure_type",), "E") | {"failure_reason": long, "failure_traceback": long}
    run = make_execution(input=[long], output=[long], progress=[long], **columns)
    page = superuser.get(url_of(Metadata, "change", run.pk))
    assert len(page.content) < 600_000
    assert PAYLOADS


def test_an_input_that_cannot_be_read_is_said_to_be_so(superuser: Client) -> None:
    run = make_execution()
    store_input(run, "[1" + "0" * 5_000 + "]")
    assert superuser.get(list_of(Metadata)).status_code == 200
    page = superuser.get(url_of(Metadata, "change", run.pk))
    assert "The stored input cannot be read" in page.content.decode()
