"""A page for probes: 200 while everything that should be alive is, 503 otherwise."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from chainsched import api
from chainsched.flow.transact import TRANSIENT

SEES_DETAILS = "chainsched.view_process"


@never_cache
@require_safe
def health(request: HttpRequest) -> JsonResponse:
    """The health of schedulers and workers. Names and details only for users who may see processes."""
    try:
        found = api.health()
    except TRANSIENT:
        return _answer(is_healthy=False)
    return _answer(is_healthy=found.is_healthy, details=found.as_dict() if _may_see(request) else {})


def _answer(*, is_healthy: bool, details: Mapping[str, Any] | None = None) -> JsonResponse:
    status = {"status": "ok" if is_healthy else "failing"}
    return JsonResponse({**(details or {}), **status}, status=200 if is_healthy else 503)


def _may_see(request: HttpRequest) -> bool:
    user = getattr(request, "user", None)
    return user is not None and user.has_perm(SEES_DETAILS)
