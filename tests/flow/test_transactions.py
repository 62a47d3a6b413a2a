"""How stages write: one bad or held row costs the others nothing, and trouble with the database is no row's fault."""

import pytest
from django.db import OperationalError, connection

from chainsched import Every
from chainsched.db import locks
from chainsched.flow.transactions import in_parts
from chainsched.models import Manifest
from tests.testapp.workflows import ping

pytestmark = pytest.mark.django_db


class Cause(Exception):
    """What the driver said."""

    def __init__(self, sqlstate):
        super().__init__(sqlstate)
        self.sqlstate = sqlstate


def refusing(bad, sqlstate):
    """Writes everything but what is bad, for which the database answers with this."""

    def write(part):
        if bad in part:
            raise OperationalError("no") from Cause(sqlstate)
        return list(part)

    return write


@pytest.mark.parametrize("sqlstate", [locks.LOCK_NOT_AVAILABLE, locks.QUERY_CANCELED, "XX001"])
def test_a_row_that_is_held_slow_or_damaged_costs_the_others_nothing(sqlstate):
    parts = in_parts(range(8), refusing(5, sqlstate))
    assert sorted(item for part in parts.results for item in part) == [0, 1, 2, 3, 4, 6, 7]
    assert ([item for item, _ in parts.busy], parts.refused) == ([5], [])


@pytest.mark.parametrize("sqlstate", ["57P01", "53100", "25006", "08006", "40P01", None])
def test_trouble_with_the_database_itself_is_raised(sqlstate, monkeypatch):
    monkeypatch.setattr("chainsched.flow.transactions.FIRST_PAUSE", 0.0)
    with pytest.raises(OperationalError):
        in_parts(range(8), refusing(5, sqlstate))


@pytest.mark.postgres
def test_a_declaration_leaves_the_timeouts_of_a_test_case_as_they_were():
    """They would outlast the call, and the next statement of the test might wait for autovacuum."""
    before = _setting("lock_timeout")
    Manifest.objects.schedule(ping, "ping", None, Every.minutes(5))
    assert _setting("lock_timeout") == before


def _setting(name):
    with connection.cursor() as cursor:
        cursor.execute("SELECT current_setting(%s)", [name])
        return cursor.fetchone()[0]
