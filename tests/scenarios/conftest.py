"""What every scenario begins with."""

from collections.abc import Iterator

import pytest

from chainsched.testing import Workbench
from tests.drive import new_bench


@pytest.fixture
def bench() -> Iterator[Workbench]:
    with new_bench() as bench:
        yield bench
