"""The ``CHAINSCHED`` setting as one frozen, validated value.

Every problem is collected before anything is raised, so that one run of the checks shows them all.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from typing import Any

from django.conf import settings
from django.core.signals import setting_changed

from chainsched.domain.states import TERMINAL_STATES, ExecutionState, MisfirePolicy
from chainsched.exceptions import ConfigurationError

SETTING_NAME = "CHAINSCHED"
TASK_SERVERS = ("database", "inline")
MAX_OWNER_LENGTH = 100
MAX_SECONDS = 10 * 365 * 24 * 3600
MAX_NUMBER = 2**31 - 1

Rule = Callable[[Any], str | None]
Resolver = Callable[[str], str | None]


@dataclass(frozen=True)
class SeedConfig:
    """When declared schedules are written to the database."""

    on_start: bool = True
    post_migrate: bool = True


@dataclass(frozen=True)
class HeaderNames:
    """Under which names the ids of the correlation scope travel with messages."""

    correlation_id: str = "chainsched-corr-id"
    sequence: str = "chainsched-corr-seq"
    causation_id: str = "chainsched-causation-id"
    root_correlation_id: str = "chainsched-root-corr-id"


def _seconds(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= MAX_SECONDS:
        return "must be a number of seconds above 0, ten years at most"
    return None


def _seconds_or_zero(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_SECONDS:
        return "must be a number of seconds, 0 or more, ten years at most"
    return None


def _at_least(minimum: int, *, or_none: bool = False) -> Rule:
    def rule(value: object) -> str | None:
        if value is None and or_none:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= MAX_NUMBER:
            return f"must be a whole number of at least {minimum}" + (" or None" if or_none else "")
        return None

    return rule


def _within(lowest: int, highest: int) -> Rule:
    def rule(value: object) -> str | None:
        if isinstance(value, bool) or not isinstance(value, int) or not lowest <= value <= highest:
            return f"must be a whole number from {lowest} to {highest}"
        return None

    return rule


def _one_of(*choices: str) -> Rule:
    def rule(value: object) -> str | None:
        return None if value in choices else "must be one of " + ", ".join(repr(str(choice)) for choice in choices)

    return rule


def _boolean(value: object) -> str | None:
    return None if isinstance(value, bool) else "must be True or False"


def _name(value: object) -> str | None:
    is_fine = isinstance(value, str) and value.strip() and len(value) <= MAX_OWNER_LENGTH
    return None if is_fine else f"must be a text of 1 to {MAX_OWNER_LENGTH} characters"


def _alias(value: object) -> str | None:
    if not isinstance(value, str) or value not in settings.DATABASES:
        return "must name one of DATABASES (" + ", ".join(settings.DATABASES) + ")"
    return None


def _multiplier(value: object) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < float("inf"):
        return "must be a number of at least 1"
    return None


def _retention(value: object) -> str | None:
    if isinstance(value, Mapping):
        return _first_complaint(value, _is_retention_key, _retention_of_one)
    return _retention_of_one(value)


def _retention_of_one(value: object) -> str | None:
    if value is None or _seconds(value) is None:
        return None
    return "must be None or a number of seconds above 0, ten years at most"


def _is_retention_key(key: str) -> str | None:
    workflow, colon, state = key.partition(":")
    if not workflow.strip() or (colon and state not in TERMINAL_STATES):
        states = ", ".join(TERMINAL_STATES)
        return f"has the keys '*', a state ({states}), a workflow, or 'workflow:state'"
    return None


def _keep_last(value: object) -> str | None:
    if isinstance(value, Mapping):
        return _first_complaint(value, _is_workflow_key, _at_least(0))
    return _at_least(0)(value)


def _is_workflow_key(key: str) -> str | None:
    is_fine = key.strip() and ":" not in key and key not in tuple(ExecutionState)
    return None if is_fine else "has the keys '*' or a workflow"


def _callable_or_none(value: object) -> str | None:
    return None if value is None or callable(value) else "must be a function that takes the name of a secret, or None"


def _first_complaint(value: Mapping[Any, Any], key_rule: Rule, rule: Rule) -> str | None:
    """The first thing wrong with a mapping: one of its keys, or the value of one."""
    for key, item in value.items():
        if complaint := key_rule(key if isinstance(key, str) else ""):
            return complaint
        if complaint := rule(item):
            return f"at {key!r} {complaint}"
    return None


def _option(default: Any, rule: Rule) -> Any:
    """One option: its default and the rule that a project's value must pass."""
    return field(default=default, metadata={"rule": rule})


def _default_owner() -> str:
    """Name the project by the first part of its settings module."""
    # Overridden settings, as in tests, do not know their module; the environment still does.
    module = getattr(settings, "SETTINGS_MODULE", None) or os.environ.get("DJANGO_SETTINGS_MODULE") or "project"
    return str(module).partition(".")[0]


@dataclass(frozen=True)
class Config:
    """What a project may set, with the defaults. The upper-case names are the keys of the setting."""

    database: str = _option("default", _alias)
    owner: str = _option("", _name)
    task_server: str = _option("database", _one_of(*TASK_SERVERS))
    seed: SeedConfig = field(default=SeedConfig(), metadata={"rule": None})
    manager_interval: float = _option(5, _seconds)
    dispatcher_interval: float = _option(5, _seconds)
    worker_interval: float = _option(1, _seconds)
    reap_interval: float = _option(5, _seconds)
    reconcile_interval: float = _option(300, _seconds)
    cleanup_interval: float = _option(60, _seconds)
    bulk_decisions_interval: float = _option(5, _seconds)
    listen: bool = _option(True, _boolean)
    max_active_jobs: int | None = _option(100, _at_least(1, or_none=True))
    dependent_priority_boost: int = _option(16, _within(0, 31))
    max_retries: int = _option(3, _at_least(0))
    retry_delay: float = _option(300, _seconds_or_zero)
    retry_multiplier: float = _option(2.0, _multiplier)
    max_retry_delay: float = _option(3600, _seconds_or_zero)
    job_timeout: int = _option(1200, _at_least(1))
    kill_grace: float = _option(5, _seconds)
    heartbeat_interval: float = _option(5, _seconds)
    process_expiry: float = _option(30, _seconds)
    shutdown_timeout: float = _option(30, _seconds)
    max_jobs_per_child: int = _option(10_000, _at_least(1))
    max_child_memory: int | None = _option(None, _at_least(1, or_none=True))
    misfire_policy: str = _option(MisfirePolicy.RUN_ONCE, _one_of(*MisfirePolicy))
    misfire_threshold: float = _option(60, _seconds_or_zero)
    max_job_depth: int = _option(5, _at_least(0))
    max_fan_out: int = _option(10, _at_least(1))
    max_input_bytes: int = _option(1024 * 1024, _at_least(1))
    max_output_bytes: int = _option(1024 * 1024, _at_least(1))
    retention: float | Mapping[str, float | None] | None = _option(30 * 24 * 3600, _retention)
    keep_last: int | Mapping[str, int] = _option(10, _keep_last)
    secrets: Resolver | None = field(default=None, metadata={"rule": _callable_or_none})
    headers: HeaderNames = field(default=HeaderNames(), metadata={"rule": None})


OPTIONS = {option.name.upper(): option for option in fields(Config)}
# Options that are dicts themselves: what they become, and the rule for each of their values.
NESTED: dict[str, tuple[type[SeedConfig | HeaderNames], Rule]] = {
    "SEED": (SeedConfig, _boolean),
    "HEADERS": (HeaderNames, _name),
}


@functools.cache
def get_config() -> Config:
    """The project's settings over the defaults; raises ConfigurationError naming every problem."""
    stated = getattr(settings, SETTING_NAME, {})
    problems = find_problems(stated)
    if problems:
        raise ConfigurationError(problems)
    values = {OPTIONS[key].name: value for key, value in stated.items()}
    for key, (kind, _) in NESTED.items():
        if key in stated:
            values[OPTIONS[key].name] = kind(**stated[key])
    values.setdefault("owner", _default_owner())
    return Config(**values)


def find_problems(stated: object) -> list[str]:
    """Everything that is wrong with the setting, one sentence each; empty if all is well."""
    if not isinstance(stated, Mapping):
        return [f"{SETTING_NAME} must be a dict, not {type(stated).__name__}."]
    found = {key: _problems_of(key, value) for key, value in stated.items()}
    fine = {key: value for key, value in stated.items() if not found[key]}
    return [problem for problems in found.values() for problem in problems] + _contradictions(fine)


def _problems_of(key: object, value: object) -> list[str]:
    if not isinstance(key, str) or key not in OPTIONS:
        return [_unknown(key)]
    if key in NESTED:
        return _nested_problems(key, value)
    complaint = OPTIONS[key].metadata["rule"](value)
    return [f"{SETTING_NAME}[{key!r}] {complaint}, not {value!r}."] if complaint else []


def _unknown(key: object) -> str:
    near = get_close_matches(key.upper(), OPTIONS, n=1) if isinstance(key, str) else []
    hint = f" Did you mean {near[0]!r}?" if near else " The reference lists the options."
    return f"{SETTING_NAME} has no option {key!r}.{hint}"


def _nested_problems(option: str, value: object) -> list[str]:
    kind, rule = NESTED[option]
    known = [part.name for part in fields(kind)]
    if not isinstance(value, Mapping):
        return [f"{SETTING_NAME}[{option!r}] must be a dict with the keys {', '.join(known)}, not {value!r}."]
    problems = [
        f"{SETTING_NAME}[{option!r}] has no key {key!r}; it knows {', '.join(known)}."
        for key in value
        if key not in known
    ]
    problems += [
        f"{SETTING_NAME}[{option!r}][{key!r}] {complaint}, not {part!r}."
        for key, part in value.items()
        if key in known and (complaint := rule(part))
    ]
    return problems


def _contradictions(stated: Mapping[str, Any]) -> list[str]:
    """Values that are fine alone and wrong together."""

    def value(key: str) -> Any:
        return stated.get(key, OPTIONS[key].default)

    problems = []
    if value("PROCESS_EXPIRY") < 2 * value("HEARTBEAT_INTERVAL"):
        problems.append(
            f"{SETTING_NAME}['PROCESS_EXPIRY'] ({value('PROCESS_EXPIRY')}) must be at least twice HEARTBEAT_INTERVAL "
            f"({value('HEARTBEAT_INTERVAL')}), or one late beat makes a live process lose its jobs."
        )
    if value("MAX_RETRY_DELAY") < value("RETRY_DELAY"):
        problems.append(
            f"{SETTING_NAME}['MAX_RETRY_DELAY'] ({value('MAX_RETRY_DELAY')}) is below RETRY_DELAY "
            f"({value('RETRY_DELAY')}); raise the one or lower the other."
        )
    return problems


def _forget_config(*, setting: str, **_kwargs: object) -> None:
    if setting in (SETTING_NAME, "DATABASES"):
        get_config.cache_clear()


setting_changed.connect(_forget_config, dispatch_uid="chainsched.conf")
