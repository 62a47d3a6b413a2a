"""The pages show every row, also one with dangling references, to those who may see it, at a bounded cost."""

from __future__ import annotations

import hashlib
import re
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from chainsched.admin.kit import filters, paginator
from chainsched.admin.pages.executions import MAX_NODES
from chainsched.db.clock import database_now
from chainsched.domain.states import ExecutionState, ScheduleType, Source
from chainsched.models import (
    BulkDecision,
    DeadLetter,
    Manifest,
    ManifestGroup,
    ManifestState,
    Metadata,
    Process,
    WorkQueue,
)
from tests.admin.world import (
    CANARY,
    GONE,
    MODELS,
    REASON,
    client_of,
    every_page,
    list_of,
    make_user,
    make_world,
    pages_of,
    url_of,
)
from tests.factories import NOW, make_execution, make_letter, make_manifest, make_process, make_queue_row

pytestmark = [pytest.mark.django_db, pytest.mark.slow_on_postgres]
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)

MAX_QUERIES = 15


def text_of(client: Client, url: str) -> str:
    """What a page says, without its tags."""
    response = client.get(url)
    assert response.status_code == 200, url
    return " ".join(re.sub(r"<[^>]+>", " ", response.content.decode()).split())


def found(client: Client, model: Any, **query: str) -> int:
    return int(client.get(list_of(model).partition("?")[0], query).context["cl"].result_count)


def test_every_list_row_and_history_can_be_looked_at(superuser: Client, world: Manifest) -> None:
    urls = list(every_page())
    assert {url: superuser.get(url).status_code for url in urls} == dict.fromkeys(urls, 200)


def test_looking_changes_nothing(superuser: Client, world: Manifest) -> None:
    before = fingerprint()
    for url in every_page():
        superuser.get(url)
    assert fingerprint() == before


def fingerprint() -> str:
    """A hash of all that chainsched and the admin's history hold."""
    tables = [name for name in connection.introspection.table_names() if name.startswith("chainsched_")]
    digest = hashlib.sha256()
    with connection.cursor() as cursor:
        for table in [*sorted(tables), "django_admin_log"]:
            cursor.execute(f"SELECT * FROM {table} ORDER BY 1")  # noqa: S608
            digest.update(repr(cursor.fetchall()).encode())
    return digest.hexdigest()


@each_model
def test_not_even_a_superuser_can_add_change_or_delete(superuser: Client, world: Manifest, model: Any) -> None:
    before = fingerprint()
    refused = [url_of(model, "add"), *pages_of(model), *pages_of(model, "delete")]
    form = {
        "post": "yes",
        "_save": "Save",
        "name": "other",
        "is_enabled": "",
        "state": "completed",
        "status": "retried",
    }
    assert {url: superuser.post(url, form).status_code for url in refused} == dict.fromkeys(refused, 403)
    superuser.post(list_of(model), {"action": "delete_selected", "_selected_action": "1", "post": "yes"})
    assert fingerprint() == before


@each_model
def test_somebody_without_the_permission_sees_nothing(world: Manifest, model: Any) -> None:
    client = client_of("clerk")
    assert {client.get(url).status_code for url in (list_of(model), *pages_of(model))} == {403}


class TestPayloads:
    @each_model
    def test_they_are_on_no_list_and_for_no_mere_operator(
        self, superuser: Client, operator: Client, world: Manifest, model: Any
    ) -> None:
        assert CANARY not in text_of(superuser, list_of(model))
        assert not [url for url in (list_of(model), *pages_of(model)) if CANARY in text_of(operator, url)]

    @pytest.mark.parametrize("model", [Manifest, Metadata, WorkQueue, DeadLetter], ids=lambda model: model.__name__)
    def test_they_are_shown_redacted_to_whoever_holds_their_permission(
        self, manager: Client, world: Manifest, model: Any
    ) -> None:
        pages = [text_of(manager, url) for url in pages_of(model)]
        assert any(CANARY in page for page in pages)
        assert not [page for page in pages if "swordfish" in page]

    def test_the_page_says_what_it_takes_to_see_them(self, viewer: Client, world: Manifest) -> None:
        assert "chainsched.view_payloads" in text_of(viewer, next(pages_of(Metadata)))

    @pytest.mark.parametrize("role", ["viewer", "operator"])
    def test_reasons_of_failures_are_on_no_page_without_their_permission(self, world: Manifest, role: str) -> None:
        client = client_of(role)
        urls = [*every_page(), url_of(DeadLetter, "triage"), reverse("admin:app_list", args=["chainsched"])]
        assert not [url for url in urls if REASON in text_of(client, url)]

    def test_without_it_type_and_fingerprint_of_a_failure_are_shown(self, viewer: Client, world: Manifest) -> None:
        failed = Metadata.objects.filter(state=ExecutionState.FAILED).first()
        assert failed is not None
        shown = text_of(viewer, url_of(Metadata, "change", failed.pk))
        assert ("ValueError" in shown, "f1a2b3" in shown) == (True, True)
        assert "ValueError" in text_of(viewer, list_of(DeadLetter))
        letter = text_of(viewer, next(pages_of(DeadLetter)))
        assert ("ValueError" in letter, "abc" in letter) == (True, True)

    @pytest.mark.parametrize("view", ["changelist", "triage", "page", "execution"])
    def test_reasons_are_shown_to_users_who_hold_it(self, manager: Client, world: Manifest, view: str) -> None:
        failed = Metadata.objects.filter(state=ExecutionState.FAILED).first()
        assert failed is not None
        urls = {
            "changelist": list_of(DeadLetter),
            "triage": url_of(DeadLetter, "triage"),
            "page": next(pages_of(DeadLetter)),
            "execution": url_of(Metadata, "change", failed.pk),
        }
        assert REASON in text_of(manager, urls[view])

    @pytest.mark.parametrize("lookup", ["reason__contains", "execution__failure_reason__contains"])
    def test_reasons_cannot_be_guessed_by_filtering(self, viewer: Client, world: Manifest, lookup: str) -> None:
        assert viewer.get(list_of(DeadLetter), {lookup: REASON}).status_code == 400

    @pytest.mark.parametrize(
        "lookup", ["input__key", "output__key", "progress__a", "failure_traceback__contains", "manifest__input__key"]
    )
    def test_they_cannot_be_guessed_by_filtering(self, viewer: Client, world: Manifest, lookup: str) -> None:
        assert viewer.get(list_of(Metadata), {lookup: f'"{CANARY}"'}).status_code == 400

    def test_a_long_one_is_shown_in_part_until_asked_for(self, manager: Client) -> None:
        run = make_execution(output={"a": "x" * 100_000, "z": "its last word"})
        url = url_of(Metadata, "change", run.pk)
        assert "its last word" not in text_of(manager, url)
        assert "its last word" in text_of(manager, f"{url}?all=1")


class TestCost:
    @pytest.mark.parametrize("role", ["superuser", "manager"])
    def test_no_page_takes_many_queries(self, world: Manifest, role: str) -> None:
        make_queue_row(Manifest.objects.get(external_id="Extract child"))
        client = client_of(role)
        assert not {url: number for url in every_page() if (number := queries(client, url)) > MAX_QUERIES}

    @each_model
    def test_a_list_of_more_rows_takes_no_more(self, superuser: Client, world: Manifest, model: Any) -> None:
        few = queries(superuser, list_of(model))
        for number in range(5):
            make_world(f"Transform {number}", gone=GONE + number + 1)
        assert queries(superuser, list_of(model)) == few

    def test_a_thousand_rows_take_no_more(self, superuser: Client, world: Manifest) -> None:
        urls = [list_of(Metadata), list_of(WorkQueue), url_of(Metadata, "change", Metadata.objects.first().pk)]
        few = [queries(superuser, url) for url in urls]
        root = Metadata.objects.first().pk
        for _ in range(1000):
            make_execution(state=ExecutionState.COMPLETED, parent_execution_id=root, root_execution_id=root)
        for _ in range(100):
            make_queue_row()
        assert [queries(superuser, url) for url in urls[:2]] == few[:2]
        # One more, for the count of what the tree leaves out.
        assert queries(superuser, urls[2]) <= few[2] + 1

    def test_a_deep_chain_of_causes_takes_few(self, superuser: Client) -> None:
        run = make_execution(state=ExecutionState.COMPLETED)
        root = run
        for _ in range(20):
            run = make_execution(state=ExecutionState.COMPLETED, parent_execution_id=run.pk, root_execution_id=root.pk)
        assert queries(superuser, url_of(Metadata, "change", run.pk)) <= MAX_QUERIES

    def test_rows_beyond_the_bound_are_not_counted(
        self, superuser: Client, world: Manifest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(paginator, "MAX_COUNTED", 2)
        monkeypatch.setattr("chainsched.admin.kit.page.MAX_COUNTED", 2)
        assert "The list ends after 2 rows" in text_of(superuser, list_of(Manifest))
        assert superuser.get(list_of(Manifest)).context["cl"].result_count == 2

    def test_a_list_loads_no_payload(self, superuser: Client, world: Manifest) -> None:
        for model in (Metadata, Manifest, WorkQueue):
            with CaptureQueriesContext(connection) as captured:
                superuser.get(list_of(model))
            assert not [
                query["sql"] for query in captured if re.search(r'"(input|output|trigger_input)"', query["sql"])
            ]


def queries(client: Client, url: str) -> int:
    with CaptureQueriesContext(connection) as captured:
        assert client.get(url).status_code == 200
    return len([query for query in captured if "SAVEPOINT" not in query["sql"]])


class TestFinding:
    @pytest.mark.parametrize("model", [DeadLetter, Manifest, Metadata, WorkQueue], ids=lambda model: model.__name__)
    def test_rows_are_found_by_the_beginning_of_a_manifests_name(
        self, superuser: Client, world: Manifest, model: type[Model]
    ) -> None:
        assert found(superuser, model, q="Extract") >= 1
        assert found(superuser, model, q="xtract") == 0

    def test_an_execution_is_found_by_its_external_id(self, superuser: Client, world: Manifest) -> None:
        assert found(superuser, Metadata, q=str(Metadata.objects.earliest("id").external_id)) == 1
        assert found(superuser, Metadata, q=str(uuid.uuid4())) == 0

    def test_executions_are_found_by_a_manifest_that_a_uuid_names(self, superuser: Client) -> None:
        name = uuid.uuid4().hex
        make_execution(make_manifest(name))
        assert found(superuser, Metadata, q=name) == 1

    @pytest.mark.parametrize(
        ("model", "query", "number"),
        [
            (Manifest, {"state": "queued"}, 1),
            (Manifest, {"state": "dead_letter"}, 1),
            (Manifest, {"state": "running"}, 0),
            (Manifest, {"state": "pending"}, 0),
            (Manifest, {"state": "idle"}, 2),
            (Manifest, {"state": "disabled"}, 0),
            (Manifest, {"state": "retired"}, 0),
            (Manifest, {"state": "done"}, 0),
            (Manifest, {"state": "nonsense"}, 3),
            (Manifest, {"failing": "yes"}, 0),
            (Manifest, {"failing": "no"}, 3),
            (Manifest, {"due": "now"}, 1),
            (Manifest, {"due": "day"}, 1),
            (Manifest, {"due": "never"}, 2),
            (Manifest, {"schedule_type__exact": "dormant_dependent"}, 1),
            (Manifest, {"by_group": "Extract"}, 3),
            (Manifest, {"by_group": "extract"}, 0),
            (Manifest, {"by_workflow": "testapp.copy"}, 2),
            (Manifest, {"by_owner": "nobody"}, 0),
            (Metadata, {"state": "failed"}, 2),
            (Metadata, {"state": "in_progress"}, 0),
            (Metadata, {"since": "week"}, 0),
            (Metadata, {"by_workflow": "testapp.copy"}, 2),
            (Metadata, {"by_failure_type": "ValueError"}, 2),
            (Metadata, {"by_group": "Extract"}, 2),
            (WorkQueue, {}, 2),
            (WorkQueue, {"status": "cancelled"}, 0),
            (WorkQueue, {"status": "all"}, 2),
            (WorkQueue, {"by_group": "Extract"}, 2),
            (DeadLetter, {}, 2),
            (DeadLetter, {"status": "retried"}, 0),
            (DeadLetter, {"by_fingerprint": "abc"}, 2),
            (DeadLetter, {"by_manifest__group": "Extract"}, 1),
            (DeadLetter, {"since": "day"}, 0),
            (Process, {"is": "running"}, 1),
            (Process, {"is": "lost"}, 0),
            (Process, {"is": "stopped"}, 0),
        ],
    )
    def test_lists_are_narrowed(
        self, superuser: Client, world: Manifest, model: Any, query: dict[str, str], number: int
    ) -> None:
        assert found(superuser, model, **query) == number

    def test_a_typed_filter_keeps_the_others_the_search_and_the_order(self, superuser: Client, world: Manifest) -> None:
        query = {"q": "Ex", "failing": "no", "by_owner": '"><script>', "o": "-1"}
        whole = superuser.get(list_of(Manifest), query).content.decode()
        page = whole.partition('<form method="get" class="chainsched-filter">')[2]
        assert '<input type="hidden" name="o" value="-1">' in page
        assert '<input type="hidden" name="failing" value="no">' in page
        assert '<input type="hidden" name="q" value="Ex">' in page
        assert 'value="&quot;&gt;&lt;script&gt;"' in page

    @pytest.mark.parametrize("text", ["x" * 5000, "a\x00b", "%", "'; DROP TABLE x; --", "\ud83d\ude00"[:1], "🙂"])
    def test_whatever_is_typed_is_only_text(self, superuser: Client, world: Manifest, text: str) -> None:
        typed = text.encode("utf-8", "replace").decode()
        for name in ("by_group", "by_workflow", "by_owner", "state", "due"):
            assert superuser.get(list_of(Manifest), {name: typed}).status_code in (200, 302)

    def test_a_filter_without_an_index_looks_at_the_newest_only(
        self, superuser: Client, world: Manifest, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(filters, "NEWEST", 1)
        assert found(superuser, Metadata, state="failed") == 0
        assert found(superuser, Metadata, by_workflow="testapp.copy") == 0
        assert found(superuser, Metadata) == 4


class TestWhatTheySay:
    def test_a_manifest_says_why_it_does_not_run(self, viewer: Client, world: Manifest) -> None:
        WorkQueue.objects.all().delete()
        assert "A dead letter awaits a decision" in text_of(viewer, url_of(Manifest, "change", world.pk))

    def test_a_manifest_whose_state_was_deleted_by_hand_names_the_repair(self, viewer: Client) -> None:
        manifest = make_manifest()
        ManifestState.objects.all().delete()
        assert "`chainsched fsck --repair` restores it" in text_of(viewer, url_of(Manifest, "change", manifest.pk))

    def test_a_manifest_says_when_it_runs_next_in_words_and_times(self, viewer: Client) -> None:
        cron = {"schedule_type": ScheduleType.CRON, "cron_expression": "0 9 * * 1-5"}
        manifest = make_manifest(**cron, state={"next_run_at": database_now() + timedelta(hours=1)})
        page = viewer.get(url_of(Manifest, "change", manifest.pk)).content.decode()
        assert "on Monday to Friday at 09:00" in page
        assert page.count("<span>09:00:00</span></time></li>") == 10

    def test_a_manifest_whose_schedule_is_broken_still_has_its_page(self, viewer: Client) -> None:
        manifest = make_manifest(schedule_type=ScheduleType.CRON, cron_expression="61 * * * *")
        assert "cannot be computed" in text_of(viewer, url_of(Manifest, "change", manifest.pk))
        assert "cannot be computed" in text_of(viewer, list_of(Manifest))

    def test_a_manifest_leads_to_its_parent_children_and_runs(self, viewer: Client, world: Manifest) -> None:
        child = Manifest.objects.get(external_id="Extract child")
        run = Metadata.objects.filter(manifest=world).get()
        page = viewer.get(url_of(Manifest, "change", world.pk)).content.decode()
        assert url_of(Manifest, "change", child.pk) in page
        assert url_of(Metadata, "change", run.pk) in page
        assert url_of(Manifest, "change", world.pk) in viewer.get(url_of(Manifest, "change", child.pk)).content.decode()

    def test_an_execution_says_what_caused_it_and_where_it_ran(self, viewer: Client, world: Manifest) -> None:
        failed = Metadata.objects.filter(manifest=world).get()
        page = text_of(viewer, url_of(Metadata, "change", failed.pk))
        assert "its schedule called for it at" in page
        assert "worker host:1" in page
        assert str(failed.external_id) in page
        assert "Its tree was cancelled" in page

    def test_executions_of_a_large_tree_that_look_alike_are_one_line(self, viewer: Client) -> None:
        root = make_execution(state=ExecutionState.COMPLETED)
        for _ in range(MAX_NODES + 4):
            make_execution(state=ExecutionState.COMPLETED, parent_execution_id=root.pk, root_execution_id=root.pk)
        assert "and 201 more of testapp.ping" in text_of(viewer, url_of(Metadata, "change", root.pk))

    def test_a_tree_too_large_to_be_read_shows_the_execution_and_says_how_many_more_there_are(
        self, viewer: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("chainsched.admin.pages.executions.MAX_READ", 5)
        root = make_execution(state=ExecutionState.COMPLETED)
        for _ in range(20):
            last = make_execution(
                state=ExecutionState.COMPLETED, parent_execution_id=root.pk, root_execution_id=root.pk
            )
        page = viewer.get(url_of(Metadata, "change", last.pk)).content.decode()
        assert re.search(rf'aria-current="true"><a [^>]+>testapp.ping #{last.pk}<', page)
        assert "and 14 more" in page

    def test_a_row_of_the_queue_says_where_it_stands(self, viewer: Client) -> None:
        make_queue_row(make_manifest())
        row = make_queue_row(make_manifest(), turn=2)
        page = text_of(viewer, url_of(WorkQueue, "change", row.pk))
        assert "Position 2" in page
        assert "No live process can run" in page

    @pytest.mark.parametrize(
        ("columns", "word"),
        [({}, "stale"), ({"heartbeat_at": None}, "alive"), ({"stopped_at": 1}, "stopped"), ({"lost_at": 1}, "lost")],
    )
    def test_a_process_says_whether_it_is_alive(self, viewer: Client, columns: dict[str, Any], word: str) -> None:
        now = database_now()
        process = make_process(**dict.fromkeys(columns, now))
        assert word in text_of(viewer, url_of(Process, "change", process.pk))
        assert f">{word}</span>" in viewer.get(list_of(Process)).content.decode()

    def test_a_removed_manifest_is_named_by_its_number(self, viewer: Client, world: Manifest) -> None:
        assert f"#{GONE} (gone)" in text_of(viewer, list_of(DeadLetter))

    def test_times_have_seconds(self, viewer: Client, world: Manifest) -> None:
        assert "2026-03-02 10:00:00" in text_of(viewer, list_of(Metadata))


class TestWhatAProjectHides:
    @pytest.fixture(autouse=True)
    def _hide(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A project whose users see one group's manifests and none of the executions."""
        from chainsched.admin import ManifestAdmin, MetadataAdmin  # noqa: PLC0415

        seen, unseen = ManifestAdmin.get_queryset, MetadataAdmin.get_queryset
        monkeypatch.setattr(
            ManifestAdmin,
            "get_queryset",
            lambda page, request: seen(page, request).exclude(external_id__contains="child"),
        )
        monkeypatch.setattr(MetadataAdmin, "get_queryset", lambda page, request: unseen(page, request).none())

    def test_is_on_no_other_page_either(self, superuser: Client, world: Manifest) -> None:
        page = text_of(superuser, url_of(Manifest, "change", world.pk))
        assert "Extract child" not in page
        assert "It has not run yet." in page
        assert "Extract child" not in text_of(superuser, url_of(ManifestGroup, "change", world.group_id))

    def test_cannot_be_acted_on(self, superuser: Client, world: Manifest) -> None:
        child = Manifest.objects.get(external_id="Extract child")
        form = {"_selected_action": child.pk, "action": "disable", "confirmed": "yes", "count": "1"}
        superuser.post(list_of(Manifest), form)
        superuser.post(url_of(Manifest, "change", child.pk), form | {"CHANGE_FORM-action": "disable"})
        child.refresh_from_db()
        assert child.is_enabled


def test_the_pages_need_no_inline_script_or_style(superuser: Client, world: Manifest) -> None:
    for url in every_page():
        page = superuser.get(url).content.decode()
        assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page), url
        assert not [tag for tag in re.findall(r"<script[^>]*>", page) if "src=" not in tag and "json" not in tag], url
        assert not re.search(r"(src|href)=\"(https?:)?//", page), url


def test_there_is_a_user_of_each_kind() -> None:
    assert {role: make_user(role).is_staff for role in ("clerk", "viewer", "operator", "manager", "superuser")}
    assert User.objects.count() == 5


def test_a_time_at_the_end_of_the_calendar_can_be_looked_at(superuser: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    never = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
    make_manifest("never", schedule_type=ScheduleType.ONCE, once_at=never, state={"next_run_at": never})
    for url in (url_of(Manifest, "changelist"), *pages_of(Manifest), *pages_of(ManifestGroup)):
        assert "once at 9999-12-31 23:59:59" in text_of(superuser, url)


class UsersElsewhere:
    """Answers like Django without a router, for which users would be where the rows are that name them."""

    def db_for_read(self, model: type[Model], **hints: Any) -> None:
        is_misled = model is User and isinstance(hints.get("instance"), (DeadLetter, BulkDecision))
        assert not is_misled, "users are looked for in the database of chainsched"


def test_users_are_read_from_where_users_are(superuser: Client, world: Manifest, settings: Any) -> None:
    someone = User.objects.create_user("someone")
    run = make_execution(world, source=Source.DEAD_LETTER)
    letter = make_letter(world, status="retried", resolved_at=NOW, resolved_by=someone, retry_execution_id=run.id)
    bulk_decision = BulkDecision.objects.create(verb="retry", total=1, created_at=NOW, asked_by=someone)
    settings.DATABASE_ROUTERS = [UsersElsewhere()]
    for url in (
        list_of(DeadLetter),
        url_of(DeadLetter, "change", letter.pk),
        list_of(BulkDecision),
        url_of(BulkDecision, "change", bulk_decision.pk),
        url_of(Metadata, "change", run.pk),
    ):
        assert superuser.get(url).status_code == 200, url
    assert "someone" in letter.retry().skipped[letter.pk]


def test_a_cron_time_is_told_with_its_zone(superuser: Client, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    cron = {"schedule_type": ScheduleType.CRON, "cron_expression": "0 2 * * *"}
    there = make_manifest("there", timezone="Asia/Tokyo", **cron)
    make_manifest("here", **cron)
    page = text_of(superuser, list_of(Manifest))
    assert "every day at 02:00 (Asia/Tokyo)" in page
    assert page.count("(Asia/Tokyo)") == 1
    page = text_of(superuser, url_of(Manifest, "change", there.pk))
    assert "The times of the schedule alone, in Europe/Berlin." in page


def test_a_group_tells_which_members_are_over(superuser: Client) -> None:
    group = make_manifest("over", retired_at=NOW).group
    make_manifest("finished", group=group, done_at=NOW)
    page = text_of(superuser, url_of(ManifestGroup, "change", group.pk))
    assert "over retired every 5 minutes" in page
    assert "finished done every 5 minutes" in page


def test_numbers_that_are_names_are_not_divided(superuser: Client, settings: Any) -> None:
    settings.LANGUAGE_CODE, settings.USE_THOUSAND_SEPARATOR = "de", True
    process = make_process(id=7_654_321, pid=1_234_567)
    for url in (list_of(Process), url_of(Process, "change", process.pk)):
        page = text_of(superuser, url)
        assert "1234567" in page
        assert "1.234.567" not in page
        assert "7.654.321" not in page


def test_the_way_back_to_the_list_is_kept_when_all_is_shown(superuser: Client) -> None:
    execution = make_execution(output="x" * 100_000)
    page = superuser.get(url_of(Metadata, "change", execution.pk), {"_changelist_filters": "state=failed"})
    assert '<a href="?_changelist_filters=state%3Dfailed&amp;all=1">' in page.content.decode()
