"""The chart of the last runs, by tables, and on the page of a manifest."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client

from chainsched.admin import MetadataAdmin
from chainsched.admin.charts import timeline
from chainsched.admin.charts.timeline import PLOT_HEIGHT, Run, chart, round_step
from chainsched.db.clock import database_now
from chainsched.domain.states import ExecutionState, Source
from chainsched.models import Manifest, Metadata
from tests.admin.test_pages import MAX_QUERIES, queries
from tests.admin.world import url_of
from tests.factories import NOW, make_execution, make_manifest


def run(waited: float | None, ran: float | None, state: ExecutionState = ExecutionState.COMPLETED) -> Run:
    started = None if waited is None else NOW + timedelta(seconds=waited)
    ended = None if ran is None else (started or NOW) + timedelta(seconds=ran)
    return Run(1, state, NOW, started, ended)


@pytest.mark.parametrize(
    ("shown", "waited", "ran"),
    [
        pytest.param(run(5, 7), 5, 7, id="ended"),
        pytest.param(run(5, None, ExecutionState.IN_PROGRESS), 5, 55, id="still runs"),
        pytest.param(run(None, None, ExecutionState.PENDING), 60, 0, id="still waits"),
        pytest.param(run(None, 9, ExecutionState.CANCELLED), 9, 0, id="never began"),
        pytest.param(run(-3, 7), 0, 7, id="began before its time"),
    ],
)
def test_a_run_waits_then_runs(shown: Run, waited: float, ran: float) -> None:
    now = NOW + timedelta(seconds=60)
    assert (shown.waited(now).total_seconds(), shown.ran(now).total_seconds()) == (waited, ran)


@pytest.mark.parametrize(
    ("longest", "step"),
    [(0, 0.001), (0.004, 0.001), (4, 1), (7, 2), (61, 15), (3600, 900), (86_400, 21_600), (864_000, 172_800)],
)
def test_the_axis_has_few_and_round_steps(longest: float, step: float) -> None:
    assert round_step(longest) == step


def test_bars_are_stacked_to_scale() -> None:
    drawn = chart([run(25, 25), run(0, 100)], now=NOW, address_of=str)
    first, second = drawn.bars
    assert (first.wait_height, first.run_height, second.wait_height) == ("37.5", "37.5", "0.0")
    assert float(second.run_height) == PLOT_HEIGHT * 100 / 120
    assert float(first.run_top) + float(first.run_height) == float(first.wait_top)
    assert [tick.words for tick in drawn.ticks] == ["0 s", "30 s", "1 min", "1.5 min", "2 min"]


def test_without_runs_there_is_no_chart() -> None:
    drawn = chart([], now=NOW, address_of=str)
    assert (drawn.bars, drawn.table.rows, drawn.labels) == ([], [], [])


@pytest.mark.django_db
class TestOnThePage:
    @pytest.fixture
    def manifest(self) -> Manifest:
        return make_manifest("job")

    def bars(self, client: Client, manifest: Manifest) -> list[tuple[str, str]]:
        page = client.get(url_of(Manifest, "change", manifest.pk)).content.decode()
        return re.findall(r'<g class="chainsched-bar (\S+)"><title>(.*?)</title>', page)

    def test_a_bar_says_how_its_run_went_and_leads_to_it(self, viewer: Client, manifest: Manifest) -> None:
        times = {"started_at": NOW + timedelta(seconds=3), "ended_at": NOW + timedelta(seconds=8)}
        failed = make_execution(manifest, state=ExecutionState.FAILED, **times)
        assert self.bars(viewer, manifest) == [
            ("chainsched-run-failed", f"#{failed.pk} failed: waited 3.0 s, ran 5.0 s")
        ]
        page = viewer.get(url_of(Manifest, "change", manifest.pk)).content.decode()
        assert f'<a href="{url_of(Metadata, "change", failed.pk)}" aria-label="#{failed.pk} failed' in page
        assert ">✖</text>" in page
        assert "<td>3.0 s</td><td>5.0 s</td>" in page

    def test_a_retry_waits_from_its_own_dispatch(self, viewer: Client, manifest: Manifest) -> None:
        late = NOW + timedelta(hours=1)
        times = {"created_at": late, "started_at": late + timedelta(seconds=2), "ended_at": late + timedelta(seconds=3)}
        make_execution(manifest, state=ExecutionState.FAILED, attempt=2, source=Source.RETRY, **times)
        assert "waited 2.0 s" in self.bars(viewer, manifest)[0][1]

    def test_only_the_newest_are_read_in_the_same_number_of_queries(self, viewer: Client, manifest: Manifest) -> None:
        viewer.get(url_of(Manifest, "change", manifest.pk))  # fills Django's cache of content types
        few = queries(viewer, url_of(Manifest, "change", manifest.pk))
        runs = [make_execution(manifest, state=ExecutionState.COMPLETED, started_at=NOW) for _ in range(60)]
        shown = self.bars(viewer, manifest)
        assert len(shown) == timeline.MAX_RUNS
        assert shown[-1][1].startswith(f"#{runs[-1].pk} ")
        assert queries(viewer, url_of(Manifest, "change", manifest.pk)) == few <= MAX_QUERIES

    def test_what_a_project_hides_is_not_in_it(
        self, viewer: Client, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        make_execution(manifest, state=ExecutionState.COMPLETED)
        seen = MetadataAdmin.get_queryset
        monkeypatch.setattr(MetadataAdmin, "get_queryset", lambda page, request: seen(page, request).none())
        assert self.bars(viewer, manifest) == []

    def test_a_run_that_goes_on_grows(self, viewer: Client, manifest: Manifest) -> None:
        begun = database_now() - timedelta(minutes=5)
        make_execution(manifest, state=ExecutionState.IN_PROGRESS, scheduled_for=begun, started_at=begun)
        assert "ran 5 min" in self.bars(viewer, manifest)[0][1]
