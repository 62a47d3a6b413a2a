"""What tests of processes and their children share."""

import pytest

from chainsched.runtime.workers.reports import Reports
from chainsched.runtime.workers.start_tokens import StartTokens


@pytest.fixture
def tokens():
    made = StartTokens()
    yield made
    made.close()


@pytest.fixture
def reports():
    made = Reports()
    yield made
    made.close()
