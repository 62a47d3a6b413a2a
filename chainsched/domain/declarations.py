"""Declarations of manifests and groups as values; nothing here touches a database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypedDict

from chainsched.domain import cron, exclusions
from chainsched.domain.exclusions import Exclusion
from chainsched.domain.joins import FanIn
from chainsched.domain.known import is_known
from chainsched.domain.routing import check_queue
from chainsched.domain.schedules import CronSchedule, Interval, Once, Schedule
from chainsched.domain.states import MisfirePolicy, RunCondition, ScheduleType
from chainsched.exceptions import DeclarationError, InvalidSchedule

MAX_NAME_LENGTH = 200
# Characters of a value that an error shows.
MAX_SHOWN = 200
MAX_PRIORITY = 31
MAX_COUNT = 1_000_000
MAX_SECONDS = 10 * 365 * 24 * 3600
MAX_PERCENT = 100
JOIN_OPTIONS = frozenset({"at_least", "deadline", "eager", "again_on_late"})
DEPENDENT_OPTIONS = frozenset({"dormant", "run_condition", "fan_in", "depends_on"}) | JOIN_OPTIONS


class Options(TypedDict, total=False):
    """The options of a manifest and its group. An option that is not stated keeps its stored value."""

    group: str
    group_max_active_jobs: int | None
    group_priority: int
    group_enabled: bool
    group_queue: str | None
    queue: str | None
    priority: int | None
    enabled: bool
    max_retries: int | None
    retry_delay: float | timedelta | None
    retry_multiplier: float | None
    max_retry_delay: float | timedelta | None
    timeout: float | timedelta | None
    timezone: str
    jitter: float | timedelta
    exclusions: Sequence[Exclusion]
    misfire: MisfirePolicy | str
    misfire_threshold: float | timedelta | None


class DependentOptions(Options, total=False):
    """The additional options of a dependent."""

    run_condition: RunCondition
    dormant: bool
    depends_on: str | Sequence[str]
    fan_in: bool | str
    at_least: int | str
    deadline: float | timedelta
    eager: bool
    again_on_late: bool


@dataclass(frozen=True, slots=True, init=False)
class ManifestItem:
    """One member of a batch: its id within the batch, its input, its parent or parents, and options of its own."""

    id: str
    input: Any
    depends_on: str | Sequence[str] | None
    options: Mapping[str, Any]

    def __init__(
        self, id: str, input: Any = None, depends_on: str | Sequence[str] | None = None, **options: Any
    ) -> None:
        object.__setattr__(self, "id", id)
        object.__setattr__(self, "input", input)
        object.__setattr__(self, "depends_on", depends_on)
        object.__setattr__(self, "options", dict(options))


Items = Iterable[ManifestItem] | Callable[[], Iterable[ManifestItem]]


@dataclass(frozen=True, slots=True)
class GroupDeclaration:
    """A group by name, with the columns that the code states."""

    name: str
    stated: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A manifest as the code declares it; ``stated`` holds only the columns that the code names."""

    external_id: str
    workflow: str
    input: Any
    group: GroupDeclaration
    stated: Mapping[str, Any]
    parents: tuple[str, ...] = ()
    batch: str = ""

    @property
    def depends_on(self) -> str | None:
        """Its only parent; None without one, and for a join of several."""
        return self.parents[0] if len(self.parents) == 1 else None


def parents_of(depends_on: Any) -> tuple[str, ...]:
    """The parents that ``depends_on`` names: one name, or a list of names; none for None."""
    if depends_on is None or isinstance(depends_on, str):
        return () if depends_on is None else (depends_on,)
    if not isinstance(depends_on, list | tuple | set | frozenset) or not all(
        isinstance(name, str) for name in depends_on
    ):
        raise ValueError(
            f"depends_on is one external id or a list of them, not {shown(depends_on)}; name each parent by its text"
        )
    names = tuple(sorted(depends_on))
    if not names:
        raise ValueError("depends_on is an empty list; name at least one parent, or give it a schedule")
    if len(set(names)) < len(names):
        raise ValueError(f"depends_on names a parent twice: {', '.join(names)}; name each once")
    return names


def schedule_columns(
    schedule: Schedule | None, *, parents: Sequence[str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The columns that make a manifest run; those of other schedule types are emptied."""
    columns: dict[str, Any] = {
        "schedule_type": ScheduleType.ON_DEMAND,
        "cron_expression": "",
        "interval_seconds": None,
        "once_at": None,
        "run_condition": RunCondition.NONE,
        **_PLAIN,
    }
    if parents:
        is_dormant = _named("dormant", options.get("dormant", False), _flag)
        columns["schedule_type"] = ScheduleType.DORMANT_DEPENDENT if is_dormant else ScheduleType.DEPENDENT
        columns["run_condition"] = _condition(options.get("run_condition", RunCondition.SUCCESS))
        columns |= _join_columns(parents, options)
        if is_dormant and columns["is_join"]:
            drop = "fan_in" if columns["fan_in"] else "all parents but one"
            raise ValueError(f"a dormant child runs when it is activated, not when others are done; drop {drop}")
    elif options.get("depends_on", ...) is None:
        raise ValueError("depends_on is None, which names no parent; name one, or leave it out to follow the chain")
    elif DEPENDENT_OPTIONS & options.keys():
        named = ", ".join(sorted(DEPENDENT_OPTIONS & options.keys()))
        raise ValueError(f"{named} is for dependents; declare it with include() or then_include()")
    elif isinstance(schedule, CronSchedule):
        columns |= {"schedule_type": ScheduleType.CRON, "cron_expression": schedule.expression}
    elif isinstance(schedule, Interval):
        columns |= {"schedule_type": ScheduleType.INTERVAL, "interval_seconds": schedule.seconds}
    elif isinstance(schedule, Once):
        columns |= {"schedule_type": ScheduleType.ONCE, "once_at": schedule.at}
    elif schedule is not None:
        raise InvalidSchedule(
            f"{shown(schedule)} is no schedule; write Every.minutes(5), Cron.daily(hour=2) or Once(at=…)."
        )
    return columns


# The columns of a manifest that is no join.
_PLAIN: Mapping[str, Any] = {
    "is_join": False,
    "fan_in": "",
    "at_least": None,
    "at_least_percent": None,
    "deadline_seconds": None,
    "is_eager": False,
    "runs_again_on_late": False,
}


def _join_columns(parents: Sequence[str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a join: a manifest with several parents, or a fan-in. Of a plain dependent they are empty."""
    fan_in = _fan_in(options.get("fan_in", False))
    if fan_in and len(parents) > 1:
        raise ValueError(
            "fan_in waits for what other children of one parent do; with several parents it waits for all of them "
            "anyway. Drop fan_in, or name one parent"
        )
    is_join = bool(fan_in) or len(parents) > 1
    if not is_join:
        if named := sorted(JOIN_OPTIONS & options.keys()):
            raise ValueError(
                f"{', '.join(named)} is for joins. Name several parents with depends_on=[…], or say fan_in=True"
            )
        return dict(_PLAIN)
    at_least, percent = _at_least(options.get("at_least"))
    if not fan_in and at_least is not None and at_least > len(parents):
        raise ValueError(f"at_least={at_least} can never be reached with {len(parents)} parents; give at most as many")
    deadline = options.get("deadline")
    return {
        "is_join": True,
        "fan_in": fan_in,
        "at_least": at_least,
        "at_least_percent": percent,
        "deadline_seconds": None if deadline is None else _named("deadline", deadline, _seconds(1)),
        "is_eager": _named("eager", options.get("eager", False), _flag),
        "runs_again_on_late": _named("again_on_late", options.get("again_on_late", False), _flag),
    }


def _named(option: str, value: Any, read: Callable[[Any], Any]) -> Any:
    try:
        return read(value)
    except ValueError as error:
        raise ValueError(f"{option} {error} (it is {shown(value)})") from error


def _fan_in(value: Any) -> FanIn:
    if isinstance(value, bool):
        return FanIn.SIBLINGS if value else FanIn.NONE
    if isinstance(value, str) and value in (FanIn.SIBLINGS, FanIn.TREE):
        return FanIn(value)
    raise ValueError(f"fan_in must be True, False or 'tree' (it is {shown(value)})")


def _at_least(value: Any) -> tuple[int | None, int | None]:
    """A number of arrivals, or a percentage such as ``"80%"``: at most one of the two."""
    if value is None:
        return None, None
    text = value.removesuffix("%") if isinstance(value, str) and value.endswith("%") else ""
    if text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_PERCENT:
        return None, int(text)
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MAX_COUNT:
        return value, None
    raise ValueError(f'at_least must be a whole number from 1 on, or a percentage such as "80%" (it is {shown(value)})')


def option_columns(options: Mapping[str, Any], *, external_id: str) -> dict[str, Any]:
    """The manifest's columns that the options state; raises DeclarationError naming the manifest and the option."""
    columns: dict[str, Any] = {}
    for name, value in options.items():
        if name in _MANIFEST_OPTIONS:
            column, read = _MANIFEST_OPTIONS[name]
            columns[column] = _read(name, value, read, external_id=external_id)
        elif name not in _GROUP_OPTIONS and name not in {"group", *DEPENDENT_OPTIONS}:
            known = ", ".join(sorted({*_MANIFEST_OPTIONS, *_GROUP_OPTIONS, "group", *DEPENDENT_OPTIONS}))
            raise DeclarationError(
                f"Manifest {external_id!r}: there is no option {name!r}. The options are {known}.",
                external_id=external_id,
            )
    return columns


def group_of(options: Mapping[str, Any], *, default: str, external_id: str) -> GroupDeclaration:
    """The group that the options name, or the default one, with the columns that they state for it."""
    name = _read("group", options.get("group", default), check_name, external_id=external_id)
    stated = {
        column: _read(option, options[option], read, external_id=external_id)
        for option, (column, read) in _GROUP_OPTIONS.items()
        if option in options
    }
    return GroupDeclaration(name, stated)


def merge_groups(declarations: Iterable[Declaration]) -> dict[str, dict[str, Any]]:
    """The columns that are stated for each group; two members that state different values are refused."""
    groups: dict[str, dict[str, Any]] = {}
    for declaration in declarations:
        known = groups.setdefault(declaration.group.name, {})
        for column, value in declaration.group.stated.items():
            if known.setdefault(column, value) != value:
                raise DeclarationError(
                    f"Group {declaration.group.name!r} is declared with {column} = {known[column]!r} and, by manifest "
                    f"{declaration.external_id!r}, with {value!r}. State it once, or the same everywhere.",
                    external_id=declaration.external_id,
                )
    return groups


def shown(value: Any) -> str:
    """A value of the project as code would write it, cut; of a value that cannot be shown its type."""
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - code of the project, or a number of thousands of digits
        return f"a value of type {type(value).__name__} that cannot be shown: {type(error).__name__}"
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"


def check_item_id(value: Any) -> str:
    """The id of a member within its batch, as text."""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise ValueError("must be a text or a whole number")
    return str(value)


def is_storable(text: str) -> bool:
    """Whether a row may hold this text: no database takes a NUL, or half of a character."""
    return "\x00" not in text and not any("\ud800" <= character <= "\udfff" for character in text)


def check_name(value: Any) -> str:
    """A name as people write it: not empty, printable, without space at its ends, at most 200 characters."""
    if not isinstance(value, str) or not value or value != value.strip() or not value.isprintable():
        raise ValueError("must be a printable text without space at its ends")
    if len(value) > MAX_NAME_LENGTH:
        raise ValueError(f"must be at most {MAX_NAME_LENGTH} characters long, not {len(value)}")
    return value


def _read(name: str, value: Any, read: Callable[[Any], Any], *, external_id: str) -> Any:
    try:
        return read(value)
    except (ValueError, TypeError, AttributeError, OverflowError) as error:
        raise DeclarationError(
            f"Manifest {external_id!r}: {name} {error} (it is {shown(value)}).", external_id=external_id
        ) from error


def _condition(value: Any) -> RunCondition:
    known = [condition for condition in RunCondition if condition is not RunCondition.NONE]
    if isinstance(value, bool) or not isinstance(value, int) or value not in known:
        names = ", ".join(f"RunCondition.{item.name}" for item in known)
        raise ValueError(f"run_condition must be one of {names} (it is {shown(value)})")
    return RunCondition(value)


def _priority(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MAX_PRIORITY:
        raise ValueError(f"must be a whole number from 0 to {MAX_PRIORITY}")
    return value


def _count(minimum: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= MAX_COUNT:
            raise ValueError(f"must be a whole number from {minimum} to {MAX_COUNT}")
        return value

    return read


def _seconds(minimum: int) -> Callable[[Any], int]:
    def read(value: Any) -> int:
        seconds = value.total_seconds() if isinstance(value, timedelta) else value
        is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if not is_number or not minimum <= seconds <= MAX_SECONDS or seconds != int(seconds):
            raise ValueError(f"must be a timedelta or a whole number of seconds from {minimum} to {MAX_SECONDS}")
        return int(seconds)

    return read


def _multiplier(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1 <= value < float("inf"):
        raise ValueError("must be a number of at least 1")
    return float(value)


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be True or False")
    return value


def _zone(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("must be an IANA name such as 'Europe/Berlin' or 'UTC'")
    try:
        cron.zone_named(value)
    except InvalidSchedule:
        raise ValueError("must be an IANA name such as 'Europe/Berlin' or 'UTC'") from None
    return str(value)


def _exclusions(value: Any) -> list[dict[str, Any]]:
    if not isinstance(value, list | tuple) or not all(isinstance(entry, Exclusion) for entry in value):
        raise ValueError("must be a list of exclusions such as Exclude.weekdays('sat', 'sun')")
    return exclusions.to_json(value)


def _misfire(value: Any) -> MisfirePolicy:
    if not isinstance(value, str) or not is_known(MisfirePolicy, value):
        raise ValueError("must be " + " or ".join(repr(policy.value) for policy in MisfirePolicy))
    return MisfirePolicy(value)


def _queue(value: Any) -> str:
    """The name of a queue; None stands for no queue of its own."""
    return "" if value is None else check_queue(value)


def _optional(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else read(value)


_MANIFEST_OPTIONS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "priority": ("priority", _optional(_priority)),
    "queue": ("queue", _queue),
    "enabled": ("is_enabled", _flag),
    "max_retries": ("max_retries", _optional(_count(0))),
    "retry_delay": ("retry_delay_seconds", _optional(_seconds(0))),
    "retry_multiplier": ("retry_multiplier", _optional(_multiplier)),
    "max_retry_delay": ("max_retry_delay_seconds", _optional(_seconds(0))),
    "timeout": ("timeout_seconds", _optional(_seconds(1))),
    "timezone": ("timezone", _zone),
    "jitter": ("jitter_seconds", _seconds(0)),
    "exclusions": ("exclusions", _exclusions),
    "misfire": ("misfire_policy", _misfire),
    "misfire_threshold": ("misfire_threshold_seconds", _optional(_seconds(0))),
}

_GROUP_OPTIONS: Mapping[str, tuple[str, Callable[[Any], Any]]] = {
    "group_max_active_jobs": ("max_active_jobs", _optional(_count(1))),
    "group_priority": ("priority", _priority),
    "group_enabled": ("is_enabled", _flag),
    "group_queue": ("queue", _queue),
}
