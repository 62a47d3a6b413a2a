"""Every action asks first, does what it says to exactly the rows it showed, and leaves one entry a row."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.messages import get_messages
from django.test import Client
from django.utils.html import escape

from chainsched.admin import ManifestAdmin, MetadataAdmin
from chainsched.admin.kit import operations
from chainsched.domain.states import DeadLetterStatus, ExecutionState, QueueStatus, ScheduleType
from chainsched.models import DeadLetter, GraphRun, JoinState, Manifest, ManifestGroup, Metadata, WorkQueue
from chainsched.models.near import RUN_END
from chainsched.testing import Workbench
from tests.admin.world import client_of, list_of, url_of
from tests.drive import new_bench
from tests.factories import NOW, make_dependent, make_execution, make_group, make_letter, make_manifest, make_queue_row

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def bench() -> Iterator[Workbench]:
    with new_bench() as bench:
        yield bench


def ask(client: Client, row: Any, action: str) -> Any:
    """Press the button on the page of a row."""
    form = {"_selected_action": row.pk, "CHANGE_FORM-action": action}
    return client.post(url_of(type(row), "change", row.pk), form)


def act(client: Client, row: Any, action: str, **answers: Any) -> Any:
    """Press the button and answer the question."""
    form = {"_selected_action": row.pk, "CHANGE_FORM-action": action, "count": 1, "confirmed": "yes", **answers}
    response = client.post(url_of(type(row), "change", row.pk), form)
    row.refresh_from_db()
    return response


def act_on(client: Client, rows: list[Any], action: str, *, count: int | None = None, **answers: Any) -> Any:
    """Select rows in the list, choose an action and answer the question."""
    chosen = {"_selected_action": [row.pk for row in rows], "action": action, "count": count or len(rows)}
    return client.post(list_of(type(rows[0])), {**chosen, "confirmed": "yes", **answers})


def said(response: Any) -> list[str]:
    return [str(message) for message in get_messages(response.wsgi_request)]


def entry_of(row: Any) -> str:
    """What the history says about a row that one thing was done to."""
    return str(LogEntry.objects.get(object_id=str(row.pk), content_type__model=row._meta.model_name).change_message)


class TestAsking:
    def test_nothing_is_done_before_the_answer(self, operator: Client) -> None:
        manifest = make_manifest()
        response = ask(operator, manifest, "disable")
        assert response.status_code == 200
        assert "Disable: 1 manifest" in response.content.decode()
        manifest.refresh_from_db()
        assert manifest.is_enabled
        assert not LogEntry.objects.exists()

    def test_the_number_of_rows_is_shown_and_checked_again(self, operator: Client) -> None:
        rows = [make_manifest() for _ in range(3)]
        asked = operator.post(
            list_of(Manifest), {"_selected_action": [row.pk for row in rows], "action": "disable", "index": 0}
        )
        assert "Disable: 3 manifests" in asked.content.decode()
        rows[2].delete()
        response = act_on(operator, rows[:2], "disable", count=3)
        assert "Disable: 2 manifests" in response.content.decode()
        assert said(response) == ["The selection has changed since it was shown; check it again."]
        assert Manifest.objects.filter(is_enabled=True).count() == 2

    def test_more_rows_than_can_be_asked_about_are_refused(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(operations, "MAX_ROWS", 2)
        rows = [make_manifest() for _ in range(3)]
        response = act_on(operator, rows, "disable")
        assert said(response)[0].startswith("Nothing was done: at most 2 can be chosen")
        assert Manifest.objects.filter(is_enabled=False).count() == 0

    def test_all_rows_that_the_filter_leaves_can_be_chosen(self, operator: Client) -> None:
        rows = [make_manifest(workflow="testapp.copy"), make_manifest(), make_manifest()]
        url = url_of(Manifest, "changelist") + "?by_workflow=testapp.ping"
        form = {"_selected_action": rows[1].pk, "action": "disable", "select_across": 1, "index": 0}
        asked = operator.post(url, form).content.decode()
        assert "Disable: 2 manifests" in asked
        assert re.findall(r'name="_selected_action" value="(\d+)"', asked) == [str(row.pk) for row in rows[1:]]

    def test_a_wrong_answer_is_asked_again(self, operator: Client) -> None:
        letter = make_letter(make_manifest())
        response = act(operator, letter, "acknowledge", reason="")
        assert "This field is required" in response.content.decode()
        assert letter.status == DeadLetterStatus.AWAITING_INTERVENTION

    def test_the_page_of_a_row_acts_on_no_other(self, operator: Client) -> None:
        here, other = make_manifest(), make_manifest()
        form = {"_selected_action": other.pk, "CHANGE_FORM-action": "disable", "count": 1, "confirmed": "yes"}
        assert operator.post(url_of(Manifest, "change", here.pk), form).status_code == 400
        assert Manifest.objects.filter(is_enabled=False).count() == 0

    def test_a_row_that_is_gone_is_said_to_be_gone(self, operator: Client) -> None:
        form = {"_selected_action": 12345, "CHANGE_FORM-action": "disable", "count": 1, "confirmed": "yes"}
        response = operator.post(url_of(Manifest, "change", 12345), form, follow=True)
        assert "Perhaps it was deleted?" in response.content.decode()

    def test_a_page_offers_only_what_fits_the_row(self, superuser: Client) -> None:
        names = re.compile(r'name="CHANGE_FORM-action" value="(\w+)"')
        page = superuser.get(url_of(Manifest, "change", make_manifest(is_enabled=False).pk)).content.decode()
        assert names.findall(page) == ["trigger", "enable", "cancel"]
        ended = make_execution(make_manifest(), state=ExecutionState.COMPLETED)
        page = superuser.get(url_of(Metadata, "change", ended.pk)).content.decode()
        assert names.findall(page) == ["cancel_tree", "run_again"]

    def test_without_a_token_of_the_form_nothing_is_done(self) -> None:
        manifest = make_manifest()
        client = client_of("operator", enforce_csrf_checks=True)
        assert act(client, manifest, "disable").status_code == 403
        assert act_on(client, [manifest], "disable").status_code == 403
        manifest.refresh_from_db()
        assert manifest.is_enabled


class TestPermissionOfARow:
    def test_each_row_is_checked_again(self, operator: Client, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(
            ManifestAdmin, "has_switch_permission", lambda _page, _request, row=None: row is None or row.pk % 2 == 0
        )
        rows = [make_manifest() for _ in range(4)]
        response = act_on(operator, rows, "disable")
        switched = set(Manifest.objects.filter(is_enabled=False).values_list("pk", flat=True))
        assert switched == {row.pk for row in rows if row.pk % 2 == 0}
        assert "Disable: 2 manifests: not permitted." in said(response)
        assert LogEntry.objects.count() == 2

    def test_an_action_that_is_not_offered_changes_nothing(self, viewer: Client) -> None:
        manifest = make_manifest()
        assert act(viewer, manifest, "disable").status_code == 403
        assert act_on(viewer, [manifest], "disable").status_code in (200, 302)
        manifest.refresh_from_db()
        assert manifest.is_enabled
        assert not LogEntry.objects.exists()


class TestManifests:
    def test_triggering_queues_a_run(self, operator: Client, bench: Workbench) -> None:
        manifest = make_manifest("sync")
        response = act(operator, manifest, "trigger", reason="asked by sales")
        assert response.status_code == 302
        assert said(response) == ["Trigger: 1 manifest: queued."]
        bench.assert_queued("sync")
        entry = LogEntry.objects.get()
        assert str(entry.user) == "operator"
        assert "Triggered: queued." in entry.change_message
        assert "open nothing. After:" in entry.change_message
        assert "open queued." in entry.change_message
        assert "Reason: asked by sales." in entry.change_message

    def test_triggering_takes_a_delay_and_an_input(self, operator: Client, bench: Workbench) -> None:
        manifest = make_manifest("sync", workflow="testapp.copy", input={"table": "a"}, state={})
        act(operator, manifest, "trigger", delay="60", input='{"table": "b", "size": 3}')
        assert manifest.state.trigger_input == {"table": "b", "size": 3}
        assert "will run at the time asked for" in entry_of(manifest)

    @pytest.mark.parametrize(
        "answers",
        [
            {"input": '{"size": 3}'},
            {"input": '{"table": "b", "other": 1}'},
            {"input": "{"},
            {"input": "[" * 100_000},
            {"delay": "-1"},
            {"delay": "soon"},
            {"reason": "x" * 201},
        ],
    )
    def test_a_trigger_that_does_not_fit_is_refused(self, operator: Client, answers: dict[str, str]) -> None:
        manifest = make_manifest("sync", workflow="testapp.copy", input={"table": "a"}, state={})
        response = act(operator, manifest, "trigger", **answers)
        assert response.status_code == 200
        assert "Please correct the errors below" in response.content.decode()
        assert not WorkQueue.objects.exists()

    def test_an_input_is_asked_for_by_an_empty_field(self, operator: Client) -> None:
        page = ask(operator, make_manifest("sync"), "trigger").content.decode()
        assert re.search(r'<textarea name="input"[^>]*>\s*</textarea>', page)

    def test_many_are_triggered_with_their_own_inputs(self, operator: Client, bench: Workbench) -> None:
        rows = [make_manifest("a"), make_manifest("b")]
        asked = operator.post(list_of(Manifest), {"_selected_action": [row.pk for row in rows], "action": "trigger"})
        assert 'name="input"' not in asked.content.decode()
        act_on(operator, rows, "trigger")
        bench.assert_queued("a", "b")

    @pytest.mark.parametrize("action", ["enable", "disable"])
    def test_switching(self, operator: Client, action: str) -> None:
        rows = [make_manifest(is_enabled=action == "disable"), make_manifest(is_enabled=action == "disable")]
        act_on(operator, rows, action, reason="maintenance")
        assert set(Manifest.objects.values_list("is_enabled", flat=True)) == {action == "enable"}
        assert all("maintenance" in entry_of(row) for row in rows)

    def test_cancelling_stops_what_is_open(self, operator: Client) -> None:
        manifest = make_manifest(state={})
        make_queue_row(manifest)
        act(operator, manifest, "cancel", reason="wrong table")
        assert (WorkQueue.objects.get().status, WorkQueue.objects.get().cancel_reason) == ("cancelled", "wrong table")
        assert "stopped 1 queued, 0 pending and 0 running" in entry_of(manifest)

    @pytest.mark.parametrize(
        "document", [r'{"table": "\ud800"}', '{"table": NaN}', "[" * 100_000, '{"table":   1}', "{"]
    )
    def test_an_input_that_is_refused_stands_there_as_it_was_typed(self, operator: Client, document: str) -> None:
        response = act(operator, make_manifest(workflow="testapp.copy"), "trigger", input=document)
        assert response.status_code == 200
        assert escape(document) in response.content.decode()
        assert not WorkQueue.objects.exists()


class TestActivating:
    @pytest.fixture
    def dormant(self) -> Manifest:
        return make_dependent(
            make_manifest(),
            "child",
            schedule_type=ScheduleType.DORMANT_DEPENDENT,
            workflow="testapp.copy",
            input={"table": "own"},
        )

    def test_the_form_has_a_field_for_each_plain_value(self, operator: Client, dormant: Manifest) -> None:
        page = ask(operator, dormant, "activate").content.decode()
        assert '<input type="text" name="input_table"' in page
        assert re.search(r'<input type="number" name="input_size" value="500"', page)
        assert "own" not in page

    def test_the_own_input_is_filled_in_for_whoever_may_see_it(self, manager: Client, dormant: Manifest) -> None:
        assert 'value="own"' in ask(manager, dormant, "activate").content.decode()

    def test_the_child_is_queued_with_the_input(self, operator: Client, dormant: Manifest) -> None:
        act(operator, dormant, "activate", input_table="t", input_size="7")
        assert WorkQueue.objects.get().input == {"table": "t", "size": 7}
        assert "Activated: queued. With input given, not shown." in entry_of(dormant)

    def test_what_is_left_empty_has_its_default(self, operator: Client, dormant: Manifest) -> None:
        act(operator, dormant, "activate", input_table="t", input_size="")
        assert WorkQueue.objects.get().input == {"table": "t", "size": 500}

    @pytest.mark.parametrize("answers", [{"input_table": ""}, {"input_table": "t", "input_size": "many"}])
    def test_an_input_that_does_not_fit_is_refused(
        self, operator: Client, dormant: Manifest, answers: dict[str, str]
    ) -> None:
        assert act(operator, dormant, "activate", **answers).status_code == 200
        assert not WorkQueue.objects.exists()

    def test_one_that_is_not_dormant_is_refused(self, operator: Client) -> None:
        manifest = make_manifest()
        response = act(operator, manifest, "activate")
        assert "is not dormant" in said(response)[0]
        assert not WorkQueue.objects.exists()

    def test_a_workflow_that_this_process_does_not_know_is_said(self, operator: Client, dormant: Manifest) -> None:
        Manifest.objects.filter(pk=dormant.pk).update(workflow="elsewhere.job")
        response = act(operator, dormant, "activate", input_document="{}")
        assert "elsewhere.job" in response.content.decode()
        assert not WorkQueue.objects.exists()


class TestGroups:
    def test_triggering(self, operator: Client, bench: Workbench) -> None:
        manifest = make_manifest("sync")
        act(operator, manifest.group, "trigger")
        bench.assert_queued("sync")
        assert "Triggered: 1 queued." in entry_of(manifest.group)

    def test_switching(self, operator: Client) -> None:
        group = make_group()
        act(operator, group, "disable", reason="upgrade")
        assert not group.is_enabled
        assert "Before: is_enabled True" in entry_of(group)
        act(operator, group, "enable")
        assert group.is_enabled

    def test_changing_limits_takes_its_own_permission(self, operator: Client, manager: Client) -> None:
        group = make_group()
        answers = {"max_active_jobs": "3", "priority": "7"}
        assert act(operator, group, "set_limits", **answers).status_code == 403
        assert group.priority == 0
        act(manager, group, "set_limits", **answers, reason="less load")
        assert (group.max_active_jobs, group.priority) == (3, 7)
        entry = entry_of(group)
        assert "max_active_jobs None, priority 0" in entry
        assert "max_active_jobs 3, priority 7" in entry

    @pytest.mark.parametrize("wrong", [{"max_active_jobs": "0"}, {"priority": "32"}, {"priority": ""}])
    def test_limits_that_make_no_sense_are_refused(self, manager: Client, wrong: dict[str, str]) -> None:
        group = make_group()
        assert act(manager, group, "set_limits", **{"priority": "1", **wrong}).status_code == 200
        assert group.priority == 0

    def test_cancelling_what_runs(self, operator: Client) -> None:
        manifest = make_manifest()
        run = make_execution(manifest, state=ExecutionState.IN_PROGRESS)
        act(operator, manifest.group, "cancel")
        run.refresh_from_db()
        assert run.cancel_requested
        assert "stopped 0 queued, 0 pending and 1 running" in entry_of(manifest.group)


class TestGroupsOfWhichAPartIsSeen:
    @pytest.fixture
    def group(self, monkeypatch: pytest.MonkeyPatch) -> ManifestGroup:
        ours = make_manifest("ours", state={})
        make_manifest("theirs", group=ours.group, state={})
        whole = ManifestAdmin.get_queryset
        monkeypatch.setattr(
            ManifestAdmin,
            "get_queryset",
            lambda page, request: whole(page, request).filter(external_id="ours"),
        )
        return ours.group

    @pytest.mark.parametrize("verb", ["trigger", "cancel"])
    def test_nobody_reaches_members_that_they_do_not_see(
        self, operator: Client, group: ManifestGroup, verb: str
    ) -> None:
        page = operator.get(url_of(ManifestGroup, "change", group.pk)).content.decode()
        assert f'value="{verb}"' not in page
        act(operator, group, verb)
        assert not WorkQueue.objects.exists()
        assert not LogEntry.objects.exists()

    def test_the_switch_is_the_group_s_own(self, operator: Client, group: ManifestGroup) -> None:
        act(operator, group, "disable")
        assert not group.is_enabled

    def test_a_group_of_which_all_is_seen_is_triggered(self, operator: Client, group: ManifestGroup) -> None:
        Manifest.objects.get(external_id="theirs").delete()
        act(operator, group, "trigger")
        assert WorkQueue.objects.get().manifest_external_id == "ours"


class TestExecutions:
    def test_cancelling(self, operator: Client) -> None:
        run = make_execution(make_manifest())
        act(operator, run, "cancel", reason="not needed")
        assert (run.state, run.cancel_reason) == (ExecutionState.CANCELLED, "not needed")
        assert "Before: state pending, cancel_requested False. After: state cancelled" in entry_of(run)

    def test_cancelling_what_has_ended_does_nothing(self, operator: Client) -> None:
        run = make_execution(make_manifest(), state=ExecutionState.COMPLETED)
        response = act(operator, run, "cancel")
        assert said(response) == ["Cancel: 1 execution: nothing was left to stop."]
        assert not LogEntry.objects.exists()

    def test_cancelling_an_inner_execution_with_what_it_led_to(self, operator: Client) -> None:
        root = make_execution(state=ExecutionState.COMPLETED)
        lineage = {"parent_execution_id": root.pk, "root_execution_id": root.pk}
        run, sibling = (make_execution(make_manifest(), **lineage) for _ in range(2))
        below = make_execution(make_manifest(), parent_execution_id=run.pk, root_execution_id=root.pk)
        act(operator, run, "cancel_tree")
        below.refresh_from_db()
        sibling.refresh_from_db()
        assert run.state == below.state == ExecutionState.CANCELLED
        assert sibling.state == ExecutionState.PENDING

    def test_cancelling_the_head_of_a_run_cancels_the_run(self, operator: Client) -> None:
        head = make_manifest()
        child = make_dependent(head)
        began = GraphRun.objects.create(head=head, scheduled_for=NOW, created_at=NOW)
        end = JoinState.objects.create(run=began, join_id=RUN_END, open=2)
        item = {"run_id": began.pk, "tokens": [end.pk], "has_tokens": True}
        root = make_execution(head, **item)
        run = make_execution(child, parent_execution_id=root.pk, root_execution_id=root.pk, **item)
        act(operator, root, "cancel_tree", reason="wrong day")
        run.refresh_from_db()
        began.refresh_from_db()
        assert root.state == run.state == ExecutionState.CANCELLED
        assert began.cancelled_at is not None
        assert began.cancel_reason == "wrong day"

    def test_nobody_cancels_a_tree_of_which_they_do_not_see_all(
        self, operator: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        root = make_execution(make_manifest("theirs"), state=ExecutionState.IN_PROGRESS)
        run = make_execution(make_manifest("ours"), parent_execution_id=root.pk, root_execution_id=root.pk)
        whole = MetadataAdmin.get_queryset
        for seen, is_offered in (("ours", False), ("", True)):
            monkeypatch.setattr(
                MetadataAdmin,
                "get_queryset",
                lambda page, request, seen=seen: whole(page, request).filter(manifest_external_id__contains=seen),
            )
            page = operator.get(url_of(Metadata, "change", run.pk)).content.decode()
            assert ('value="cancel_tree"' in page) is is_offered
            response = act(operator, run, "cancel_tree")
            run.refresh_from_db()
            assert (run.state == ExecutionState.CANCELLED) is is_offered, said(response)

    def test_running_again(self, operator: Client) -> None:
        manifest = make_manifest(workflow="testapp.copy", input={"table": "a"}, state={})
        run = make_execution(manifest, state=ExecutionState.FAILED, input={"table": "b", "size": 1})
        act(operator, run, "run_again")
        assert WorkQueue.objects.get().input == {"table": "b", "size": 1}
        assert "Ran again: queued." in entry_of(run)

    def test_one_whose_manifest_is_gone_cannot_run_again(self, operator: Client) -> None:
        response = act(operator, make_execution(manifest_id=98_765), "run_again")
        assert said(response)[0].startswith("Run again: 1 execution: ")
        assert not LogEntry.objects.exists()


class TestQueueRows:
    def test_cancelling(self, operator: Client) -> None:
        row = make_queue_row(make_manifest(state={}))
        act(operator, row, "cancel", reason="no")
        assert (row.status, row.cancel_reason) == (QueueStatus.CANCELLED, "no")

    def test_bringing_forward(self, operator: Client, bench: Workbench) -> None:
        make_queue_row(make_manifest("first", state={}))
        row = make_queue_row(make_manifest("second", state={}), turn=5)
        act(operator, row, "bring_forward")
        assert bench.queued() == ["second", "first"]

    def test_many_are_cancelled_each_with_its_entry(self, operator: Client) -> None:
        rows = [make_queue_row(make_manifest(state={})) for _ in range(3)]
        act_on(operator, rows, "cancel")
        assert LogEntry.objects.count() == 3
        assert not WorkQueue.objects.queued().exists()


class TestDeadLetters:
    def test_retrying_says_who_and_why(self, operator: Client, bench: Workbench) -> None:
        manifest = make_manifest("sync", state={})
        letter = make_letter(manifest)
        act(operator, letter, "retry", reason="the disk was full")
        assert (letter.status, letter.note, str(letter.resolved_by)) == ("retried", "the disk was full", "operator")
        bench.assert_queued("sync")
        assert "Retried: queued once more." in entry_of(letter)

    def test_acknowledging_many(self, operator: Client, bench: Workbench) -> None:
        letters = [make_letter(make_manifest(state={})) for _ in range(3)]
        response = act_on(operator, letters, "acknowledge", reason="known")
        assert said(response) == ["Acknowledge: 3 dead letters: acknowledged."]
        assert set(DeadLetter.objects.values_list("status", "note")) == {("acknowledged", "known")}
        assert LogEntry.objects.count() == 3

    def test_a_decision_that_somebody_else_made_meanwhile_stands(self, operator: Client) -> None:
        letter = make_letter(make_manifest(state={}))
        letter.acknowledge(note="mine")
        response = act(operator, letter, "retry")
        assert (letter.status, letter.note) == ("acknowledged", "mine")
        assert "already acknowledged by the system" in said(response)[0]
        assert not LogEntry.objects.exists()


def test_secrets_that_somebody_types_are_not_in_the_history(operator: Client) -> None:
    manifest = make_manifest()
    act(operator, manifest, "disable", reason="rotated, password=swordfish")
    assert "swordfish" not in entry_of(manifest)


def test_a_group_page_leads_back_to_where_the_action_began(operator: Client) -> None:
    group = make_group()
    assert act(operator, group, "disable").url == url_of(ManifestGroup, "change", group.pk)


class TestTelling:
    @staticmethod
    def levels(response: Any) -> list[tuple[str, str]]:
        return [(message.level_tag, str(message)) for message in get_messages(response.wsgi_request)]

    def test_what_was_done_is_a_success(self, operator: Client) -> None:
        told = self.levels(act(operator, make_manifest(), "trigger"))
        assert told == [("success", "Trigger: 1 manifest: queued.")]

    @pytest.mark.parametrize(
        ("action", "told"),
        [
            ("trigger", "not run: a dead letter awaits a decision; retry or acknowledge it"),
            ("enable", "it was enabled already"),
            ("cancel", "nothing was left to stop"),
        ],
    )
    def test_what_came_to_nothing_is_a_warning(self, operator: Client, action: str, told: str) -> None:
        manifest = make_manifest()
        make_letter(manifest)
        assert self.levels(act(operator, manifest, action)) == [("warning", f"{action.title()}: 1 manifest: {told}.")]

    def test_a_letter_that_somebody_else_decided_about_is_a_warning(self, operator: Client) -> None:
        letter = make_letter(make_manifest(), status=DeadLetterStatus.RETRIED, resolved_at=NOW)
        (level, told), *_ = self.levels(act(operator, letter, "retry"))
        assert (level, "already retried by the system" in told) == ("warning", True)

    def test_a_refusal_ends_with_one_full_stop(self, operator: Client) -> None:
        execution = make_execution(state=ExecutionState.COMPLETED)
        ((level, told),) = self.levels(act(operator, execution, "run_again"))
        assert level == "error"
        assert told.endswith("list them.")
