"""How many jobs may wait for a child, by how long jobs have been taking."""

from chainsched.domain.lookahead import MAX_AHEAD, Lookahead


def pace_of(*seconds: float) -> Lookahead:
    lookahead = Lookahead()
    for each in seconds:
        lookahead.learn(each)
    return lookahead


def test_nothing_waits_while_nothing_is_known():
    assert Lookahead().ahead == 0


def test_little_work_waits():
    assert pace_of(0.0125).ahead == 4


def test_jobs_that_take_no_time_have_a_bound():
    assert pace_of(0.0).ahead == MAX_AHEAD


def test_a_long_job_counts_at_once():
    assert pace_of(0.001, 60).ahead == 0


def test_a_job_that_waited_for_a_processor_among_short_ones_counts_a_little():
    assert pace_of(0.0, 0.005).ahead > MAX_AHEAD / 2
    assert pace_of(0.0, *[0.005] * 50).ahead < 20


def test_a_job_that_is_a_little_longer_counts_a_little():
    assert 0 < pace_of(0.001, 0.009).ahead < pace_of(0.001).ahead


def test_short_jobs_are_believed_again_after_a_while():
    assert pace_of(60, *[0.001] * 200).ahead > 10


def test_the_estimate_can_be_reset():
    lookahead = pace_of(0.001)
    lookahead.reset()
    assert lookahead.ahead == 0
