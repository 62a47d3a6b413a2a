"""Maintenance: have PostgreSQL look again at tables that have grown since it last did.

Reads:  the sizes of the tables that change with every job, and their sizes when they were last analyzed.
Writes: the statistics of the planner.
Next:   all sessions plan their statements anew.
"""

from __future__ import annotations

import logging

from django.db import DatabaseError

from chainsched.db import bulk
from chainsched.db.locks import Patience
from chainsched.flow.transactions import transact
from chainsched.models import Manifest, ManifestState, Metadata, WorkQueue

logger = logging.getLogger(__name__)

WATCHED = (WorkQueue, Metadata, ManifestState, Manifest)


def analyze_grown() -> int:
    """Analyze the tables that are several times as large as when they were analyzed last; returns how many.

    Sessions keep their plans, and those that were made for tables that were almost empty read whole tables once these
    are large. Autovacuum would come within a minute; in that time a new installation may queue a million rows. On
    SQLite, and where the role may not analyze the tables, nothing happens.
    """
    grown = bulk.grown(WATCHED)
    if not grown:
        return 0
    try:
        with transact(Patience.SHORT):
            bulk.analyze(*grown)
    except DatabaseError as error:
        # Autovacuum may be at it.
        logger.debug("Tables that have grown are not analyzed now: %s", error)
        return 0
    return len(grown)
