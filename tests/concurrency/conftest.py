"""What tests on several connections share."""

from collections.abc import Iterator

import pytest


@pytest.fixture
def no_deadlock(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Deadlocks are survived by trying again, so nothing else would tell of them."""
    with caplog.at_level("DEBUG", logger="chainsched.flow.transactions"):
        yield
    busy = [record.getMessage() for record in caplog.get_records("call") if "busy" in record.getMessage()]
    assert not busy
