"""The pages of runs of the graph: how a run and its joins stand, for whom, and at what cost."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client

from chainsched.admin import ManifestAdmin, MetadataAdmin
from chainsched.admin.pages import runs
from chainsched.domain.states import ExecutionState
from chainsched.models import Dependency, GraphRun, JoinState, Manifest, Metadata, TakenOver, join_reports
from chainsched.testing import Workbench
from tests.admin.test_pages import MAX_QUERIES, found, queries, text_of
from tests.admin.world import client_of, list_of, url_of
from tests.drive import executions_of, manifest, new_bench
from tests.factories import NOW, make_execution, make_group, make_manifest
from tests.scenarios.graphs import FAILED, GIVEN_UP, end, end_all, make_diamond, next_run, start

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]


@pytest.fixture
def bench(db: None) -> Iterator[Workbench]:
    with new_bench() as bench:
        yield bench


@pytest.fixture
def run(bench: Workbench) -> GraphRun:
    """A run of a diamond: its head and one of three members have ended, two are running, the join waits."""
    make_diamond()
    next_run(bench)
    end(bench, "a")
    start(bench)
    return GraphRun.objects.get()


def page_of(run: GraphRun) -> str:
    return url_of(GraphRun, "change", run.pk)


def section(client: Client, run: GraphRun, title: str) -> str:
    """The text of one section of the page of a run."""
    page = client.get(page_of(run)).content.decode()
    sections = re.findall(r"<section.*?</section>", page, re.DOTALL)
    (wanted,) = [text for text in sections if f">{title}</h2>" in text]
    return " ".join(re.sub(r"<[^>]+>", " ", wanted).split())


def hide(monkeypatch: pytest.MonkeyPatch, page: Any, **columns: Any) -> None:
    """Let a project hide these rows of a page from its users."""
    seen = page.get_queryset
    monkeypatch.setattr(page, "get_queryset", lambda page, request: seen(page, request).exclude(**columns))


class TestTheList:
    def test_it_says_what_began_a_run_and_how_it_stands(self, viewer: Client, run: GraphRun) -> None:
        page = text_of(viewer, list_of(GraphRun))
        assert f"#{run.pk} head 2026-03-02 10:00:00 open" in page
        assert url_of(Manifest, "change", run.head_id) in viewer.get(list_of(GraphRun)).content.decode()

    @pytest.mark.parametrize(("state", "number"), [("open", 1), ("closed", 2), ("cancelled", 3), ("other", 6)])
    def test_it_is_narrowed_by_state(self, superuser: Client, state: str, number: int) -> None:
        began = {"head_external_id": "head", "scheduled_for": NOW, "created_at": NOW}
        for columns in (
            {},
            *[{"closed_at": NOW}] * 2,
            *[{"closed_at": NOW, "cancelled_at": NOW}] * 2,
            {"cancelled_at": NOW},
        ):
            GraphRun.objects.create(**began, **columns)
        assert found(superuser, GraphRun, state=state) == number

    def test_runs_are_found_by_the_beginning_of_the_heads_name(self, superuser: Client, run: GraphRun) -> None:
        assert found(superuser, GraphRun, q="hea") == 1
        assert found(superuser, GraphRun, q="ead") == 0


class TestWhatARunSays:
    def test_its_executions_are_counted_by_state_and_workflow(self, viewer: Client, run: GraphRun) -> None:
        assert "completed testapp.ping 2 in progress testapp.ping 2" in section(viewer, run, "Executions")

    def test_it_leads_to_its_head_and_its_executions(self, viewer: Client, run: GraphRun) -> None:
        make_execution()
        page = viewer.get(page_of(run)).content.decode()
        assert url_of(Manifest, "change", run.head_id) in page
        (address,) = re.findall(r'<a href="([^"]+)">4 in all</a>', page)
        assert viewer.get(address).context["cl"].result_count == 4

    def test_open_work_is_named(self, viewer: Client, run: GraphRun) -> None:
        assert "b in progress c in progress" in section(viewer, run, "Open work")

    def test_what_is_queued_or_due_is_open_work(self, viewer: Client, bench: Workbench) -> None:
        make_diamond()
        next_run(bench)
        bench.manage()
        text = section(viewer, GraphRun.objects.get(), "Open work")
        assert "a queued b queued c queued" in text

    def test_more_open_work_than_is_shown_is_said(
        self, viewer: Client, run: GraphRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(runs, "MAX_OPEN", 1)
        text = section(viewer, run, "Open work")
        assert "These are the first 1." in text
        assert "c in progress" not in text

    def test_a_join_says_what_it_needs_and_who_is_missing(self, viewer: Client, run: GraphRun) -> None:
        text = section(viewer, run, "Joins")
        assert "join waiting 1 of 3 arrived, needs 3 2" in text
        assert "b (running) c (running)" in text
        assert url_of(Manifest, "change", manifest("join").pk) in viewer.get(page_of(run)).content.decode()

    @pytest.mark.parametrize(
        ("prepare", "reason"),
        [
            pytest.param(lambda bench: end(bench, "b", outcome=FAILED), "b (waits for attempt 2)", id="retried"),
            pytest.param(
                lambda bench: end(bench, "b", outcome=GIVEN_UP), "its dead letter awaits a decision)", id="letter"
            ),
            pytest.param(lambda bench: executions_of("b")[0].cancel(), "b (running)", id="asked to stop"),
        ],
    )
    def test_the_reason_is_the_last_thing_that_happened(
        self, viewer: Client, bench: Workbench, run: GraphRun, prepare: Any, reason: str
    ) -> None:
        prepare(bench)
        bench.manage()
        assert reason in section(viewer, run, "Joins")

    def test_one_that_is_disabled_has_no_part(self, viewer: Client, bench: Workbench) -> None:
        make_diamond()
        manifest("b").disable()
        next_run(bench)
        end(bench, "a", "c")
        bench.manage()
        text = section(viewer, GraphRun.objects.get(), "Joins")
        assert "join short 2 of 3 arrived, needs 3 0" in text
        assert "b (disabled)" in text

    def test_at_a_join_that_ran_none_is_missing(self, viewer: Client, bench: Workbench, run: GraphRun) -> None:
        end_all(bench)
        bench.manage()
        text = section(viewer, run, "Joins")
        assert "join fired 3 of 3 arrived, needs 3 0 - -" in text
        assert "Nothing is open" in section(viewer, run, "Open work")

    def test_a_deadline_is_shown(self, viewer: Client, bench: Workbench) -> None:
        make_diamond(deadline=timedelta(minutes=10))
        next_run(bench)
        assert "11:10:00" in section(viewer, GraphRun.objects.get(), "Joins")

    def test_a_fan_in_whose_gate_did_not_match_says_so(self, viewer: Client, bench: Workbench) -> None:
        make_diamond(depends_on="head", fan_in=True)
        bench.advance(hours=1)
        end(bench, "head", outcome=GIVEN_UP)
        bench.manage()
        text = section(viewer, GraphRun.objects.get(), "Joins")
        assert "join short 0 of 3 arrived, needs 0" in text
        assert "its parent, by whose outcome alone it runs" in text

    def test_a_join_that_is_gone_is_named_by_nothing(self, viewer: Client, run: GraphRun) -> None:
        JoinState.objects.create(run=run, join_id=987_654)
        assert "a manifest that you may not see waiting 0 of 0 arrived" in section(viewer, run, "Joins")

    def test_one_that_was_cancelled_says_why_without_secrets(self, viewer: Client, run: GraphRun) -> None:
        run.cancel(reason="asked by password=swordfish")
        page = text_of(viewer, page_of(run))
        assert "asked by password=" in page
        assert "swordfish" not in page

    def test_the_head_of_a_run_may_be_gone(self, viewer: Client) -> None:
        columns = {"head_id": 987_654, "head_external_id": "gone", "scheduled_for": NOW, "created_at": NOW}
        run = GraphRun.objects.create(**columns)
        assert "Head gone" in text_of(viewer, page_of(run))
        make_manifest("gone")
        assert "/manifest/" not in section_html(viewer, run)


def section_html(client: Client, run: GraphRun) -> str:
    """The first section of the page of a run."""
    return client.get(page_of(run)).content.decode().partition("<section")[2].partition("</section>")[0]


class TestWhatAProjectHides:
    def test_a_manifest_is_named_neither_as_open_nor_as_missing(
        self, superuser: Client, run: GraphRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hide(monkeypatch, ManifestAdmin, external_id="b")
        assert "a manifest that you may not see in progress c in progress" in section(superuser, run, "Open work")
        text = section(superuser, run, "Joins")
        assert "b (running)" not in text
        assert "c (running) 1 more" in text

    def test_executions_are_not_counted_and_the_run_cannot_be_cancelled(
        self, superuser: Client, run: GraphRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hide(monkeypatch, MetadataAdmin, manifest_external_id="b")
        assert "in progress testapp.ping 1" in section(superuser, run, "Executions")
        cancel(superuser, run)
        run.refresh_from_db()
        assert run.cancelled_at is None


def cancel(client: Client, run: GraphRun) -> None:
    form = {"_selected_action": run.pk, "count": "1", "confirmed": "yes", "reason": "not needed"}
    client.post(page_of(run), form | {"CHANGE_FORM-action": "cancel"})


class TestCancelling:
    def test_an_operator_cancels_a_run_from_its_page(self, operator: Client, run: GraphRun) -> None:
        assert "Cancel" in text_of(operator, page_of(run))
        cancel(operator, run)
        run.refresh_from_db()
        assert (run.state, run.cancel_reason) == ("cancelled", "not needed")
        assert "not needed" in LogEntry.objects.get().change_message

    def test_a_viewer_does_not(self, viewer: Client, run: GraphRun) -> None:
        cancel(viewer, run)
        run.refresh_from_db()
        assert run.state == "open"

    def test_one_that_is_over_offers_no_button(self, operator: Client, bench: Workbench, run: GraphRun) -> None:
        assert 'value="cancel"' in operator.get(page_of(run)).content.decode()
        end_all(bench)
        bench.manage()
        assert 'value="cancel"' not in operator.get(page_of(run)).content.decode()


class TestExecutions:
    def test_an_execution_leads_to_its_run(self, viewer: Client, run: GraphRun) -> None:
        (execution,) = executions_of("a")
        page = viewer.get(url_of(Metadata, "change", execution.pk)).content.decode()
        assert page_of(run) in page
        assert "further run" not in page

    def test_one_that_stands_for_several_runs_says_so_and_is_listed_in_each(
        self, viewer: Client, run: GraphRun
    ) -> None:
        (execution,) = executions_of("a")
        other = GraphRun.objects.create(scheduled_for=NOW, created_at=NOW)
        TakenOver.objects.create(run_id=other.pk, execution_id=execution.pk)
        page = text_of(viewer, url_of(Metadata, "change", execution.pk))
        assert "Stands for 1 further run " in page
        assert found(viewer, Metadata, by_run=str(other.pk)) == 1
        assert "completed testapp.ping 1" in section(viewer, other, "Executions")

    def test_one_without_a_run_names_none(self, viewer: Client) -> None:
        execution = make_execution(make_manifest("alone"), state=ExecutionState.COMPLETED)
        assert "The passage through the graph" not in text_of(viewer, url_of(Metadata, "change", execution.pk))

    def test_one_that_has_ended_can_be_run_again_from_here(self, operator: Client, run: GraphRun) -> None:
        (ended,), (running,) = executions_of("a"), executions_of("b")
        button = "Run again from here"
        assert button in text_of(operator, url_of(Metadata, "change", ended.pk))
        assert button not in text_of(operator, url_of(Metadata, "change", running.pk))

    @pytest.mark.parametrize("typed", ["x", "9" * 40, "-1", "٣"])
    def test_what_is_no_number_of_a_run_finds_nothing(self, viewer: Client, run: GraphRun, typed: str) -> None:
        assert found(viewer, Metadata, by_run=typed) == 0


class TestCost:
    @pytest.mark.parametrize("role", ["superuser", "manager"])
    def test_a_run_of_many_joins_and_members_takes_few_queries(self, run: GraphRun, role: str) -> None:
        client = client_of(role)
        few = queries(client, page_of(run))
        group = make_group("many")
        shape = {"workflow": "testapp.ping", "schedule_type": "dependent", "run_condition": 1, "group": group}
        joins = Manifest.objects.bulk_create(
            Manifest(external_id=f"join-{at:03}", is_join=True, **shape) for at in range(150)
        )
        members = Manifest.objects.bulk_create(Manifest(external_id=f"member-{at:03}", **shape) for at in range(300))
        Dependency.objects.bulk_create(
            Dependency(child=join, parent=member, condition=1) for join in joins[:20] for member in members
        )
        JoinState.objects.bulk_create(JoinState(run=run, join_id=join.pk, open=1) for join in joins)
        for member in members[:100]:
            make_execution(member, run=run, state=ExecutionState.COMPLETED)
        assert queries(client, page_of(run)) <= max(few, MAX_QUERIES)
        text = section(client, run, "Joins")
        assert "151 in all; these are the first." in text
        assert "member-109 (not reached) 190 more" in text
        assert text.count("not reached") == 90

    def test_a_list_of_more_runs_takes_no_more(self, superuser: Client, run: GraphRun) -> None:
        few = queries(superuser, list_of(GraphRun))
        for _ in range(10):
            GraphRun.objects.create(head=make_manifest(), scheduled_for=NOW, created_at=NOW)
        assert queries(superuser, list_of(GraphRun)) == few

    def test_of_too_many_members_it_is_only_said_how_many_are_missing(
        self, viewer: Client, run: GraphRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(join_reports, "MAX_MEMBERS", 2)
        text = section(viewer, run, "Joins")
        assert "2 in all" in text
        assert "running" not in text

    def test_more_joins_than_are_read_are_said(
        self, viewer: Client, run: GraphRun, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(join_reports, "MAX_JOINS", 1)
        JoinState.objects.create(run=run, join_id=987_654, outcome="fired")
        assert "2 in all; these are the first." in section(viewer, run, "Joins")
