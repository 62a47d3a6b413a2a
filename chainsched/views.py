"""A page for probes: 200 while all required processes and loops are alive, 503 otherwise."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from django.db import Error, connections
from django.db.transaction import non_atomic_requests
from django.http import HttpRequest, JsonResponse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from chainsched.runtime.support.health_probe import NO_ANSWER, probe_health

SEES_DETAILS = "chainsched.view_process"

View = Callable[[HttpRequest], JsonResponse]


def _outside_transactions(view: View) -> View:
    """Run a view without ATOMIC_REQUESTS: the request would wait for a hanging database before the view is called."""
    for alias in connections:
        view = non_atomic_requests(using=alias)(view)
    return view


@_outside_transactions
@never_cache
@require_safe
def health(request: HttpRequest) -> JsonResponse:
    """The health of schedulers and workers. Names and details only for users who may see processes."""
    try:
        found = probe_health()
    except NO_ANSWER:
        # The user cannot be loaded then either.
        return _answer(is_healthy=False)
    return _answer(is_healthy=found.is_healthy, details=found.as_dict() if _may_see(request) else {})


def _answer(*, is_healthy: bool, details: Mapping[str, Any] | None = None) -> JsonResponse:
    status = {"status": "ok" if is_healthy else "failing"}
    return JsonResponse({**(details or {}), **status}, status=200 if is_healthy else 503)


def _may_see(request: HttpRequest) -> bool:
    """Whether the user has the permission; False also if the users' database is unavailable."""
    user = getattr(request, "user", None)
    try:
        return user is not None and user.has_perm(SEES_DETAILS)
    except Error:
        return False
