"""The ``CHAINSCHED`` setting as one frozen, validated value.

Every problem is collected before anything is raised, so that one run of the checks shows them all.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Annotated, Any, Final, cast, get_type_hints

from django.apps import apps
from django.conf import settings
from django.core.signals import setting_changed
from django.db import connections
from pydantic import BeforeValidator, Discriminator, Field, Tag, ValidationError, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError, core_schema

from chainsched.domain.states import TERMINAL_STATES, ExecutionState, MisfirePolicy
from chainsched.exceptions import ConfigurationError

SETTING_NAME = "CHAINSCHED"
SERVERS = {
    "database": "chainsched.servers.database.DatabaseServer",
    "inline": "chainsched.servers.inline.InlineServer",
}
DOTTED_PATH = re.compile(r"\w+(\.\w+)+")
MAX_NAME = 100
MAX_SECONDS = 10 * 365 * 24 * 3600
MAX_NUMBER = 2**31 - 1
SECONDS = "a number of seconds"
WORKFLOW = r"[^:]*[^:\s][^:]*"
WORKFLOW_KEYS = "have as keys '*' or a workflow"
RETENTION_KEYS = f"have as keys '*', a state ({', '.join(TERMINAL_STATES)}), a workflow, or 'workflow:state'"

# Types of errors: a requirement that a value misses, a fact with its remedy, and pydantic's own for an unknown key.
MUST: Final = "must"
FACT: Final = "fact"
UNKNOWN_KEY = ("unexpected_keyword_argument", "invalid_key")
# Parts of the location of an error that are no keys: the branch of a union, and the mark of an error about a key.
NUMBER, BY_KEY, KEY = "<number>", "<by key>", "[key]"


class Rule:
    """Bounds of a type, and the phrase that takes the place of every error that pydantic has for the type."""

    def __init__(self, phrase: str, *, strict: bool | None = True, **bounds: Any) -> None:
        self._phrase = phrase
        self._bounds = Field(strict=strict, **bounds)

    def __get_pydantic_core_schema__(self, source: Any, handler: Callable[[Any], CoreSchema]) -> CoreSchema:
        bounded = handler(Annotated[source, self._bounds])
        return core_schema.custom_error_schema(bounded, custom_error_type=MUST, custom_error_message=self._phrase)


def _must(phrase: str) -> PydanticCustomError:
    return PydanticCustomError(MUST, "{phrase}", {"phrase": phrase})


def _fact(sentence: str) -> PydanticCustomError:
    return PydanticCustomError(FACT, "{sentence}", {"sentence": sentence})


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(str(name)) for name in names)


def _database_alias(value: object) -> str:
    if not isinstance(value, str) or value not in settings.DATABASES:
        raise _must(f"name one of DATABASES ({', '.join(settings.DATABASES)})")
    return value


def _listen(value: object) -> bool | str:
    if isinstance(value, bool) or (isinstance(value, str) and value in settings.DATABASES):
        return value
    raise _must(f"be True, False or one of DATABASES ({', '.join(settings.DATABASES)})")


def _is_postgresql(alias: str) -> bool:
    return connections[alias].vendor == "postgresql"


def _task_server(value: object) -> str:
    if not isinstance(value, str) or not (value in SERVERS or DOTTED_PATH.fullmatch(value)):
        raise _must(f"be one of {_listed(SERVERS)}, or the path of a class, such as 'myproject.servers.MyServer'")
    # The module of a server imports models. AppConfig.ready() drops a configuration that was read before they were
    # loaded, so the next call of get_config() checks the class.
    if value not in SERVERS and apps.models_ready and (fault := _find_fault(value)):
        raise _fact(f"names {value!r}, but {fault}")
    return value


def _find_fault(path: str) -> str | None:
    """Why the path names no class that can be a task server, with the remedy; None if it does."""
    module, _, name = path.rpartition(".")
    try:
        found = getattr(import_module(module), name, None)
    except Exception as error:  # noqa: BLE001 - the project's module may raise anything, and the error is reported
        return f"the module {module} cannot be imported: {type(error).__name__}: {error}. Correct the path or the code."
    if found is None:
        return f"the module {module} has no {name!r}. Correct the name, or define the class there."
    if not isinstance(found, type):
        return f"{name!r} in the module {module} is no class. Name a class that can be called without arguments."
    if missing := _missing_methods(found):
        return f"the class lacks {', '.join(missing)}. Define each; chainsched.servers.TaskServer says what it does."
    return None


def _missing_methods(server: type) -> list[str]:
    """The methods of the interface that the class neither defines nor inherits from a class that does."""
    needed = import_module("chainsched.servers").TaskServer.__abstractmethods__
    abstract: frozenset[str] = getattr(server, "__abstractmethods__", frozenset())
    return sorted(name for name in needed if name in abstract or not callable(getattr(server, name, None)))


def _as_dict(value: object, info: ValidationInfo) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise _must(f"be a dict with the keys {_keys_of(str(info.field_name))}")
    return dict(value)


def _keys_of(option: str) -> str:
    return ", ".join(part.name for part in dataclasses.fields(get_type_hints(Config)[option.lower()]))


def _branch(value: object) -> str:
    return BY_KEY if isinstance(value, Mapping) else NUMBER


def _no_state(key: object) -> object:
    if key in tuple(ExecutionState):
        raise ValueError
    return key


def _default_owner() -> str:
    """Name the project by the first part of its settings module."""
    # Overridden settings, as in tests, do not know their module; the environment still does.
    module = getattr(settings, "SETTINGS_MODULE", None) or os.environ.get("DJANGO_SETTINGS_MODULE") or "project"
    return str(module).partition(".")[0]


Alias = Annotated[str, BeforeValidator(_database_alias)]
Server = Annotated[str, BeforeValidator(_task_server)]
Listen = Annotated[bool | str, BeforeValidator(_listen)]
Flag = Annotated[bool, Rule("be True or False")]
Name = Annotated[str, Rule(f"be a text of 1 to {MAX_NAME} characters", pattern=r"\S", max_length=MAX_NAME)]
Seconds = Annotated[float, Rule(f"be {SECONDS} above 0, ten years at most", gt=0, le=MAX_SECONDS)]
SecondsOrZero = Annotated[float, Rule(f"be {SECONDS}, 0 or more, ten years at most", ge=0, le=MAX_SECONDS)]
SecondsOrNone = Annotated[float | None, Rule(f"be None or {SECONDS} above 0, ten years at most", gt=0, le=MAX_SECONDS)]
Factor = Annotated[float, Rule("be a number of at least 1, and not infinite", ge=1, lt=math.inf)]
Count = Annotated[int, Rule(f"be a whole number from 1 to {MAX_NUMBER}", ge=1, le=MAX_NUMBER)]
CountOrZero = Annotated[int, Rule(f"be a whole number from 0 to {MAX_NUMBER}", ge=0, le=MAX_NUMBER)]
CountOrNone = Annotated[int | None, Rule(f"be None or a whole number from 1 to {MAX_NUMBER}", ge=1, le=MAX_NUMBER)]
Boost = Annotated[int, Rule("be a whole number from 0 to 31", ge=0, le=31)]
Policy = Annotated[MisfirePolicy, Rule(f"be one of {_listed(MisfirePolicy)}", strict=None)]
SecretReader = Callable[[str], str | None]
Resolver = Annotated[SecretReader | None, Rule("be None or a function that takes the name of a secret", strict=None)]

RetentionKey = Annotated[str, Rule(RETENTION_KEYS, pattern=rf"^{WORKFLOW}(:({'|'.join(TERMINAL_STATES)}))?$")]
WorkflowKey = Annotated[str, BeforeValidator(_no_state), Rule(WORKFLOW_KEYS, pattern=f"^{WORKFLOW}$")]
SecondsByKey = Annotated[Mapping[RetentionKey, SecondsOrNone], Tag(BY_KEY)]
CountByKey = Annotated[Mapping[WorkflowKey, CountOrZero], Tag(BY_KEY)]
Retention = Annotated[Annotated[SecondsOrNone, Tag(NUMBER)] | SecondsByKey, Discriminator(_branch)]
KeepLast = Annotated[Annotated[CountOrZero, Tag(NUMBER)] | CountByKey, Discriminator(_branch)]


@dataclass(frozen=True, config={"extra": "forbid"})
class SeedConfig:
    """When declared schedules are written to the database."""

    on_start: Flag = True
    post_migrate: Flag = True


@dataclass(frozen=True, config={"extra": "forbid"})
class HeaderNames:
    """Under which names the ids of the correlation scope travel with messages."""

    correlation_id: Name = "chainsched-corr-id"
    sequence: Name = "chainsched-corr-seq"
    causation_id: Name = "chainsched-causation-id"
    root_correlation_id: Name = "chainsched-root-corr-id"


Seed = Annotated[SeedConfig, BeforeValidator(_as_dict)]
Headers = Annotated[HeaderNames, BeforeValidator(_as_dict)]


@dataclass(frozen=True, kw_only=True, config={"extra": "forbid", "alias_generator": str.upper})
class Config:
    """The settings of a project, with their defaults. The upper-case names are the keys of the setting."""

    database: Alias = Field("default", description="Alias of the database that holds the tables.")
    owner: Name = Field(default_factory=_default_owner, description="Name under which declarations are stored.")
    task_server: Server = Field("database", description="Server that runs jobs: a name or a path.")
    seed: Seed = Field(SeedConfig(), description="When declarations are written to the database.")
    manager_interval: Seconds = Field(5, description="Longest time between two turns of the manager.")
    dispatcher_interval: Seconds = Field(5, description="Longest time between two turns of the dispatcher.")
    worker_interval: Seconds = Field(1, description="Longest time between two turns of a worker.")
    reap_interval: Seconds = Field(5, description="Longest time between two searches for lost processes.")
    reconcile_interval: Seconds = Field(300, description="Longest time between two turns of the reconciler.")
    cleanup_interval: Seconds = Field(60, description="Longest time between two removals of old rows.")
    bulk_decisions_interval: Seconds = Field(5, description="Longest time between two turns of bulk decisions.")
    keep_sessions: Flag = Field(
        True, description="Whether jobs of one child use the same database session, reset in between."
    )
    listen: Listen = Field(
        True,
        description="Whether processes wake each other through PostgreSQL, or the alias over which they listen.",
    )
    max_active_jobs: CountOrNone = Field(100, description="Jobs that run at once, over all hosts.")
    dependent_priority_boost: Boost = Field(16, description="Added to the priority of dependents.")
    max_retries: CountOrZero = Field(3, description="Failures before a job is dead-lettered.")
    retry_delay: SecondsOrZero = Field(300, description="Wait before the first retry.")
    retry_multiplier: Factor = Field(2.0, description="Factor by which each further wait grows.")
    max_retry_delay: SecondsOrZero = Field(3600, validate_default=True, description="Longest wait before a retry.")
    job_timeout: Count = Field(1200, description="Seconds that a run may take.")
    kill_grace: Seconds = Field(5, description="Time that a job has to end before it is killed.")
    heartbeat_interval: Seconds = Field(5, description="Time between two heartbeats of a process.")
    process_expiry: Seconds = Field(30, validate_default=True, description="Silence after which a process is lost.")
    shutdown_timeout: Seconds = Field(30, description="Time that running jobs have to end when a process stops.")
    max_jobs_per_child: Count = Field(10_000, description="Jobs after which a child process is replaced.")
    max_child_memory: CountOrNone = Field(None, description="Bytes of memory above which a child process is replaced.")
    misfire_policy: Policy = Field(MisfirePolicy.RUN_ONCE, description="Whether a late run starts or is skipped.")
    misfire_threshold: SecondsOrZero = Field(60, description="Lateness that still counts as on time.")
    max_job_depth: CountOrZero = Field(5, description="Manifests that may stand above another.")
    max_open_runs: CountOrNone = Field(
        100, description="Open runs of a head; beyond it a new passage goes on in the newest open one. None: no limit."
    )
    max_fan_out: Count = Field(10, description="Open children that a manifest may have.")
    max_input_bytes: Count = Field(1024 * 1024, description="Size of the largest input as JSON.")
    max_output_bytes: Count = Field(1024 * 1024, description="Size of the largest output as JSON.")
    retention: Retention = Field(30 * 24 * 3600, description="Age at which executions are removed.")
    keep_last: KeepLast = Field(10, description="Executions of each manifest that are kept at any age.")
    secrets: Resolver = Field(None, description="Function that finds the value of a secret by its name.")
    headers: Headers = Field(HeaderNames(), description="Names under which ids travel with messages.")

    @field_validator("process_expiry")
    @classmethod
    def _leaves_room_for_a_late_heartbeat(cls, value: float, info: ValidationInfo) -> float:
        interval = info.data.get("heartbeat_interval", 0)
        if value < 2 * interval:
            raise _fact(
                f"({value:.12g}) must be at least twice HEARTBEAT_INTERVAL ({interval:.12g}), or one late heartbeat "
                "makes a live process lose its jobs. Raise the first or lower the second."
            )
        return value

    @field_validator("listen")
    @classmethod
    def _listens_to_postgresql(cls, value: bool | str, info: ValidationInfo) -> bool | str:
        database = info.data.get("database")
        if isinstance(value, str) and database is not None:
            for alias in (value, database):
                if not _is_postgresql(alias):
                    raise _fact(
                        f"names {value!r}, but the database {alias!r} is not PostgreSQL, and only PostgreSQL sends "
                        "notices. Set LISTEN to True or False, or name an alias that connects to the same PostgreSQL."
                    )
        return value

    @field_validator("max_retry_delay")
    @classmethod
    def _is_not_below_the_first_delay(cls, value: float, info: ValidationInfo) -> float:
        first = info.data.get("retry_delay", 0)
        if value < first:
            raise _fact(f"({value:.12g}) is below RETRY_DELAY ({first:.12g}). Raise the first or lower the second.")
        return value

    @property
    def listening_alias(self) -> str:
        """The alias of the connection over which processes listen."""
        return self.listen if isinstance(self.listen, str) else self.database


OPTIONS = tuple(field.name.upper() for field in dataclasses.fields(Config))


@functools.cache
def get_config() -> Config:
    """The project's settings over the defaults; raises ConfigurationError naming every problem."""
    stated = getattr(settings, SETTING_NAME, {})
    if problems := find_problems(stated):
        raise ConfigurationError(problems)
    return Config(**stated)


def load_server() -> type[Any]:
    """The class that TASK_SERVER names. The models must be loaded; get_config() has checked the class then."""
    named = get_config().task_server
    module, _, name = SERVERS.get(named, named).rpartition(".")
    return cast("type[Any]", getattr(import_module(module), name))


def find_problems(stated: object) -> list[str]:
    """Everything that is wrong with the setting, one sentence each; empty if all is well."""
    if not isinstance(stated, Mapping):
        return [f"{SETTING_NAME} must be a dict, not {type(stated).__name__}."]
    unknown = [_unknown(key) for key in stated if key not in OPTIONS]
    try:
        Config(**{key: value for key, value in stated.items() if key in OPTIONS})
    except ValidationError as error:
        return [*map(_sentence, error.errors()), *unknown]
    return unknown


def _unknown(key: object) -> str:
    near = get_close_matches(key.upper(), OPTIONS, n=1) if isinstance(key, str) else []
    hint = f"Did you mean {near[0]!r}?" if near else "The reference lists the options."
    return f"{SETTING_NAME} has no option {key!r}. {hint}"


def _sentence(error: ErrorDetails) -> str:
    """The setting, the fact and the remedy, in words that need no knowledge of pydantic."""
    field, *path = (part for part in error["loc"] if part not in (NUMBER, BY_KEY))
    option = str(field).upper()  # the error of a default has the name of the field
    if error["type"] in UNKNOWN_KEY:
        return f"{SETTING_NAME}[{option!r}] has no key {path[-1]!r}; it has {_keys_of(option)}."
    place = "".join(f"[{part!r}]" for part in (option, *(path[:-2] if KEY in path else path)))
    if error["type"] == FACT:
        return f"{SETTING_NAME}{place} {error['msg']}"
    return f"{SETTING_NAME}{place} must {error['msg']}, not {error['input']!r}."


def _forget_config(*, setting: str, **_kwargs: object) -> None:
    if setting in (SETTING_NAME, "DATABASES"):
        get_config.cache_clear()


setting_changed.connect(_forget_config, dispatch_uid="chainsched.conf")
