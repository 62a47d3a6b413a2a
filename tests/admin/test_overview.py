"""The app's index: what is wrong stands on top, every figure is bounded, and nobody sees more than elsewhere."""

import re
from datetime import timedelta
from types import ModuleType

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse

from chainsched.admin import DeadLetterAdmin
from chainsched.admin.pages.overview import REFRESH_SECONDS
from chainsched.db.clock import database_now, stop_clock
from chainsched.domain.states import ExecutionState
from chainsched.domain.statistics import Share, hour_of
from chainsched.models import DeadLetter, HourlyStatistic, Manifest, ManifestGroup, Metadata, Process, WorkQueue
from chainsched.models.hourly_statistic import HourlyStatisticQuerySet
from tests.admin.world import client_of
from tests.factories import NOW, make_execution, make_group, make_letter, make_manifest, make_process, make_queue_row

pytestmark = pytest.mark.django_db

MAX_QUERIES = 15


def overview(client: Client) -> str:
    """The page as text, with single spaces and without tags."""
    response = client.get(reverse("admin:app_list", args=["chainsched"]))
    assert response.status_code == 200
    return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())


def ended(state=ExecutionState.COMPLETED, *, number=1, workflow="etl.extract", hours_ago=0, seconds=1.0, group=0):
    hour = hour_of(database_now() - timedelta(hours=hours_ago))
    HourlyStatistic.objects.append([Share(hour, group, workflow, state, number, seconds * number, seconds, 17)])


@pytest.fixture(autouse=True)
def _at_now():
    """Let no second, hour or day end between what is written and what is shown of it."""
    stop_clock(NOW)
    yield
    stop_clock(None)


@pytest.fixture
def viewer() -> Client:
    return client_of("viewer")


@pytest.fixture
def alive() -> Process:
    """A process whose loops turn."""
    now = database_now()
    turns = dict.fromkeys(("manager", "dispatcher", "reaper"), now.isoformat())
    return make_process(heartbeat_at=now, turns=turns, workflows=["testapp.ping"])


def test_all_is_well(viewer, alive):
    page = overview(viewer)
    assert "Needs attention" not in page
    assert "No row has waited for more than a minute." in page
    assert "1 processes alive" in page


def test_a_loop_that_does_not_turn_is_on_top(viewer):
    banner = overview(viewer).partition("Needs attention")[2]
    for loop in ("manager", "dispatcher", "reaper"):
        assert f"No process runs the {loop}; start run_scheduler." in banner


def test_dead_letters_that_stop_schedules_are_on_top_and_lead_to_their_list(viewer, alive):
    for _ in range(3):
        make_letter(make_manifest(state={}))
    response = viewer.get(reverse("admin:app_list", args=["chainsched"]))
    assert "3 dead letters await a decision" in response.content.decode()
    assert (
        reverse("admin:chainsched_deadletter_changelist") + "?status=awaiting_intervention" in response.content.decode()
    )


def test_figures_of_today_come_from_the_roll_up_and_from_no_execution(viewer, alive):
    ended(number=1_234)
    ended(ExecutionState.FAILED, number=66)
    with CaptureQueriesContext(connection) as captured:
        page = overview(viewer)
    assert "1,300 executions today" in page
    assert "94.9% succeeded today" in page
    scanning = [query["sql"] for query in captured if "chainsched_metadata" in query["sql"]]
    assert all("in_progress" in sql or "pending" in sql for sql in scanning), scanning


@pytest.mark.parametrize(("done", "told"), [(57, "57.0%"), (0, "0.0%"), (100, "100.0%"), (99.999, "99.9%")])
def test_what_is_said_to_have_succeeded_has(viewer, alive, done, told):
    ended(number=int(done * 1000))
    ended(ExecutionState.FAILED, number=int((100 - done) * 1000 + 0.5))
    assert f" {told} succeeded today" in overview(viewer)


def test_the_chart_has_a_column_an_hour_and_says_the_same_in_a_table(viewer, alive):
    ended(number=5, hours_ago=3)
    ended(ExecutionState.FAILED, number=2, hours_ago=3)
    html = viewer.get(reverse("admin:app_list", args=["chainsched"])).content.decode()
    assert html.count("<title>") == 1 + 24
    assert re.search(r"<title>\d\d:00: 5 completed, 2 failed</title>", html)
    assert html.count('class="chainsched-bar-') == 2
    assert re.search(r"<td>5</td><td>0</td><td>2</td>", html)


def test_what_ended_a_day_ago_is_not_in_it(viewer, alive):
    ended(number=5, hours_ago=25)
    assert "5 completed" not in overview(viewer)


def test_the_worst_are_named(viewer, alive):
    ended(ExecutionState.FAILED, number=9, workflow="etl.broken")
    ended(workflow="etl.slow", seconds=7200)
    make_manifest("always-failing", state={"consecutive_failures": 4})
    page = overview(viewer)
    assert "Workflow Failed etl.broken 9" in page
    assert "etl.slow 2 h 0 min 2 h 0 min #17" in page
    assert "always-failing 4 never" in page


def test_of_a_long_queue_only_the_head_is_spoken_for(viewer, alive, monkeypatch):
    monkeypatch.setattr("chainsched.admin.pages.overview.HEAD_ROWS", 1)
    make_queue_row(make_manifest("fresh", state={}), created_at=database_now(), priority=9)
    make_queue_row(make_manifest("starved", state={}), created_at=database_now() - timedelta(hours=1))
    assert "None of the first 200 rows has waited for more than a minute." in overview(viewer)


def test_what_is_stuck_says_why(viewer, alive):
    long_ago = database_now() - timedelta(minutes=10)
    full = make_group("full", max_active_jobs=1)
    make_execution(make_manifest(group=full, state={}), state=ExecutionState.IN_PROGRESS, started_at=long_ago)
    make_queue_row(make_manifest("patient", group=full, state={}), created_at=long_ago)
    make_queue_row(make_manifest("unknown", workflow="nobody.knows", state={}), created_at=long_ago)
    make_queue_row(make_manifest("fresh", state={}), created_at=database_now())
    page = overview(viewer)
    assert "patient 10 min 0 s 1 jobs of group &#x27;full&#x27; are active; it allows 1" in page
    assert "no live process can run &#x27;nobody.knows&#x27;" in page
    assert "fresh" not in page
    assert "2 of the first 200 rows have waited for more than a minute." in page


def test_what_no_worker_takes_is_told(viewer, alive):
    assert "Dispatched, but taken by no worker" not in overview(viewer)
    long_ago = database_now() - timedelta(minutes=10)
    make_execution(make_manifest("abandoned", workflow="nobody.knows"), created_at=long_ago)
    make_execution(make_manifest("crowded"), created_at=long_ago)
    make_execution(make_manifest("fresh"), created_at=database_now())
    make_execution(make_manifest("begun"), created_at=long_ago, state=ExecutionState.IN_PROGRESS)
    page = overview(viewer)
    assert "abandoned 10 min 0 s no live process can run &#x27;nobody.knows&#x27;; start a worker that knows it" in page
    assert "crowded 10 min 0 s the task server has not claimed it; it is submitted again every minute" in page
    assert "2 of the first 200 have waited for more than a minute." in page
    assert "fresh" not in page
    assert "begun" not in page


def test_a_retry_that_waits_for_its_time_is_not_stuck(viewer, alive):
    now = database_now()
    make_queue_row(make_manifest(state={}), created_at=now - timedelta(hours=1), not_before=now + timedelta(hours=1))
    assert "No row has waited for more than a minute." in overview(viewer)


@pytest.mark.parametrize("role", ["viewer", "operator", "superuser"])
def test_it_takes_few_queries_however_much_there_is(role, alive):
    client = client_of(role)
    long_ago = database_now() - timedelta(minutes=10)
    for number in range(30):
        manifest = make_manifest(workflow=f"etl.w{number}", state={"consecutive_failures": number})
        make_letter(manifest)
        make_queue_row(manifest, created_at=long_ago)
        make_execution(manifest, state=ExecutionState.IN_PROGRESS, started_at=long_ago)
        make_execution(make_manifest(), created_at=long_ago)
        ended(workflow=f"etl.w{number}")
        make_process(heartbeat_at=database_now())
    with CaptureQueriesContext(connection) as captured:
        overview(client)
    assert len(captured) <= MAX_QUERIES, [query["sql"][:120] for query in captured]


def test_who_may_see_nothing_behind_a_figure_does_not_see_the_figure(alive):
    user = User.objects.create_user("narrow", is_staff=True)
    user.user_permissions.add(Permission.objects.get(codename="view_namedlock"))
    make_letter(make_manifest(state={}))
    ended(number=1_234)
    client = Client()
    client.force_login(user)
    page = overview(client)
    assert "dead letter" not in page
    assert "1,234" not in page
    assert "Processes" not in page


def test_the_rows_that_a_project_hides_are_hidden_here_too(viewer, alive, monkeypatch):
    mine, theirs = make_group("mine"), make_group("theirs")
    for group, number in ((mine, 11), (theirs, 2_000)):
        ended(number=number, group=group.pk)
        manifest = make_manifest(f"of {group.name}", group=group, state={"consecutive_failures": 3})
        make_letter(manifest)
        make_queue_row(manifest, created_at=database_now() - timedelta(hours=1))
        make_execution(manifest, state=ExecutionState.IN_PROGRESS, started_at=database_now())
    lookups = {ManifestGroup: "name", Manifest: "group__name", Metadata: "group__name", WorkQueue: "group__name"}
    for model, lookup in {**lookups, DeadLetter: "manifest__group__name"}.items():
        page_type = type(admin.site.get_model_admin(model))
        whole = page_type.get_queryset
        monkeypatch.setattr(
            page_type,
            "get_queryset",
            lambda self, request, whole=whole, lookup=lookup: whole(self, request).filter(**{lookup: "mine"}),
        )
    page = overview(viewer)
    assert "theirs" not in page
    assert "11 executions today" in page
    assert "1 dead letter awaits" in page
    assert "1 running" in page
    assert "1 queued" in page


def test_it_refreshes_itself_every_fifteen_seconds_at_most(viewer):
    html = viewer.get(reverse("admin:app_list", args=["chainsched"])).content.decode()
    assert REFRESH_SECONDS <= 15
    assert f'data-refresh-seconds="{REFRESH_SECONDS}"' in html
    assert "chainsched/overview.js" in html


def test_statistics_go_by_group_so_whoever_sees_only_some_executions_sees_none(viewer, alive, monkeypatch):
    """Unless the project says which groups are theirs, as above."""
    ended(number=2_000, workflow="payroll.pay", group=make_group("theirs").pk)
    page_type = type(admin.site.get_model_admin(Metadata))
    monkeypatch.setattr(page_type, "get_queryset", lambda self, request: Metadata.objects.filter(group__name="mine"))
    page = overview(viewer)
    assert "payroll.pay" not in page
    assert "2,000" not in page


def test_what_a_removed_group_did_still_counts(viewer, alive):
    ended(number=77, group=987_654)
    assert "77 executions today" in overview(viewer)


def test_the_admin_that_answers_is_asked_whatever_it_is_called(alive, settings):
    """A project's own site may be named as Django's is."""

    class Narrow(DeadLetterAdmin):
        def get_queryset(self, request):
            return super().get_queryset(request).none()

    site = admin.AdminSite()
    site.register(DeadLetter, Narrow)
    make_letter(make_manifest(state={}))
    urls = ModuleType("urls_of_a_test")
    urls.urlpatterns = [path("admin/", site.urls)]  # type: ignore[attr-defined]
    settings.ROOT_URLCONF = urls
    assert "0 dead letters" in overview(client_of("viewer"))


def test_a_day_begins_within_an_hour_of_the_roll_up_where_zones_are_half_hours_off(viewer, alive, settings):
    settings.TIME_ZONE = "Asia/Kolkata"
    ended(number=9)
    assert "9 executions today" in overview(viewer)


def test_a_longer_success_that_comes_meanwhile_is_no_error(viewer, alive, monkeypatch):
    ended(seconds=1.0)
    counted = HourlyStatisticQuerySet.statistics

    def count_and_let_another_come(self):
        found = counted(self)
        ended(seconds=2.0)
        HourlyStatistic.objects.merge_appended(limit=10)
        return found

    monkeypatch.setattr(HourlyStatisticQuerySet, "statistics", count_and_let_another_come)
    assert "etl.extract 1.0 s" in overview(viewer)
