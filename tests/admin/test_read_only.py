"""The admin shows every row, also one with dangling references, and changes none."""

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.db.models import Model
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from chainsched.models import DeadLetter, Loop, Manifest, ManifestGroup, ManifestState, Metadata, Process, WorkQueue

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
GONE = 987_654
SECRET = "hunter2"
MODELS = (DeadLetter, Loop, Manifest, ManifestGroup, ManifestState, Metadata, Process, WorkQueue)

pytestmark = pytest.mark.django_db
each_model = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)


@pytest.fixture
def rows() -> None:
    """Rows of everything, those that refer to others once more with references to what is gone."""
    _make_rows("Extract", gone=GONE)


def _make_rows(external_id: str, *, gone: int) -> None:
    group = ManifestGroup.objects.create(name=external_id)
    manifest = Manifest.objects.create(
        external_id=external_id, group=group, workflow="etl.extract", input={"key": SECRET}
    )
    ManifestState.objects.create(manifest=manifest, trigger_input={"key": SECRET})
    process = Process.objects.create(kind="worker", host="host", pid=1, started_at=NOW, heartbeat_at=NOW)
    Loop.objects.create(name=external_id)
    for manifest_id, process_id in ((manifest.id, process.id), (gone, gone)):
        execution = _execution(manifest_id, process_id=process_id)
        _queue_row(manifest_id)
        DeadLetter.objects.create(
            manifest_id=manifest_id, execution_id=execution.id, reason="too often", dead_lettered_at=NOW
        )


def _queue_row(manifest_id: int) -> None:
    WorkQueue.objects.create(
        manifest_id=manifest_id,
        group_id=manifest_id,
        manifest_external_id="extract",
        workflow="etl.extract",
        input={"key": SECRET},
        priority=0,
        turn=1,
        source="schedule",
        scheduled_for=NOW,
        created_at=NOW,
        parent_execution_id=GONE,
        dead_letter_id=GONE,
    )


def _execution(manifest_id: int, *, process_id: int) -> Metadata:
    return Metadata.objects.create(
        manifest_id=manifest_id,
        group_id=manifest_id,
        work_queue_id=GONE,
        process_id=process_id,
        parent_execution_id=GONE,
        root_execution_id=GONE,
        manifest_external_id="extract",
        workflow="etl.extract",
        source="schedule",
        state="failed",
        input={"key": SECRET},
        output={"key": SECRET},
        failure_traceback=f"ValueError: {SECRET}",
        scheduled_for=NOW,
        created_at=NOW,
        ended_at=NOW,
    )


@pytest.fixture
def viewer() -> User:
    """Somebody who may look at everything and is no superuser."""
    user = User.objects.create_user("viewer", password="viewer", is_staff=True)
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="chainsched", codename__startswith="view_")
    )
    return user


@pytest.fixture
def viewer_client(viewer: User) -> Client:
    client = Client()
    client.force_login(viewer)
    return client


def _list_url(model: type[Model]) -> str:
    return reverse(f"admin:chainsched_{model._meta.model_name}_changelist")


def _detail_urls(model: type[Model], view: str = "change") -> Iterator[str]:
    for pk in model._default_manager.values_list("pk", flat=True):
        yield reverse(f"admin:chainsched_{model._meta.model_name}_{view}", args=[pk])


@each_model
def test_every_list_and_every_row_can_be_looked_at(admin_client: Client, rows: None, model: type[Model]) -> None:
    urls = [_list_url(model), *_detail_urls(model), *_detail_urls(model, "history")]
    assert len(urls) >= 3
    assert {url: admin_client.get(url).status_code for url in urls} == dict.fromkeys(urls, 200)


@each_model
def test_not_even_a_superuser_can_add_change_or_delete(admin_client: Client, rows: None, model: type[Model]) -> None:
    before = list(model._default_manager.values())
    refused = [reverse(f"admin:chainsched_{model._meta.model_name}_add")]
    refused += [*_detail_urls(model), *_detail_urls(model, "delete")]
    assert {url: admin_client.post(url, {"post": "yes"}).status_code for url in refused} == dict.fromkeys(refused, 403)
    assert list(model._default_manager.values()) == before


@each_model
def test_a_list_offers_no_action(admin_client: Client, rows: None, model: type[Model]) -> None:
    assert b'name="action"' not in admin_client.get(_list_url(model)).content


@each_model
def test_payloads_are_shown_on_no_list_and_to_no_mere_viewer(
    admin_client: Client, viewer_client: Client, rows: None, model: type[Model]
) -> None:
    assert SECRET not in admin_client.get(_list_url(model)).content.decode()
    for url in (_list_url(model), *_detail_urls(model)):
        response = viewer_client.get(url)
        assert response.status_code == 200
        assert SECRET not in response.content.decode()


@pytest.mark.parametrize("model", [Manifest, ManifestState, Metadata, WorkQueue], ids=lambda model: model.__name__)
def test_a_superuser_sees_payloads_on_the_page_of_a_row(admin_client: Client, rows: None, model: type[Model]) -> None:
    assert all(SECRET in admin_client.get(url).content.decode() for url in _detail_urls(model))


@pytest.mark.parametrize("lookup", ["input__key", "output__key", "failure_traceback__contains", "manifest__input__key"])
def test_payloads_cannot_be_guessed_by_filtering(viewer_client: Client, rows: None, lookup: str) -> None:
    assert viewer_client.get(_list_url(Metadata), {lookup: f'"{SECRET}"'}).status_code == 400


@each_model
def test_a_list_of_more_rows_takes_no_more_queries(admin_client: Client, rows: None, model: type[Model]) -> None:
    few = _count_queries(admin_client, model)
    for number in range(5):
        _make_rows(f"Transform {number}", gone=GONE + number + 1)
    assert _count_queries(admin_client, model) == few


@pytest.mark.parametrize("model", [DeadLetter, Manifest, ManifestState, Metadata], ids=lambda model: model.__name__)
def test_rows_are_found_by_the_beginning_of_a_manifests_name(
    admin_client: Client, rows: None, model: type[Model]
) -> None:
    assert _found(admin_client, model, "Extr") == 1
    assert _found(admin_client, model, "load") == 0


def test_an_execution_is_found_by_its_external_id(admin_client: Client, rows: None) -> None:
    execution = Metadata.objects.earliest("id")
    assert _found(admin_client, Metadata, str(execution.external_id)) == 1
    assert _found(admin_client, Metadata, str(uuid.uuid4())) == 0


def test_a_removed_manifest_is_named_by_its_id(admin_client: Client, rows: None) -> None:
    assert f"#{GONE} (removed)" in admin_client.get(_list_url(DeadLetter)).content.decode()
    execution = Metadata.objects.get(manifest_id=GONE)
    page = admin_client.get(reverse("admin:chainsched_metadata_change", args=[execution.pk]))
    assert str(GONE) in page.content.decode()


def test_somebody_without_the_permission_sees_nothing(rows: None) -> None:
    client = Client()
    client.force_login(User.objects.create_user("clerk", password="clerk", is_staff=True))
    assert {client.get(_list_url(model)).status_code for model in MODELS} == {403}


def _found(client: Client, model: type[Model], term: str) -> int:
    return int(client.get(_list_url(model), {"q": term}).context["cl"].result_count)


def _count_queries(client: Client, model: type[Model]) -> int:
    with CaptureQueriesContext(connection) as queries:
        client.get(_list_url(model))
    return len(queries)
