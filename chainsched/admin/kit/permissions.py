"""One permission for each operator verb. A project overrides a method to narrow its permission to some rows."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from chainsched.operations import PERMISSIONS


class Verbs:
    """Checks the permission of each verb; ``row`` is None for the action in general, then the row that it is for."""

    def has_trigger_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Trigger manifests and groups, run executions again, bring queue rows forward."""
        return bool(request.user.has_perm(PERMISSIONS["trigger"]))

    def has_activate_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Activate dormant manifests."""
        return bool(request.user.has_perm(PERMISSIONS["activate"]))

    def has_switch_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Enable and disable manifests and groups."""
        return bool(request.user.has_perm(PERMISSIONS["switch"]))

    def has_cancel_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Cancel manifests, groups, executions, trees and queue rows."""
        return bool(request.user.has_perm(PERMISSIONS["cancel"]))

    def has_limit_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Change the limit and the priority of groups."""
        return bool(request.user.has_perm(PERMISSIONS["limit"]))

    def has_retry_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Retry dead letters."""
        return bool(request.user.has_perm(PERMISSIONS["retry"]))

    def has_acknowledge_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Acknowledge dead letters."""
        return bool(request.user.has_perm(PERMISSIONS["acknowledge"]))
