"""What the models share: the manager that stays on our database, and fields for references without constraint."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any, TypeVar

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import models, router
from django.db.models import Q
from django.db.models.fields.json import KeyTransform

from chainsched.conf import get_config
from chainsched.domain.inputs import read_document

M = TypeVar("M", bound=models.Model)


class PinnedManager(models.Manager[M]):
    """Sends every query to the database that ``CHAINSCHED['DATABASE']`` names, past any router.

    A router that sends reads to a replica would otherwise let decisions rest on rows that are not yet there.
    """

    def get_queryset(self) -> models.QuerySet[M]:
        queryset = super().get_queryset()
        return queryset if self._db else queryset.using(get_config().database)


def choices(kind: type[enum.Enum]) -> list[tuple[Any, str]]:
    """A domain enum as the choices of a field."""
    return [(member.value, member.name.replace("_", " ").capitalize()) for member in kind]


def values(members: Iterable[enum.Enum]) -> list[Any]:
    """The plain values of enum members, so that migrations do not refer to our code."""
    return [member.value for member in members]


def one_of(field: str, kind: type[enum.Enum], *, name: str) -> models.CheckConstraint:
    """The check that a column holds only what its enum knows."""
    return models.CheckConstraint(condition=Q(**{f"{field}__in": values(kind)}), name=name)


def reference(to: type[models.Model] | str, *, related_name: str = "+", help_text: str) -> models.ForeignKey[Any, Any]:
    """A reference that outlives what it names: no constraint, no index of its own, nothing done on delete."""
    return models.ForeignKey(
        to,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        null=True,
        blank=True,
        related_name=related_name,
        help_text=help_text,
    )


class StoredInput(models.JSONField):
    """A JSON field that reads what Python cannot, such as a number of 5,000 digits, as Unreadable.

    Django's own raises, which costs all rows of a query for one. To migrations it is a field like any other.
    """

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if value is None or isinstance(expression, KeyTransform):
            return super().from_db_value(value, expression, connection)
        return read_document(value)

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


def with_person(name: str) -> models.Prefetch[Any]:
    """What reads rows together with the users that a column names, from where users are.

    Django would look for them in the database of the rows, unless a router knows better.
    """
    people = get_user_model()._base_manager  # noqa: SLF001 - as Django itself reads what a column names
    return models.Prefetch(name, people.using(router.db_for_read(people.model)))


def forget(collector: Any, field: Any, rows: models.QuerySet[Any], using: str) -> None:
    """Let rows name nobody when a user is deleted, also where users are in another database."""
    models.SET_NULL(collector, field, rows.using(get_config().database), using)


# The rows are not read; one statement takes the name away.
forget.lazy_sub_objs = True  # type: ignore[attr-defined]


class PersonKey(models.ForeignKey[Any, Any]):
    """A reference to a user that ``forget`` clears; to migrations, which have no use for it, one like any other."""

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.ForeignKey", args, {**kwargs, "on_delete": models.SET_NULL}


def person(*, help_text: str) -> models.ForeignKey[Any, Any]:
    """A reference to a user, who may live in another database than the one that CHAINSCHED names."""
    return PersonKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=forget,
        db_constraint=False,
        related_name="+",
        help_text=help_text,
    )
