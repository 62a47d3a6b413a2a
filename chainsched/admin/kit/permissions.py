"""Who may do what: one permission a verb. A project narrows one by row by overriding its method."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

TRIGGER = "chainsched.trigger_manifest"
ACTIVATE = "chainsched.activate_manifest"
SWITCH = "chainsched.switch_manifest"
CANCEL = "chainsched.cancel_manifest"
LIMIT = "chainsched.limit_manifestgroup"
RETRY = "chainsched.retry_deadletter"
ACKNOWLEDGE = "chainsched.acknowledge_deadletter"


class Verbs:
    """Asks for the permission of each verb. ``row`` is None when asked in general, and the row in question after."""

    def has_trigger_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Trigger manifests and groups, run executions again, bring queue rows forward."""
        return bool(request.user.has_perm(TRIGGER))

    def has_activate_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Activate dormant manifests."""
        return bool(request.user.has_perm(ACTIVATE))

    def has_switch_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Enable and disable manifests and groups."""
        return bool(request.user.has_perm(SWITCH))

    def has_cancel_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Cancel manifests, groups, executions, trees and queue rows."""
        return bool(request.user.has_perm(CANCEL))

    def has_limit_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Change the limit and the priority of groups."""
        return bool(request.user.has_perm(LIMIT))

    def has_retry_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Retry dead letters."""
        return bool(request.user.has_perm(RETRY))

    def has_acknowledge_permission(self, request: HttpRequest, row: Any = None) -> bool:
        """Acknowledge dead letters."""
        return bool(request.user.has_perm(ACKNOWLEDGE))
