"""Tables as PostgreSQL keeps them where it runs for longer than a test."""

from django.db import connection


def tidy(*tables: str) -> None:
    """Remove what earlier tests left dead in the tables: it is still in their indexes, and counts in plans."""
    if connection.vendor != "postgresql":
        return
    beside = connection.copy()
    with beside.cursor() as cursor:
        cursor.execute(f"VACUUM {', '.join(tables)}")
    beside.close()


def gather_statistics(*tables: str) -> None:
    """Let the planner know what is in the tables now; nobody else does it in time for a test."""
    with connection.cursor() as cursor:
        for table in tables:
            cursor.execute(f"ANALYZE {table}")
