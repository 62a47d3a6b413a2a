"""What tests of processes and their children share."""

import pytest

from chainsched.runtime.permits import Permits


@pytest.fixture
def permits():
    made = Permits()
    yield made
    made.close()
