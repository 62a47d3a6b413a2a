"""Where the database and the Redis of a peer are, as the bench says."""

import os

DATABASE_URL = os.environ.get("CHAINSCHED_BENCH_URL", "")
REDIS_URL = os.environ.get("CHAINSCHED_BENCH_REDIS_URL") or "redis://127.0.0.1:6379/0"


def forget_keys(prefix: str) -> None:
    """Delete the keys of a peer; a Redis may have others."""
    from redis import Redis  # noqa: PLC0415 - only those that use it need it

    redis = Redis.from_url(REDIS_URL)
    for key in redis.scan_iter(f"{prefix}*", count=1000):
        redis.delete(key)
