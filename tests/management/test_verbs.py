"""``manage.py chainsched``: each verb, its answers for people and programs, and its exit codes."""

import json
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from django.core.management import CommandError, call_command

from chainsched import Every
from chainsched.db.clock import database_now
from chainsched.domain.states import ExecutionState
from chainsched.flow.schedule.declare import schedules
from chainsched.graph import export
from chainsched.models import Manifest, WorkQueue
from chainsched.registry import registry
from tests.factories import (
    NOW,
    make_dependent,
    make_execution,
    make_group,
    make_letter,
    make_manifest,
    make_process,
    make_queue_row,
)
from tests.testapp import workflows

pytestmark = pytest.mark.django_db


@pytest.fixture
def declared():
    schedules.schedule(workflows.ping, "root", None, Every.hours(1), group="etl").then_include(
        workflows.ping, "leaf", group="etl"
    )
    yield schedules
    schedules.clear()


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("chainsched", *arguments, stdout=out, no_color=True)
    return out.getvalue()


def run_json(*arguments: str):
    return json.loads(run(*arguments, "--json"))


def exit_code(*arguments: str):
    with pytest.raises(SystemExit) as caught:
        run(*arguments)
    return caught.value.code


class TestSeedAndPlan:
    def test_plan_shows_and_seed_does(self, declared):
        assert "+ root (interval)" in run("plan")
        assert "+ leaf (dependent after root)" in run("plan")
        assert not Manifest.objects.exists()
        assert run("seed") == "2 created, 0 changed, 0 retired, 0 unchanged.\n"
        assert run("plan").endswith("0 to create, 0 to change, 0 to retire, 0 to revive, 2 unchanged.\n")

    def test_changes_are_shown_column_by_column(self, declared):
        run("seed")
        Manifest.objects.filter(external_id="root").update(interval_seconds=60)
        assert "interval_seconds: 60 -> 3600" in run("plan")
        assert run_json("plan")["change"] == {"root": {"interval_seconds": {"old": 60, "new": 3600}}}

    def test_retired_and_revived_are_shown(self, declared):
        schedules.schedule(workflows.ping, "gone", None, Every.hours(1))
        run("seed")
        schedules._pending.pop()
        Manifest.objects.filter(external_id="leaf").update(retired_at=NOW)
        assert "- gone is no longer declared" in run("plan")
        assert "^ leaf is declared again" in run("plan")
        answer = run_json("plan")
        assert (answer["retire"], answer["revive"], answer["owner"]) == (["gone"], ["leaf"], "tests")
        assert run_json("seed")["retired"] == ["gone"]

    def test_check_fails_on_drift_only(self, declared):
        assert exit_code("plan", "--check") == 1
        run("seed")
        run("plan", "--check")

    def test_a_declaration_that_cannot_be_is_bad_input(self, declared):
        schedules.schedule(workflows.ping, "root", None, Every.hours(2))
        for verb in ("plan", "seed"):
            with pytest.raises(CommandError, match="'root' is declared twice") as caught:
                run(verb)
            assert caught.value.returncode == 2


class TestStatus:
    def test_it_shows_groups_loads_letters_and_processes(self):
        group = make_group("etl", max_active_jobs=4)
        make_queue_row(make_manifest(group=group, state={}))
        make_execution(make_manifest(group=group, state={}))
        make_letter(make_manifest(group=group, state={}))
        make_group("off", is_enabled=False)
        make_process(heartbeat_at=database_now(), host="web-1", pid=42)
        make_process(heartbeat_at=NOW - timedelta(days=900), host="gone")
        text = run("status")
        assert "3 manifests; 1 active (100), 1 queued" in text
        assert "dead letters that await a decision: 1" in text
        assert "worker web-1:42, alive" in text
        assert "gone" not in text
        seen = run_json("status")
        assert seen["groups"][0] | {"priority": 0} == {
            "name": "etl",
            "is_enabled": True,
            "priority": 0,
            "max_active_jobs": 4,
            "manifests": 3,
            "active": 1,
            "queued": 1,
            "dead_letters": 1,
        }

    def test_it_says_when_nobody_is_alive(self):
        assert "No process is alive" in run("status")

    def test_watching_shows_it_again_until_interrupted(self, monkeypatch):
        naps = []

        def nap(seconds):
            naps.append(seconds)
            if len(naps) == 3:
                raise KeyboardInterrupt

        monkeypatch.setattr("chainsched.management.verbs.status.time.sleep", nap)
        assert run("status", "--watch").count("chainsched at") == 3
        assert naps == [2.0, 2.0, 2.0]


class TestTrigger:
    def test_a_manifest_is_triggered_with_an_input(self):
        make_manifest("sync", workflow="testapp.copy", state={})
        assert run("trigger", "sync", "--input", '{"table": "t"}') == "sync: queued.\n"
        assert WorkQueue.objects.get().input == {"table": "t", "size": 500}
        assert run_json("trigger", "sync")[0]["code"] == "will_run_again"

    def test_a_delay_is_remembered(self):
        make_manifest("sync", state={})
        assert run("trigger", "sync", "--delay", "60") == "sync: will run at the time asked for.\n"

    def test_a_group_is_triggered(self):
        group = make_group("etl")
        make_manifest(group=group, state={})
        make_queue_row(make_manifest(group=group, state={}))
        assert run("trigger", "--group", "etl") == "etl: 1 queued; 1 already queued; it was brought forward.\n"

    def test_an_awaiting_letter_needs_attention(self):
        make_letter(make_manifest("sync", state={}))
        assert exit_code("trigger", "sync") == 1

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["nobody"], "no manifest 'nobody'"),
            (["--group", "nobody"], "no group 'nobody'"),
            (["sync", "--input", "{"], "--input: it is no JSON"),
            (["sync", "--input", "{}"], "table"),
            (["--group", "etl", "--delay", "5"], "--delay: not for a group"),
            (["sync", "--delay", "-5"], "not a number of seconds"),
            ([], "required"),
        ],
    )
    def test_bad_input_is_named(self, arguments, words):
        make_manifest("sync", workflow="testapp.copy", state={}, group=make_group("etl"))
        with pytest.raises(CommandError, match=words):
            run("trigger", *arguments)
        assert not WorkQueue.objects.exists()


class TestExplain:
    def test_it_says_why_in_words_and_as_a_code(self):
        make_manifest("sync", state={"next_run_at": NOW}, is_enabled=False)
        assert run("explain", "sync").startswith("sync: it is disabled [disabled]\n")

    def test_it_shows_what_the_schedule_would_do(self):
        make_manifest("sync", state={"next_run_at": database_now() + timedelta(minutes=1)})
        answer = run_json("explain", "sync")
        assert answer["code"] == "not_due"
        assert len(answer["next_runs"]) == 10
        assert answer["next_runs"][0] == answer["next_run_at"]

    def test_the_next_runs_of_what_is_late_are_not_in_the_past(self):
        make_manifest("sync", state={"next_run_at": NOW})
        asked_at = database_now()
        answer = run_json("explain", "sync")
        assert answer["code"] == "due"
        first, second, *_ = map(datetime.fromisoformat, answer["next_runs"])
        assert asked_at <= first
        assert second - first == timedelta(seconds=300)

    def test_what_may_not_run_has_no_next_runs(self):
        make_manifest("sync", state={}, retired_at=NOW)
        assert run_json("explain", "sync")["next_runs"] == []

    def test_an_unknown_manifest_is_bad_input(self):
        with pytest.raises(CommandError, match="no manifest 'nobody'") as caught:
            run("explain", "nobody")
        assert caught.value.returncode == 2


def no_worker(manifest):
    make_queue_row(manifest)


def waits_for_time(manifest):
    make_process(heartbeat_at=database_now(), workflows=registry.names())
    make_queue_row(manifest, not_before=database_now() + timedelta(hours=1))


def group_full(manifest):
    make_process(heartbeat_at=database_now(), workflows=registry.names())
    type(manifest.group).objects.update(max_active_jobs=1)
    make_execution(make_manifest(group=manifest.group, state={}))
    make_queue_row(manifest)


def group_disabled(manifest):
    type(manifest.group).objects.update(is_enabled=False)
    make_queue_row(manifest)


def disabled(manifest):
    Manifest.objects.update(is_enabled=False)
    make_queue_row(manifest)


def behind_others(manifest):
    make_process(heartbeat_at=database_now(), workflows=registry.names())
    make_queue_row(make_manifest(state={}), priority=3)
    make_queue_row(manifest)


@pytest.mark.parametrize(
    ("prepare", "code", "words"),
    [
        (no_worker, "no_capable_worker", "no live process can run 'testapp.ping'"),
        (waits_for_time, "waits_for_time", "attempt 1 waits until"),
        (group_full, "group_full", "it allows 1"),
        (group_disabled, "group_disabled", "its group is disabled"),
        (disabled, "disabled", "the manifest is disabled"),
        (behind_others, "queued", "1 rows are ahead"),
    ],
)
def test_a_queued_manifest_is_explained_by_what_the_dispatcher_would_say(prepare, code, words):
    manifest = make_manifest("sync", state={})
    prepare(manifest)
    explanation = manifest.explain()
    assert explanation.code == code
    assert words in explanation.reason


def test_the_global_limit_is_explained(settings):
    settings.CHAINSCHED = {"MAX_ACTIVE_JOBS": 1}
    make_process(heartbeat_at=database_now(), workflows=registry.names())
    make_execution(make_manifest(state={}), state=ExecutionState.IN_PROGRESS)
    manifest = make_manifest(state={})
    make_queue_row(manifest)
    assert manifest.explain().code == "no_room"


class TestGraph:
    def test_dot_names_every_manifest_and_edge(self):
        make_dependent(make_manifest("root", state={}), "leaf")
        dot = run("graph")
        assert dot.startswith("digraph chainsched {")
        assert "label=root" in dot
        assert "n0 -> n1" in dot

    def test_svg_is_written_to_a_file_with_every_name_escaped(self, tmp_path):
        make_dependent(make_manifest("<script>alert(1)</script>", state={}), 'a"&b')
        target = tmp_path / "graph.svg"
        assert run("graph", "--output", str(target)) == f"{target}: 2 manifests, 1 edges.\n"
        drawing = ET.fromstring(target.read_text())  # noqa: S314 - our own file
        texts = ["".join(text.itertext()) for text in drawing.iter("{http://www.w3.org/2000/svg}text")]
        assert texts == ["<script>alert(1)</script>", 'a"&b']
        assert not list(drawing.iter("{http://www.w3.org/2000/svg}script"))

    def test_a_group_is_drawn_with_its_parents(self):
        parent = make_manifest("root", state={}, group=make_group("A"))
        make_dependent(parent, "leaf", group=make_group("B"))
        make_manifest("stranger", state={})
        answer = run_json("graph", "--group", "B")
        assert sorted(node["external_id"] for node in answer["nodes"]) == ["leaf", "root"]

    def test_a_large_graph_is_cut_and_says_so(self):
        for _ in range(5):
            make_manifest(state={})
        picture = export.load(limit=3)
        assert (len(picture.nodes), picture.left_out) == (3, 2)
        assert "and 2 more manifests" in export.to_svg(picture)

    def test_numbers_in_a_drawing_are_those_of_machines_in_every_language(self, settings):
        settings.LANGUAGE_CODE, settings.USE_THOUSAND_SEPARATOR = "de", True
        for _ in range(80):
            make_manifest(state={})
        drawing = ET.fromstring(export.to_svg(export.load(limit=79)))  # noqa: S314 - our own drawing
        *_, remainder = drawing.iter("{http://www.w3.org/2000/svg}text")
        assert "and 1 more manifests" in remainder.text
        assert float(remainder.get("y")) == int(drawing.get("height")) - 10 > 1000

    @pytest.mark.parametrize(
        ("columns", "prepare", "state"),
        [
            ({}, lambda manifest: None, "idle"),
            ({"state": {"last_successful_run": NOW}}, lambda manifest: None, "succeeded"),
            ({"state": {"consecutive_failures": 1}}, lambda manifest: None, "failing"),
            ({"is_enabled": False}, lambda manifest: None, "disabled"),
            ({}, make_queue_row, "queued"),
            ({}, make_execution, "queued"),
            ({}, lambda manifest: make_execution(manifest, state=ExecutionState.IN_PROGRESS), "running"),
            ({}, make_letter, "dead_letter"),
        ],
    )
    def test_the_colour_is_the_state(self, columns, prepare, state):
        prepare(make_manifest(**{"state": {}, **columns}))
        (node,) = export.load().nodes
        assert node.state == state

    def test_without_anything_that_lays_out_the_remedy_is_named(self, monkeypatch):
        monkeypatch.setenv("PATH", "")
        monkeypatch.setitem(__import__("sys").modules, "pygraphviz", None)
        make_manifest(state={})
        with pytest.raises(CommandError, match=r"Install chainsched\[graph\]"):
            run("graph", "--format", "svg")

    def test_a_file_that_cannot_be_written_is_bad_input(self):
        with pytest.raises(CommandError, match="cannot be written"):
            run("graph", "--output", str(Path("/nowhere/graph.dot")))

    def test_an_unknown_group_is_bad_input(self):
        with pytest.raises(CommandError, match="no group 'nobody'"):
            run("graph", "--group", "nobody")


class TestExplainingAnExecution:
    @pytest.fixture
    def execution(self):
        return make_execution(make_manifest("job"), state=ExecutionState.COMPLETED)

    @pytest.mark.parametrize("by", ["id", "external_id"])
    def test_it_is_found_by_number_and_by_uuid(self, execution, by):
        output = run("explain", "--execution", str(getattr(execution, by)))
        assert f"job #{execution.id} (completed) ran because its schedule called for it" in output

    def test_for_programs_it_prints_the_chain(self, execution):
        answer = run_json("explain", "--execution", str(execution.id))
        assert [cause["execution_id"] for cause in answer["chain"]] == [execution.id]

    @pytest.mark.parametrize("unknown", ["17", "x", "9" * 30, "00000000-0000-0000-0000-000000000000"])
    def test_an_unknown_one_is_a_clear_error(self, unknown):
        with pytest.raises(CommandError, match="no execution") as caught:
            run("explain", "--execution", unknown)
        assert caught.value.returncode == 2

    def test_a_manifest_and_an_execution_at_once_are_refused(self, execution):
        with pytest.raises(CommandError, match="not allowed with"):
            run("explain", "job", "--execution", str(execution.id))
