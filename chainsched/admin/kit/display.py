"""The form of values on the pages: times with seconds, states as badges, rows as links, documents redacted."""

from __future__ import annotations

import enum
import json
from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin import AdminSite
from django.db import models
from django.urls import NoReverseMatch, reverse
from django.utils.html import format_html, format_html_join
from django.utils.http import urlencode
from django.utils.safestring import SafeString
from django.utils.timezone import localtime

from chainsched.domain.joins import FanIn
from chainsched.domain.known import is_known, label, read
from chainsched.domain.redaction import redact, redact_text
from chainsched.domain.schedules import CronSchedule, Interval
from chainsched.domain.states import RunCondition, ScheduleType
from chainsched.exceptions import ChainschedError
from chainsched.models import Manifest, ManifestState

NOTHING = "-"
# Characters of a value that a page shows; the rest is shown on request.
MAX_SHOWN = 64 * 1024
MAX_WORDS = 120


def moment(at: datetime | None) -> SafeString | str:
    """A time to the second in the project's time zone; its ``datetime`` attribute has the exact time."""
    if at is None:
        return NOTHING
    local = in_zone(at)
    shown = (at.isoformat(), f"{local:%Y-%m-%d}", f"{local:%H:%M:%S}")
    return format_html('<time datetime="{}"><span>{}</span> <span>{}</span></time>', *shown)


def in_zone(at: datetime) -> datetime:
    """A time in the project's time zone; in its own zone if the result would be out of range, as for "never"."""
    try:
        return localtime(at)
    except OverflowError:
        return at


def duration(span: timedelta | None) -> str:
    """A duration in its two largest units."""
    if span is None:
        return NOTHING
    seconds = span.total_seconds()
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def badge(kind: str, words: str = "") -> SafeString:
    """A state as a coloured word; the word has the same meaning as the colour."""
    shown = words or kind.replace("_", " ")
    return format_html('<span class="chainsched-badge chainsched-is-{}">{}</span>', kind.replace("_", "-"), shown)


def standing(kind: type[enum.Enum], value: str) -> SafeString:
    """A stored state as a badge; one that only a newer version knows says so."""
    return badge(value) if is_known(kind, value) else badge("unknown", label(kind, value))


def link(site: AdminSite, row: models.Model, words: str = "") -> SafeString | str:
    """A link to the page of a row in this admin, with the name of the row."""
    return link_to(site, type(row), row.pk, words or str(row))


def link_to(site: AdminSite, model: type[models.Model], pk: Any, words: str) -> SafeString | str:
    """A link to the page of the row with this key."""
    return linked(address(site, model, "change", pk), words)


def address(site: AdminSite, model: type[models.Model], view: str, *args: Any, **query: Any) -> str:
    """The address of a view of a model in this admin; empty if there is none."""
    name = f"{site.name}:{model._meta.app_label}_{model._meta.model_name}_{view}"
    try:
        return reverse(name, args=args) + (f"?{urlencode(query)}" if query else "")
    except NoReverseMatch:
        return ""


def linked(url: str, words: str) -> SafeString | str:
    """The words as a link, if there is an address."""
    return format_html('<a href="{}">{}</a>', url, words) if url else words


def shorten(text: str, limit: int = MAX_WORDS) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text[: 4 * limit].split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def document(value: Any) -> str:
    """A document, indented and redacted; a placeholder if it cannot be redacted."""
    return json.dumps(redact(value), indent=2, ensure_ascii=False, sort_keys=True, default=str)


def passage(value: Any) -> str:
    """A payload of any kind as text, redacted: strings unquoted, other values as a document."""
    return redact_text(value) if isinstance(value, str) else document(value)


def state_of(manifest: Manifest) -> ManifestState:
    """The state of a manifest; an empty one if its row was deleted by hand."""
    return getattr(manifest, "state", None) or ManifestState(manifest=manifest)


def schedule_in_words(manifest: Manifest) -> str:
    """The schedule of a manifest, in English."""
    return join_in_words(manifest) if manifest.is_join else _runs_in_words(manifest)


def _runs_in_words(manifest: Manifest) -> str:
    kind = read(ScheduleType, manifest.schedule_type)
    try:
        if kind is ScheduleType.CRON:
            zone = f" ({manifest.timezone})" if manifest.timezone else ""
            return CronSchedule(manifest.cron_expression).describe() + zone
        if kind is ScheduleType.INTERVAL and manifest.interval_seconds:
            return Interval(manifest.interval_seconds).describe()
    except ChainschedError:
        return f"{manifest.cron_expression} (cannot be computed)"
    if kind is ScheduleType.ONCE and manifest.once_at:
        return f"once at {in_zone(manifest.once_at):%Y-%m-%d %H:%M:%S}"
    if kind is ScheduleType.DEPENDENT:
        return f"after {label(RunCondition, manifest.run_condition)} of its parent"
    otherwise = "when triggered" if is_known(ScheduleType, kind) else label(ScheduleType, kind)
    return {ScheduleType.DORMANT_DEPENDENT.value: "when activated"}.get(kind, otherwise)


def join_in_words(manifest: Manifest, *, parent: str = "its parent", members: int | None = None) -> str:
    """The manifests that a join waits for, in words: with its parent's name and their number, where these are known."""
    some = "its parents" if members is None else f"{members:,} manifest{'' if members == 1 else 's'}"
    if manifest.at_least_percent is not None:
        part = f"at least {manifest.at_least_percent} % of"
    elif manifest.at_least is not None:
        part = f"at least {manifest.at_least:,} of"
    else:
        part = "all of"
    if not manifest.fan_in:
        return f"after {part} {some}"
    if not is_known(FanIn, manifest.fan_in):
        return f"fan-in over {label(FanIn, manifest.fan_in)}"
    over = "the other children of" if manifest.fan_in == FanIn.SIBLINGS else "all that ends below"
    needed = "" if part == "all of" else f", if {part} them arrive"
    return f"fan-in over {over} {parent}{needed}"


def listed(values: list[Any]) -> SafeString | str:
    """Values as a numbered list."""
    return (
        format_html("<ol>{}</ol>", format_html_join("", "<li>{}</li>", ((v,) for v in values))) if values else NOTHING
    )


def side_by_side(*values: Any) -> SafeString:
    """Values on one line."""
    return format_html_join(" ", "{}", ((value,) for value in values))
