"""An outage is told once when it begins and once when all whom it hit are well again."""

import pytest

from chainsched.runtime.support.db_outage import DatabaseOutage


@pytest.fixture
def told(caplog):
    return lambda: [record.message.partition(" is ")[2].split()[0].strip(";") for record in caplog.records]


def test_many_notice_and_two_lines_tell(told):
    outage = DatabaseOutage()
    for loop in ("manager", "dispatcher", "manager"):
        outage.begin(OSError("gone"), at=loop)
    assert told() == ["in"]
    outage.end(at="manager")
    assert told() == ["in"], "the dispatcher is still hit"
    outage.end(at="dispatcher")
    assert told() == ["in", "back"]


def test_somebody_whom_it_did_not_hit_ends_nothing(told):
    outage = DatabaseOutage()
    outage.begin(OSError("read only"), at="worker")
    outage.end(at="cleaner")
    assert told() == ["in"]


def test_without_trouble_nothing_is_told(told):
    DatabaseOutage().end(at="manager")
    assert told() == []
