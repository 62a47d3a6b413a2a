"""Workflows by name: what may be one, how it is found, and how it wants to be called."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

import pytest

from chainsched import RunContext
from chainsched.exceptions import InvalidInput, InvalidWorkflow, UnknownWorkflow
from chainsched.registry import NAME_MARK, Registry, Workflow, registry
from tests.testapp import workflows

if TYPE_CHECKING:
    from decimal import Decimal as Hidden

RUN = RunContext(
    execution_id=1,
    correlation_id=UUID(int=1),
    workflow="shop.copy",
    external_id="copy",
    scheduled_for=datetime(2026, 1, 1, tzinfo=UTC),
    attempt=1,
    cron_expression="",
    timeout_seconds=60,
    parent_manifest_id=None,
    parent_execution_id=None,
    root_execution_id=None,
    causation_id="",
    root_correlation_id="",
    _control=None,
)


@dataclass(frozen=True)
class Job:
    table: str


def plain() -> str:
    return "pong"


def with_input(job: Job) -> Job:
    return job


def with_run(run: RunContext) -> None: ...


def with_both(run: RunContext, job: Job) -> None: ...


async def asynchronous(job: Job) -> None: ...


def untyped(job): ...


def hidden_type(job: Hidden) -> None: ...


def two_inputs(job: Job, other: Job) -> None: ...


def two_runs(run: RunContext, again: RunContext) -> None: ...


def starred(*jobs: Job) -> None: ...


def keywords(**jobs: Job) -> None: ...


def positional(job: Job, /) -> None: ...


class CallableThing:
    def __call__(self, job: Job) -> None: ...


def make(
    function: Callable[..., Any], *, name: str | None = None, aliases: list[str] | None = None, into: Registry
) -> Workflow:
    found = Workflow(function, name=name, aliases=aliases or [])
    into.register(found)
    return found


@pytest.fixture
def fresh() -> Registry:
    return Registry()


def test_a_workflow_is_named_by_app_label_and_function():
    assert registry.of(workflows.copy).name == "testapp.copy"
    assert registry.get("testapp.copy").function is workflows.copy


def test_outside_an_app_the_first_part_of_the_module_names_it(fresh):
    assert make(plain, into=fresh).name == "tests.plain"


def test_a_stated_name_wins(fresh):
    assert make(plain, name="shop.ping", into=fresh) is fresh.get("shop.ping")
    assert fresh.names() == ["shop.ping"]


def test_a_former_name_still_finds_the_workflow(fresh):
    found = make(plain, name="shop.ping", aliases=["shop.pong", "old.ping"], into=fresh)
    assert fresh.get("old.ping") is fresh.get("shop.pong") is found
    assert fresh.names() == ["old.ping", "shop.ping", "shop.pong"]


def test_a_decorated_function_stays_a_function():
    assert workflows.copy(workflows.Slice("users", 3)) == {"table": "users", "rows": 3}
    assert isinstance(getattr(workflows.copy, NAME_MARK), Workflow)


def test_a_workflow_is_found_by_function_and_by_name():
    assert registry.of(workflows.ping) is registry.of("testapp.ping") is registry.get("testapp.ping")


@pytest.mark.parametrize("wanted", ["testapp.unheard_of", "os.system", "tests.testapp.workflows.ping", "", plain])
def test_what_is_not_registered_is_refused_naming_what_is(wanted):
    with pytest.raises(UnknownWorkflow, match="@workflow") as caught:
        registry.of(wanted)
    assert caught.value.name == (wanted if isinstance(wanted, str) else "plain")
    assert "testapp.copy" in caught.value.known


def test_a_workflow_of_another_registry_is_unknown(fresh):
    with pytest.raises(UnknownWorkflow):
        fresh.of(workflows.copy)


def test_a_second_workflow_of_the_same_name_is_refused_naming_both_places(fresh):
    first = make(plain, name="shop.ping", into=fresh)
    with pytest.raises(InvalidWorkflow, match=r"Two workflows are named 'shop\.ping'") as caught:
        make(with_input, name="shop.ping", into=fresh)
    assert "test_registry.plain" in str(caught.value)
    assert "test_registry.with_input" in str(caught.value)
    assert fresh.get("shop.ping") is first


def test_an_alias_that_is_taken_is_refused(fresh):
    first = make(plain, name="shop.ping", into=fresh)
    with pytest.raises(InvalidWorkflow, match="Two workflows"):
        make(with_input, name="shop.pong", aliases=["shop.ping"], into=fresh)
    assert fresh.get("shop.ping") is first


def test_a_refused_workflow_leaves_no_name_behind(fresh):
    make(plain, name="shop.ping", into=fresh)
    with pytest.raises(InvalidWorkflow):
        make(with_input, name="shop.pong", aliases=["shop.ping"], into=fresh)
    assert fresh.names() == ["shop.ping"]


def test_a_refusal_does_not_stop_later_registrations(fresh):
    make(plain, name="shop.ping", into=fresh)
    with pytest.raises(InvalidWorkflow):
        make(with_input, name="shop.ping", into=fresh)
    later = make(with_run, name="shop.later", into=fresh)
    assert fresh.get("shop.later") is later


@pytest.mark.parametrize("name", [" shop.ping", "shop.ping ", "shop\nping", "x" * 201])
def test_a_name_that_cannot_be_stored_is_refused(fresh, name):
    with pytest.raises(InvalidWorkflow, match="not a valid workflow name"):
        make(plain, name=name, into=fresh)
    assert fresh.names() == []


def test_the_longest_name_fits(fresh):
    assert make(plain, name="x" * 200, into=fresh) is fresh.get("x" * 200)


@pytest.mark.parametrize(
    ("function", "keywords"),
    [
        (plain, {}),
        (with_input, {"job": Job("a")}),
        (with_run, {"run": RUN}),
        (with_both, {"run": RUN, "job": Job("a")}),
    ],
)
def test_a_workflow_is_called_with_what_it_asks_for(function, keywords, fresh):
    assert make(function, into=fresh).arguments(Job("a"), run=lambda: RUN) == keywords


@pytest.mark.parametrize(("function", "is_async"), [(asynchronous, True), (plain, False)])
def test_an_async_workflow_is_known_as_one(function, is_async, fresh):
    assert make(function, into=fresh).is_async is is_async


def test_a_workflow_without_an_input_takes_none_only(fresh):
    contract = make(with_run, into=fresh).input_type
    assert contract.dump(None, max_bytes=100) is None
    with pytest.raises(InvalidInput, match=r"tests\.with_run"):
        contract.dump({"table": "a"}, max_bytes=100)


def test_the_annotation_is_the_contract(fresh):
    contract = make(with_both, into=fresh).input_type
    assert contract.load(contract.dump(Job("a"), max_bytes=100)) == Job("a")


@pytest.mark.parametrize("function", [starred, keywords, positional], ids=lambda function: function.__name__)
def test_a_parameter_that_cannot_be_named_is_refused_at_once(function):
    with pytest.raises(InvalidWorkflow, match=function.__name__):
        Workflow(function, name=None, aliases=())


@pytest.mark.parametrize("function", [two_inputs, two_runs], ids=lambda function: function.__name__)
def test_more_than_one_input_or_run_is_refused(function, fresh):
    found = make(function, into=fresh)
    with pytest.raises(InvalidWorkflow, match=function.__name__):
        _ = found.signature


@pytest.mark.parametrize(
    ("function", "words"), [(untyped, "has no type for its parameter 'job'"), (hidden_type, "TYPE_CHECKING")]
)
def test_an_input_without_a_known_type_is_refused_with_the_remedy(function, words, fresh):
    found = make(function, into=fresh)
    with pytest.raises(InvalidWorkflow, match=words):
        found.input_type.dump(None, max_bytes=100)


@pytest.mark.parametrize(
    "thing",
    [
        pytest.param(Job, id="class"),
        pytest.param(
            functools.partial(with_input, Job("a")),
            id="partial",
        ),
        pytest.param(
            CallableThing(),
            id="callable object",
        ),
    ],
)
def test_only_a_function_is_a_workflow(thing):
    with pytest.raises(InvalidWorkflow, match="takes a function"):
        Workflow(thing, name=None, aliases=())
