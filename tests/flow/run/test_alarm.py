"""The alarm, and the search for alarms that are missing."""

from datetime import timedelta

import pytest

from chainsched.domain.states import ExecutionState
from chainsched.flow.maintain.fsck import reconcile
from chainsched.flow.run.alarm import arm
from chainsched.models import ManifestState
from tests.factories import NOW, make_dependent, make_execution, make_group, make_letter, make_manifest, make_queue_row

pytestmark = pytest.mark.django_db


def alarm_of(manifest):
    return ManifestState.objects.get(manifest=manifest).next_run_at


def test_reconcile_arms_what_was_forgotten_and_calls_it_a_defect(caplog):
    forgotten = make_manifest(state={})
    dependent = make_dependent(forgotten, state={"due_execution": 4})
    assert reconcile(now=NOW) == 2
    assert alarm_of(forgotten) == alarm_of(dependent) == NOW
    assert caplog.text.count("it has no alarm although it has no open item") == 2


def test_reconcile_leaves_open_disabled_and_finished_manifests_alone(caplog):
    make_queue_row(make_manifest(state={}))
    make_execution(make_manifest(state={}), state=ExecutionState.IN_PROGRESS)
    make_letter(make_manifest(state={}))
    make_manifest(state={}, is_enabled=False)
    make_manifest(state={}, group=make_group(is_enabled=False))
    make_manifest(state={}, schedule_type="on_demand")
    make_manifest(state={}, retired_at=NOW)
    make_dependent(make_manifest(), state={"due_execution": 4, "covered_execution": 4})
    assert reconcile(now=NOW) == 0
    assert caplog.text == ""


def test_an_alarm_that_is_right_is_not_written_again():
    manifest = make_manifest(state={"last_finished_run": NOW})
    assert arm([manifest.id], now=NOW) == 1
    assert arm([manifest.id], now=NOW) == 0
    assert alarm_of(manifest) == NOW + timedelta(minutes=5)


def test_open_work_means_no_alarm():
    manifest = make_manifest()
    make_execution(manifest)
    arm([manifest.id], now=NOW)
    assert alarm_of(manifest) is None


def test_enabling_begins_a_full_interval_from_now():
    manifest = make_manifest(state={"last_finished_run": NOW - timedelta(days=3)})
    arm([manifest.id], now=NOW, is_fresh=True)
    assert alarm_of(manifest) == NOW + timedelta(minutes=5)


def test_reconcile_finds_forgotten_triggers_too():
    make_manifest(state={"trigger_at": NOW}, schedule_type="on_demand")
    make_manifest(state={"trigger_at": NOW}, is_enabled=False)
    assert reconcile(now=NOW) == 2


def test_reconcile_does_not_move_an_alarm_that_was_set_meanwhile(monkeypatch, caplog):
    manifest = make_manifest(state={"last_finished_run": NOW})
    found = ManifestState.objects.without_alarm

    def armed_meanwhile(**page):
        ids = found(**page)
        ManifestState.objects.update(next_run_at=NOW)
        return ids

    ManifestState.objects.update(next_run_at=None)
    monkeypatch.setattr(type(ManifestState.objects), "without_alarm", lambda self, **page: armed_meanwhile(**page))
    assert reconcile(now=NOW) == 0
    assert alarm_of(manifest) == NOW
