"""Processes that keep running leave the connection pools that the settings ask for."""

from typing import Any

import pytest
from django import db

from chainsched.runtime.support.pools import leave_pools

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

# Whichever is in use: some tests begin a new one, as a new process would.
connection: Any = db.connection


@pytest.fixture
def pool(monkeypatch):
    """An open pool, from which this thread has its connection."""
    connection.close()
    monkeypatch.setitem(connection.settings_dict["OPTIONS"], "pool", {"min_size": 1})
    connection.ensure_connection()
    opened = connection.pool
    yield opened
    connection.close()
    connection.close_pool()


def test_an_open_pool_is_closed_and_not_asked_any_more(pool):
    leave_pools()
    assert pool.closed
    connection.ensure_connection()
    assert connection.pool is None
    assert "pool" not in connection.get_connection_params()


def test_without_a_pool_connections_stay_as_they_are():
    connection.ensure_connection()
    leave_pools()
    assert connection.connection is not None
