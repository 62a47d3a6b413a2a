"""Actions on the page of one row, in the form of Django 6.1; for Django 5.2 and 6.0 the missing part is added here.

The attribute of the function is Django's own, ``locations``. When 6.1 is the oldest supported version, this file can
be removed.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.http import HttpRequest

from chainsched.admin.kit.mixin_base import Mixin

if TYPE_CHECKING:

    class ActionLocation(enum.Enum):
        """The places where an action is offered."""

        CHANGE_FORM = "CHANGE_FORM"
        CHANGE_LIST = "CHANGE_LIST"

else:
    try:
        from django.contrib.admin import ActionLocation
    except ImportError:

        class ActionLocation(enum.Enum):
            """The places where an action is offered."""

            CHANGE_FORM = "CHANGE_FORM"
            CHANGE_LIST = "CHANGE_LIST"


HAS_LOCATIONS = hasattr(admin, "ActionLocation")
EVERYWHERE = (ActionLocation.CHANGE_LIST, ActionLocation.CHANGE_FORM)
ON_THE_PAGE = (ActionLocation.CHANGE_FORM,)

ActionFunction = Callable[..., Any]


def action(
    *, permission: str, description: str, plural: str = "", location: Sequence[ActionLocation] = EVERYWHERE
) -> Callable[[ActionFunction], ActionFunction]:
    """Mark a method as an action for one row and for those selected in a list, as ``admin.action(location=…)`` does."""

    def mark(function: ActionFunction) -> ActionFunction:
        marks: dict[str, Any] = {
            "allowed_permissions": [permission],
            # Before 6.1 an action has one description, which Django shows in lists.
            "short_description": description if HAS_LOCATIONS else plural or description,
            "plural_description": plural or description,
            "page_description": description,
            "locations": list(location),
        }
        for name, value in marks.items():
            setattr(function, name, value)
        return function

    return mark


class LocatedActions(Mixin):
    """Lets ``get_actions`` distinguish lists from pages where Django does not do so itself."""

    def get_actions(
        self, request: HttpRequest, action_location: ActionLocation = ActionLocation.CHANGE_LIST
    ) -> dict[str, Any]:
        """The actions that can be offered to this user at this place, by name."""
        if HAS_LOCATIONS:
            return super().get_actions(request, action_location=action_location)  # type: ignore[call-arg]
        found: dict[str, Any] = dict(super().get_actions(request))
        return {name: entry for name, entry in found.items() if action_location in _locations(entry[0])}

    def find_actions(self, request: HttpRequest) -> dict[str, ActionFunction]:
        """The functions of the actions that this user may do on the page of a row, by name."""
        found = self.get_actions(request, action_location=ActionLocation.CHANGE_FORM)
        return {name: entry.func if HAS_LOCATIONS else entry[0] for name, entry in found.items()}


def _locations(function: ActionFunction) -> Sequence[ActionLocation]:
    return getattr(function, "locations", (ActionLocation.CHANGE_LIST,))
