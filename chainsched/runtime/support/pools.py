"""Django's connection pools, which suit web processes and not schedulers and workers."""

from __future__ import annotations

from django.db import connections


def leave_pools() -> None:
    """Give each thread of this process its own connection, also where the settings ask for a pool.

    Threads keep their connections between turns: a pool would have none left for the heartbeat. And it must not be
    open at a fork, or children and parent would use the same sockets.
    """
    pooled = [connections[alias] for alias, database in connections.settings.items() if database["OPTIONS"].get("pool")]
    ours = [connection for connection in pooled if connection.vendor == "postgresql"]
    for connection in ours:
        connection.close()
        connection.close_pool()  # type: ignore[attr-defined]
    # Later, because aliases may share their options.
    for connection in ours:
        connection.settings_dict["OPTIONS"].pop("pool", None)
