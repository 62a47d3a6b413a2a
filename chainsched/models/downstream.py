"""The manifests that would run if runs succeeded: dependents and theirs, as far as no obstacle stops them."""

from __future__ import annotations

from collections.abc import Collection

from django.db import connections, models

from chainsched.conf import get_config
from chainsched.db import bulk
from chainsched.domain.states import RunCondition
from chainsched.models.manifest import Manifest
from chainsched.models.obstacles import is_free_of

FIRING_ON_SUCCESS = (RunCondition.SUCCESS, RunCondition.COMPLETION)


def load_downstream(manifest_ids: Collection[int], *, limit: int) -> list[int]:
    """The ids of the manifests that run after these if all of them succeed, the nearest first; at most ``limit``.

    Dependents of a disabled manifest are not among them: it stops them even when an operator retries its dead letter.
    """
    if not manifest_ids:
        return []
    rows_sql, parameter = bulk.rows_from_json({"id": models.BigIntegerField()}, [[id_] for id_ in sorted(manifest_ids)])
    firing = Manifest.objects.filter(is_free_of(), run_condition__in=FIRING_ON_SUCCESS).order_by()
    fires_sql, values = firing.values("id", "depends_on_id").query.sql_with_params()
    # Each level is searched by the index of the parent, and no further than the limit is reached.
    sql = (
        f"WITH RECURSIVE below(id) AS (SELECT f.id FROM {rows_sql} JOIN ({fires_sql}) f ON f.depends_on_id = v.id "  # noqa: S608
        f"UNION SELECT f.id FROM below b JOIN ({fires_sql}) f ON f.depends_on_id = b.id) SELECT id FROM below LIMIT %s"
    )
    with connections[get_config().database].cursor() as cursor:
        cursor.execute(sql, [parameter, *values, *values, limit])
        return [id_ for (id_,) in cursor.fetchall()]
