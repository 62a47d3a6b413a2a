"""So many lines in a while, one more that says so, and then silence until the while is over."""

import pytest

from chainsched.domain.log_limit import Leave, LogLimit

SPEAK, ENOUGH, SILENT = Leave.SPEAK, Leave.SAY_ENOUGH, Leave.KEEP_SILENT


@pytest.mark.parametrize(
    ("times", "shares"),
    [
        ([0, 1, 2, 3, 4], [SPEAK, SPEAK, ENOUGH, SILENT, SILENT]),
        ([0, 9, 10, 11], [SPEAK, SPEAK, SPEAK, SPEAK]),
        ([0, 0, 0, 9.9, 10], [SPEAK, SPEAK, ENOUGH, SILENT, SPEAK]),
        ([5, 14, 15, 16, 17], [SPEAK, SPEAK, SPEAK, SPEAK, ENOUGH]),
    ],
)
def test_the_ration_is_counted_from_its_first_line(times, shares):
    ration = LogLimit(lines=2, seconds=10)
    assert [ration.ask(now=at) for at in times] == shares
