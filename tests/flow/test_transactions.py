"""How stages write: one bad or held row costs the others nothing, and trouble with the database is no row's fault."""

import pytest
from django.db import OperationalError

from chainsched.db import locks
from chainsched.flow.transactions import in_parts

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
