"""The manifests that would run if runs succeeded: dependents and theirs, as far as no obstacle stops them."""

from __future__ import annotations

from collections.abc import Collection

from django.db import connections, models

from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.domain.states import RunCondition
from chainsched.models.dependency import Dependency
from chainsched.models.manifest import Manifest
from chainsched.models.obstacles import is_free_of

FIRING_ON_SUCCESS = (RunCondition.SUCCESS, RunCondition.COMPLETION)


def load_downstream(manifest_ids: Collection[int], *, limit: int) -> list[int]:
    """The ids of the manifests that run after these if all of them succeed, the nearest first; at most ``limit``.

    Dependents of a disabled manifest are not among them: it stops them even when an operator retries its dead letter.
    """
    if not manifest_ids:
        return []
    rows_sql, parameters = bulk.expand({"id": models.BigIntegerField()}, [[id_] for id_ in sorted(manifest_ids)])
    free = Manifest.objects.filter(is_free_of()).order_by()
    firing = Dependency.objects.filter(child__in=free.values("id"), condition__in=FIRING_ON_SUCCESS).order_by()
    fires_sql, values = firing.values("child_id", "parent_id").query.sql_with_params()
    # Each level is searched by the index of the parent, and no further than the limit is reached.
    sql = (
        f"WITH RECURSIVE below(id) AS (SELECT f.child_id FROM {rows_sql} JOIN ({fires_sql}) f "  # noqa: S608
        f"ON f.parent_id = v.id UNION SELECT f.child_id FROM below b JOIN ({fires_sql}) f ON f.parent_id = b.id) "
        "SELECT id FROM below LIMIT %s"
    )
    with connections[get_config().database].cursor() as cursor:
        cursor.execute(sql, [*parameters, *values, *values, limit])
        return [id_ for (id_,) in cursor.fetchall()]
