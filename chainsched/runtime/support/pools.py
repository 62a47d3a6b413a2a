"""Django's own connection pools, which are for web processes and not for those that keep running."""

from __future__ import annotations

from django.db import connections


def leave_pools() -> None:
    """Let each thread of this process have a connection of its own, also where the settings ask for a pool.

    Our threads keep their connections between turns: a pool would have none left for the heartbeat. And it must not
    be open at a fork, or children and parent would speak over the same sockets.
    """
    pooled = [connections[alias] for alias, database in connections.settings.items() if database["OPTIONS"].get("pool")]
    ours = [connection for connection in pooled if connection.vendor == "postgresql"]
    for connection in ours:
        connection.close()
        connection.close_pool()  # type: ignore[attr-defined]
    # Later, because aliases may share their options.
    for connection in ours:
        connection.settings_dict["OPTIONS"].pop("pool", None)
