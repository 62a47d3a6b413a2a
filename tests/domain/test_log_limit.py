"""So many lines in a while, one more that says so, and then silence until the while is over."""

import pytest

from chainsched.domain.log_limit import LogDecision, LogLimit

WRITE, ENOUGH, SILENT = LogDecision.WRITE, LogDecision.WRITE_NOTICE, LogDecision.SKIP


@pytest.mark.parametrize(
    ("times", "shares"),
    [
        ([0, 1, 2, 3, 4], [WRITE, WRITE, ENOUGH, SILENT, SILENT]),
        ([0, 9, 10, 11], [WRITE, WRITE, WRITE, WRITE]),
        ([0, 0, 0, 9.9, 10], [WRITE, WRITE, ENOUGH, SILENT, WRITE]),
        ([5, 14, 15, 16, 17], [WRITE, WRITE, WRITE, WRITE, ENOUGH]),
    ],
)
def test_the_ration_is_counted_from_its_first_line(times, shares):
    limit = LogLimit(lines=2, seconds=10)
    assert [limit.decide(now=at) for at in times] == shares
