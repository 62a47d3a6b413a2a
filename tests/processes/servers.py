"""A PostgreSQL for one test, which may do to it what others should not feel."""

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
from django.core.management import call_command
from django.db import connection

from chaos.servers import Postgres, running_postgres
from tests.postgres import FORGETFUL


@contextmanager
def own_postgres(**settings: str) -> Iterator[Postgres]:
    """A server with our tables, on which everything of the test happens meanwhile."""
    with running_postgres({**FORGETFUL, **settings}) as postgres:
        postgres.create_database()
        there = psycopg.conninfo.conninfo_to_dict(postgres.url)
        usual = dict(connection.settings_dict)
        connection.close()
        connection.settings_dict |= {"HOST": there["host"], "PORT": str(there["port"]), "NAME": there["dbname"]}
        try:
            call_command("migrate", verbosity=0)
            yield postgres
        finally:
            connection.close()
            connection.settings_dict |= usual
