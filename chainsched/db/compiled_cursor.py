"""A cursor of psycopg that sends parameters beside the statement, and prepares it; imported on PostgreSQL only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg

# The driver keeps so many statements of a session prepared; there are fewer hot ones.
PREPARED_MAX = 200


class PreparingCursor(psycopg.Cursor[Any]):
    """Prepares each statement at its first use in a session, if ``is_preparing``."""

    def __init__(self, session: Any, *, is_preparing: bool) -> None:
        super().__init__(session)
        self._is_preparing = is_preparing

    def execute(self, query: Any, params: Sequence[Any] | None = None, **options: Any) -> PreparingCursor:  # type: ignore[override]
        """Run a statement. Django turns preparing off for the session, and it stays off for other cursors."""
        if not self._is_preparing:
            return super().execute(query, params, prepare=False, **options)
        session = self.connection
        threshold, session.prepare_threshold = session.prepare_threshold, 0
        session.prepared_max = PREPARED_MAX
        try:
            return super().execute(query, params, prepare=True, **options)
        finally:
            session.prepare_threshold = threshold
