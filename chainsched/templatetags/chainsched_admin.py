"""The overview for the app's index page; a tag, because Django gives no hook to add to the context of that page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import template

if TYPE_CHECKING:
    from chainsched.admin.pages.overview import Overview

register = template.Library()


@register.simple_tag(takes_context=True)
def chainsched_overview(context: Any) -> Overview | None:
    """The overview as this user may see it."""
    # Django imports this module in every project that has a template engine; in one without the admin the pages
    # cannot be imported.
    from chainsched.admin.pages.overview import overview_for  # noqa: PLC0415

    return overview_for(context["request"])
