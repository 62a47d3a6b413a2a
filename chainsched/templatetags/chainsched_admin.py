"""The overview for the app's index page, which Django draws without asking us for its context."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import template

if TYPE_CHECKING:
    from chainsched.admin.pages.overview import Overview

register = template.Library()


@register.simple_tag(takes_context=True)
def chainsched_overview(context: Any) -> Overview | None:
    """What this user sees of the whole at this moment."""
    # Django imports this module in every project that has a template engine; in one without the admin the pages
    # cannot be imported.
    from chainsched.admin.pages.overview import look  # noqa: PLC0415

    return look(context["request"])
