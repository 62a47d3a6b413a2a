"""Every page of the control room, by the name of its picture, and how to get there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from django.urls import reverse

from chainsched.models import DeadLetter, Manifest, ManifestGroup
from tests.admin.world import MODELS, url_of
from tests.browser.world import Night

if TYPE_CHECKING:
    from tests.browser.visitor import Visitor

Way = Callable[["Visitor", Night], None]


def _open(address: Callable[[Night], str], visitor: Visitor, night: Night) -> None:
    visitor.open(address(night))


def _ask(model: str, button: str, visitor: Visitor, night: Night) -> None:
    row = night.of[model]
    visitor.open(url_of(type(row), "change", row.pk))
    visitor.press(button)


def _ask_dormant(visitor: Visitor, _night: Night) -> None:
    visitor.open(url_of(Manifest, "change", Manifest.objects.get(external_id="etl-eu-repair").pk))
    visitor.press("Activate")


def _of_model(model: Any) -> Iterator[tuple[str, Way]]:
    name = model._meta.model_name
    yield f"{name}-list", partial(_open, lambda _: url_of(model, "changelist"))
    yield f"{name}-page", partial(_open, lambda night: url_of(model, "change", night.of[name].pk))


PAGES: dict[str, Way] = {
    "overview": partial(_open, lambda _: reverse("admin:app_list", args=["chainsched"])),
    **{name: way for model in MODELS for name, way in _of_model(model)},
    "manifestgroup-graph": partial(_open, lambda _: url_of(ManifestGroup, "graph")),
    "manifestgroup-members": partial(
        _open, lambda night: url_of(ManifestGroup, "members", night.of["manifestgroup"].pk)
    ),
    "deadletter-triage": partial(_open, lambda _: url_of(DeadLetter, "triage")),
    # All histories look alike.
    "history": partial(_open, lambda night: url_of(type(night.of["deadletter"]), "history", night.of["deadletter"].pk)),
    "ask-trigger": partial(_ask, "manifest", "Trigger"),
    "ask-activate": _ask_dormant,
    "ask-limits": partial(_ask, "manifestgroup", "Change limits"),
    "ask-retry": partial(_ask, "deadletter", "Retry"),
}


def picture_of(model_name: str, view: str) -> str:
    """The name of the picture that shows a view of the admin, as the resolver names it."""
    known = {"changelist": f"{model_name}-list", "change": f"{model_name}-page", "history": "history"}
    return known.get(view, f"{model_name}-{view}")
