"""What would run if runs succeeded: the dependents of manifests, theirs, and so on, as far as nothing stops them."""

from __future__ import annotations

from collections.abc import Collection

from django.db import connections, models

from chainsched.conf import get_config
from chainsched.db import bulk

# Dependents that a success makes due and that may run.
_FIRES = (
    "m.schedule_type = 'dependent' AND m.run_condition IN (1, 3) AND m.is_enabled AND m.retired_at IS NULL "
    "AND m.done_at IS NULL "
    "AND EXISTS (SELECT 1 FROM chainsched_manifestgroup g WHERE g.id = m.group_id AND g.is_enabled)"
)


def load_downstream(manifest_ids: Collection[int], *, limit: int) -> list[int]:
    """The ids of what runs after these if all goes well, the nearest first; at most ``limit`` are looked for."""
    if not manifest_ids:
        return []
    rows_sql, parameter = bulk.rows_from_json({"id": models.BigIntegerField()}, [[id_] for id_ in sorted(manifest_ids)])
    # Each level is searched by the index of the parent, and no further than the limit is reached.
    sql = (
        f"WITH RECURSIVE below(id) AS (SELECT m.id FROM {rows_sql} JOIN chainsched_manifest m ON m.depends_on_id = v.id "  # noqa: S608, E501
        f"WHERE {_FIRES} UNION SELECT m.id FROM below b JOIN chainsched_manifest m ON m.depends_on_id = b.id "
        f"WHERE {_FIRES}) SELECT id FROM below LIMIT %s"
    )
    with connections[get_config().database].cursor() as cursor:
        cursor.execute(sql, [parameter, limit])
        return [id_ for (id_,) in cursor.fetchall()]
