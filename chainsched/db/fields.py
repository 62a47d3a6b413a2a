"""Shared by the models: the manager that always uses our database, and fields for references without constraint."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from typing import Any, TypeVar

from django.conf import settings
from django.contrib.auth import get_user_model
from django.db import models, router
from django.db.models import Q
from django.db.models.fields.json import KeyTransform

from chainsched.conf import get_config
from chainsched.domain.inputs import read_document
from chainsched.domain.known import Kinds

M = TypeVar("M", bound=models.Model)


class PinnedManager(models.Manager[M]):
    """Sends every query to the database that ``CHAINSCHED['DATABASE']`` names, regardless of any router.

    If a router sent reads to a replica, decisions would rest on a state that lacks the newest rows.
    """

    def get_queryset(self) -> models.QuerySet[M]:
        queryset: Any = super().get_queryset()
        # As using() does it to a copy: this one is new, and thousands are made in a second.
        queryset._db = self._db or get_config().database  # noqa: SLF001
        return queryset  # type: ignore[no-any-return]


def choices(kind: type[enum.Enum]) -> list[tuple[Any, str]]:
    """A domain enum as the choices of a field."""
    return [(member.value, member.name.replace("_", " ").capitalize()) for member in kind]


def values(members: Iterable[enum.Enum]) -> list[Any]:
    """The plain values of enum members, so that migrations do not refer to our code."""
    return [member.value for member in members]


def one_of(field: str, kind: type[enum.Enum], *, name: str) -> models.CheckConstraint:
    """The check that a column holds only values of its enum."""
    return models.CheckConstraint(condition=Q(**{f"{field}__in": values(kind)}), name=name)


def knows(kinds: Kinds, *, path: str = "") -> Q:
    """That these columns hold values of their enums, or nothing.

    While two versions run beside each other, the newer one may have widened the check. Queries pass over its rows.
    """
    return Q(**{f"{path}{column}__in": _known_values(kind) for column, kind in kinds.items()})


def _known_values(kind: type[enum.Enum]) -> list[Any]:
    return list(dict.fromkeys([*values(kind), *([""] if issubclass(kind, str) else [])]))


def reference(to: type[models.Model] | str, *, related_name: str = "+", help_text: str) -> models.ForeignKey[Any, Any]:
    """A reference that may stay after its row is deleted: no constraint, no index of its own, no action on delete."""
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
    """A JSON field that returns Unreadable for a value that Python cannot read, such as a number of 5,000 digits.

    Django's own field raises, so that one such row fails the whole query. In migrations it is a plain JSONField.
    """

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if value is None or isinstance(expression, KeyTransform):
            return super().from_db_value(value, expression, connection)
        return read_document(value)

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.JSONField", args, kwargs


class IdList(models.Field):  # type: ignore[type-arg]
    """A list of ids: an array on PostgreSQL, JSON text on SQLite. It has no index."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"default": list, "blank": True, "editable": False, **kwargs})

    def db_type(self, connection: Any) -> str:
        return "bigint[]" if connection.vendor == "postgresql" else "text"

    def get_db_converters(self, connection: Any) -> list[Any]:
        # The driver of PostgreSQL reads an array as a list.
        return [] if connection.vendor == "postgresql" else super().get_db_converters(connection)

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if value is None or isinstance(value, str):
            return value
        return list(value) if connection.vendor == "postgresql" else json.dumps(list(value))

    def to_python(self, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    def value_to_string(self, obj: Any) -> str:
        return json.dumps(self.value_from_object(obj))


def with_users(name: str) -> models.Prefetch[Any]:
    """A prefetch of the users that a column refers to, from the database that holds the users.

    Django would look for them in the database of the rows, unless a router says otherwise.
    """
    users = get_user_model()._base_manager  # noqa: SLF001 - the manager that Django itself uses for foreign keys
    return models.Prefetch(name, users.using(router.db_for_read(users.model)))


def clear_user(collector: Any, field: Any, rows: models.QuerySet[Any], using: str) -> None:
    """Set the reference to NULL when a user is deleted, also if users are in another database."""
    models.SET_NULL(collector, field, rows.using(get_config().database), using)


# The rows are not read; one statement clears the column.
clear_user.lazy_sub_objs = True  # type: ignore[attr-defined]


class UserKey(models.ForeignKey[Any, Any]):
    """A reference to a user that ``clear_user`` clears; in migrations, which do not need that, a plain ForeignKey."""

    def deconstruct(self) -> Any:
        name, _, args, kwargs = super().deconstruct()
        return name, "django.db.models.ForeignKey", args, {**kwargs, "on_delete": models.SET_NULL}


def user_reference(*, help_text: str) -> models.ForeignKey[Any, Any]:
    """A reference to a user, who may be stored in another database than the one that CHAINSCHED names."""
    return UserKey(
        settings.AUTH_USER_MODEL,
        null=True,
        blank=True,
        on_delete=clear_user,
        db_constraint=False,
        related_name="+",
        help_text=help_text,
    )
