"""The overview for the app's index page, which Django draws without asking us for its context."""

from __future__ import annotations

from typing import Any

from django import template

from chainsched.admin.pages.overview import Overview, look

register = template.Library()


@register.simple_tag(takes_context=True)
def chainsched_overview(context: Any) -> Overview | None:
    """What this user sees of the whole at this moment."""
    return look(context["request"])
