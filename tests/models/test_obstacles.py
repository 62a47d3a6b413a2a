"""The two forms of the list of obstacles, in Python and in SQL, agree over every combination that rows can have."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from django.db.models import Case, CharField, Value, When

from chainsched.domain import obstacles as rules
from chainsched.domain.obstacles import RULES, STATES, STOPPING_REQUESTS, Obstacle
from chainsched.domain.states import RunCondition, ScheduleType, Source
from chainsched.domain.triggers import ANSWERS
from chainsched.graph.states import BY_OBSTACLE, NodeState, standing
from chainsched.models import Manifest, WorkQueue
from chainsched.models.downstream import load_downstream
from chainsched.models.manifest_facts import load_facts
from chainsched.models.obstacles import CONDITIONS, OF_THE_ROW, has_met, is_free_of, state_of
from tests.factories import NOW, make_dependent, make_group, make_manifest, make_queue_row

pytestmark = pytest.mark.django_db

SCHEDULES: dict[ScheduleType, dict[str, Any]] = {
    ScheduleType.ON_DEMAND: {},
    ScheduleType.CRON: {"cron_expression": "0 * * * *"},
    ScheduleType.INTERVAL: {"interval_seconds": 60},
    ScheduleType.ONCE: {"once_at": NOW},
    ScheduleType.DEPENDENT: {"run_condition": RunCondition.SUCCESS},
    ScheduleType.DORMANT_DEPENDENT: {"run_condition": RunCondition.SUCCESS},
}


@pytest.fixture
def every_manifest() -> list[int]:
    """One manifest for each combination of the columns that obstacles are judged by."""
    groups = {is_enabled: make_group(is_enabled=is_enabled) for is_enabled in (True, False)}
    parents = [
        make_manifest(group=groups[True]),
        make_manifest(group=groups[True], is_enabled=False),
        make_manifest(group=groups[True], retired_at=NOW),
        make_manifest(group=groups[False]),
    ]
    switches = itertools.product((None, NOW), (None, NOW), (True, False), (True, False))
    return [
        make_manifest(
            group=groups[is_group_enabled],
            retired_at=retired_at,
            done_at=done_at,
            is_enabled=is_enabled,
            schedule_type=schedule_type,
            depends_on=parent,
            depth=0 if parent is None else 1,
            is_join=is_join,
            **columns,
        ).id
        for retired_at, done_at, is_enabled, is_group_enabled in switches
        for schedule_type, columns in SCHEDULES.items()
        for parent in ((None, *parents) if schedule_type.has_parent else (None,))
        for is_join in ((False, True) if schedule_type is ScheduleType.DEPENDENT else (False,))
    ]


def test_both_forms_name_the_same_first_obstacle(every_manifest):
    by_rule = {facts.manifest_id: str(rules.find_obstacle(facts) or "") for facts in load_facts(every_manifest)}
    whens = [When(CONDITIONS[obstacle].is_met(""), then=Value(obstacle.value)) for obstacle in RULES]
    first_met = Case(*whens, default=Value(""), output_field=CharField())
    rows = Manifest.objects.filter(id__in=every_manifest).annotate(found=first_met)
    assert dict(rows.values_list("id", "found")) == by_rule
    assert set(by_rule.values()) == {"", *RULES}, "every obstacle is met first by some row"


@pytest.mark.parametrize("obstacle", RULES)
def test_a_row_has_met_an_obstacle_or_is_free_of_it(every_manifest, obstacle):
    known = Manifest.objects.filter(id__in=every_manifest)
    met = set(known.filter(has_met([obstacle])).values_list("id", flat=True))
    free = set(known.filter(is_free_of([obstacle])).values_list("id", flat=True))
    by_rule = {facts.manifest_id for facts in load_facts(every_manifest) if RULES[obstacle].is_met(facts)}
    assert met == by_rule
    assert free == set(every_manifest) - by_rule


def test_those_that_are_free_of_all_may_run(every_manifest):
    free = set(Manifest.objects.filter(is_free_of(), id__in=every_manifest).values_list("id", flat=True))
    assert free == {facts.manifest_id for facts in load_facts(every_manifest) if rules.find_obstacle(facts) is None}
    assert free


@pytest.mark.parametrize("source", Source)
def test_a_queued_row_is_held_by_the_same_obstacles_in_both_forms(every_manifest, source):
    manifests = Manifest.objects.in_bulk(every_manifest)
    rows = {make_queue_row(manifest, source=source).id: id_ for id_, manifest in manifests.items()}
    ready = WorkQueue.objects.ready(NOW).exclude(group__is_enabled=False).values_list("id", flat=True)
    facts = {known.manifest_id: known for known in load_facts(every_manifest)}
    assert {rows[id_] for id_ in ready} == {
        id_ for id_, known in facts.items() if rules.find_obstacle_to_row(known, source) is None
    }


def test_only_a_disabled_group_stops_a_request(every_manifest):
    stopped = {known.is_group_enabled for known in load_facts(every_manifest) if rules.find_obstacle_to_request(known)}
    assert stopped == {False}


def test_list_and_graph_show_the_same_state(every_manifest):
    rows = Manifest.objects.filter(id__in=every_manifest)
    drawn = dict(rows.annotate(drawn=standing()).values_list("id", "drawn"))
    for manifest in rows.select_related("group"):
        shown = state_of(manifest, is_group_enabled=manifest.group.is_enabled)
        assert drawn[manifest.id] == (NodeState.IDLE if shown is None else BY_OBSTACLE[shown]), shown
    assert set(drawn.values()) == {NodeState.IDLE, NodeState.DONE, NodeState.DISABLED}


def test_every_obstacle_has_its_condition_and_every_state_its_drawing():
    assert list(CONDITIONS) == list(RULES) == list(Obstacle)
    assert set(BY_OBSTACLE) == set(STATES)
    assert set(ANSWERS) == set(STOPPING_REQUESTS)
    assert set(OF_THE_ROW) <= set(RULES)


@pytest.mark.parametrize("columns", [{"is_enabled": False}, {"retired_at": NOW}])
def test_nothing_runs_after_a_manifest_that_is_off(columns):
    """The page of its dead letter promised its dependents, and they did not run."""
    parent = make_manifest(**columns)
    make_dependent(make_dependent(parent))
    assert load_downstream([parent.id], limit=10) == []


def test_those_that_would_run_are_found_as_far_as_no_obstacle_stops_them():
    parent = make_manifest()
    child = make_dependent(parent, run_condition=RunCondition.COMPLETION)
    grandchild = make_dependent(child)
    make_dependent(make_dependent(grandchild, is_enabled=False))
    make_dependent(parent, run_condition=RunCondition.FAILURE)
    make_dependent(parent, done_at=NOW)
    make_dependent(parent, schedule_type=ScheduleType.DORMANT_DEPENDENT)
    assert load_downstream([parent.id], limit=10) == [child.id, grandchild.id]
    assert load_downstream([parent.id], limit=1) == [child.id]
