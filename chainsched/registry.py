"""The workflows that a process can run, by name.

Only functions that are registered here ever run: nothing is imported by a stored path.
"""

from __future__ import annotations

import inspect
import threading
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, overload

from django.apps import apps

from chainsched.domain.inputs import InputType
from chainsched.domain.routing import check_queue
from chainsched.domain.run_context import RunContext
from chainsched.exceptions import InvalidWorkflow, UnknownWorkflow

F = TypeVar("F", bound=Callable[..., Any])
# A decorated function, or the name that it is registered under.
WorkflowRef = Callable[..., Any] | str

NAME_MARK = "__chainsched_workflow__"
MAX_NAME_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a workflow: the names of its input and of its RunContext, if it has them."""

    input_name: str | None
    run_name: str | None


class Workflow:
    """A registered function: its name, its typed input, and how to call it."""

    def __init__(
        self, function: Callable[..., Any], *, name: str | None, aliases: Sequence[str], queue: str | None = None
    ) -> None:
        if not inspect.isfunction(function):
            raise InvalidWorkflow(f"@workflow takes a function, not {function!r}.")
        self.function = function
        self.aliases = tuple(aliases)
        # The queue of its jobs, unless a manifest states another one; empty if it states none.
        self.queue = _checked_queue(queue, function)
        self._stated_name = name
        self._described = f"{function.__module__}.{function.__qualname__}"
        self._check_parameters()

    @cached_property
    def name(self) -> str:
        """The given name, or ``<app label>.<function>``; known once Django's apps are."""
        return self._stated_name or f"{_app_label(self.function.__module__)}.{self.function.__name__}"

    @cached_property
    def is_async(self) -> bool:
        return inspect.iscoroutinefunction(self.function)

    @cached_property
    def signature(self) -> Signature:
        """Which parameter takes the input and which the RunContext."""
        hints = self._hints()
        names = list(inspect.signature(self.function).parameters)
        run_names = [name for name in names if hints.get(name) is RunContext]
        input_names = [name for name in names if name not in run_names]
        if len(input_names) > 1 or len(run_names) > 1:
            raise InvalidWorkflow(
                f"Workflow {self._described} takes {', '.join(names)}; a workflow takes at most one input and "
                "one parameter annotated RunContext. Put the inputs into one dataclass."
            )
        return Signature(input_name=next(iter(input_names), None), run_name=next(iter(run_names), None))

    @cached_property
    def input_type(self) -> InputType:
        """The contract of its input; a workflow without an input parameter takes None only."""
        return InputType(self._input_annotation, workflow=self.name)

    def arguments(self, value: Any, *, run: Callable[[], RunContext]) -> dict[str, Any]:
        """The keyword arguments to call the function with; ``run`` makes its context, if it takes one."""
        signature = self.signature
        given = {} if signature.input_name is None else {signature.input_name: value}
        return given if signature.run_name is None else {**given, signature.run_name: run()}

    def _input_annotation(self) -> Any:
        if self.signature.input_name is None:
            return None
        annotation = self._hints().get(self.signature.input_name)
        if annotation is None:
            raise InvalidWorkflow(
                f"Workflow {self._described} has no type for its parameter {self.signature.input_name!r}. "
                "Annotate it, for example with a dataclass."
            )
        return annotation

    def _hints(self) -> dict[str, Any]:
        try:
            return typing.get_type_hints(self.function)
        except NameError as error:
            raise InvalidWorkflow(
                f"Workflow {self._described} has an annotation that cannot be resolved: {error}. "
                "Import it in the module, outside TYPE_CHECKING."
            ) from error

    def _check_parameters(self) -> None:
        variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY)
        for parameter in inspect.signature(self.function).parameters.values():
            if parameter.kind in variadic:
                raise InvalidWorkflow(
                    f"Workflow {self._described} has the parameter {parameter}; name the input as a plain parameter."
                )


class Registry:
    """All workflows of this process. Names are resolved at the first lookup, after Django's apps are known."""

    def __init__(self) -> None:
        self._workflows: list[Workflow] = []
        self._index: dict[str, Workflow] = {}
        self._indexed = 0
        self._lock = threading.RLock()

    def register(self, workflow: Workflow) -> None:
        with self._lock:
            self._workflows.append(workflow)
            if apps.apps_ready:
                self._settle()

    def get(self, name: str) -> Workflow:
        """The workflow of this name or alias; raises UnknownWorkflow."""
        self._settle()
        try:
            return self._index[name]
        except KeyError:
            raise UnknownWorkflow(name, known=self.names()) from None

    def of(self, function: WorkflowRef) -> Workflow:
        """The workflow behind a decorated function or a name."""
        if isinstance(function, str):
            return self.get(function)
        workflow = getattr(function, NAME_MARK, None)
        if not isinstance(workflow, Workflow) or workflow not in self._workflows:
            described = getattr(function, "__qualname__", repr(function))
            raise UnknownWorkflow(described, known=self.names() if apps.apps_ready else ())
        return workflow

    def queue_of(self, name: str) -> str:
        """The queue that a workflow states; empty if it states none, or if this process does not know the workflow."""
        self._settle()
        found = self._index.get(name)
        return found.queue if found else ""

    def queues(self) -> set[str]:
        """The queues that workflows state."""
        self._settle()
        return {found.queue for found in self._index.values() if found.queue}

    def names(self) -> list[str]:
        """Every name and alias that this process can run."""
        self._settle()
        return sorted(self._index)

    def _settle(self) -> None:
        if self._indexed == len(self._workflows):
            return
        with self._lock:
            while self._indexed < len(self._workflows):
                workflow = self._workflows[self._indexed]
                names = (workflow.name, *workflow.aliases)
                try:
                    for name in names:
                        self._check_name(name, workflow)
                except InvalidWorkflow:
                    self._workflows.remove(workflow)
                    raise
                self._index |= dict.fromkeys(names, workflow)
                self._indexed += 1

    def _check_name(self, name: str, workflow: Workflow) -> None:
        if not name or len(name) > MAX_NAME_LENGTH or name != name.strip() or not name.isprintable():
            raise InvalidWorkflow(
                f"{name!r} is not a valid workflow name: use 1 to {MAX_NAME_LENGTH} printable characters."
            )
        if (holder := self._index.get(name)) is not None:
            raise InvalidWorkflow(
                f"Two workflows are named {name!r}: {_place(holder.function)} and {_place(workflow.function)}. "
                "Give one of them another name with @workflow(name=…)."
            )


registry = Registry()


@overload
def workflow(function: F, /) -> F: ...
@overload
def workflow(*, name: str | None = None, aliases: Sequence[str] = (), queue: str | None = None) -> Callable[[F], F]: ...
def workflow(
    function: F | None = None, /, *, name: str | None = None, aliases: Sequence[str] = (), queue: str | None = None
) -> F | Callable[[F], F]:
    """Register a function as a workflow; it stays an ordinary function that can be called and tested.

    ``aliases`` are former names: rows that were queued under them still run. ``queue`` is the queue that workers take
    its jobs from, unless a manifest states another one.
    """

    def register(function: F) -> F:
        found = Workflow(function, name=name, aliases=aliases, queue=queue)
        setattr(function, NAME_MARK, found)
        registry.register(found)
        return function

    return register if function is None else register(function)


def _checked_queue(queue: str | None, function: Callable[..., Any]) -> str:
    try:
        return "" if queue is None else check_queue(queue)
    except ValueError as error:
        raise InvalidWorkflow(f"Workflow {_place(function)}: queue {error} (it is {queue!r:.200}).") from error


def _app_label(module: str) -> str:
    config = apps.get_containing_app_config(module)
    return config.label if config else module.partition(".")[0]


def _place(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"
