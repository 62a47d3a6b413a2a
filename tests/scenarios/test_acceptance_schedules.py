"""A of the acceptance list: schedules, through the whole flow. The rules themselves are tables in ``tests/domain``."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from chainsched import Cron, Every, Exclude, ManifestItem, Once
from chainsched.exceptions import ChainschedError
from chainsched.models import DeadLetter, Manifest, ManifestState
from tests.drive import alarm_of, executions_of, manifest, run_on, start_running
from tests.factories import NOW
from tests.testapp.workflows import fail, give_up, ping

pytestmark = pytest.mark.django_db

BERLIN = {"timezone": "Europe/Berlin"}
# Clocks go forward on 29 March 2026 at 01:00 UTC and back on 25 October 2026 at 01:00 UTC.
BEFORE_THE_GAP = datetime(2026, 3, 28, 12, tzinfo=UTC)
BEFORE_THE_REPEAT = datetime(2026, 10, 24, 12, tzinfo=UTC)


def utc(month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0) -> datetime:
    return datetime(2026, month, day, hour, minute, second, tzinfo=UTC)


class TestSchedules:
    """A, through the whole flow."""

    @pytest.mark.parametrize(
        ("back_at", "runs_at_once"),
        [
            (datetime(2026, 3, 2, 13, 2, 0, tzinfo=UTC), False),
            (datetime(2026, 3, 2, 13, 0, 30, tzinfo=UTC), True),
        ],
    )
    def test_a_skipped_misfire_waits_for_the_next_boundary(self, bench, back_at, runs_at_once):
        bench.schedules.schedule(
            ping, "job", None, Cron.expression("*/5 * * * *"), misfire="skip", misfire_threshold=60
        )
        bench.seed()
        bench.travel_to(back_at)
        assert bench.drain() == (["job"] if runs_at_once else [])
        assert alarm_of("job") == datetime(2026, 3, 2, 13, 5, tzinfo=UTC)

    def test_an_excluded_cron_occurrence_is_dropped_and_an_interval_waits_for_the_end(self, bench):
        """NOW is a Monday, ten o'clock."""
        monday = [Exclude.weekdays("mon")]
        bench.schedules.schedule(ping, "cron", None, Cron.daily(hour=12), exclusions=monday)
        bench.schedules.schedule(ping, "interval", None, Every.hours(1), exclusions=monday)
        bench.seed()
        assert alarm_of("cron") == datetime(2026, 3, 3, 12, tzinfo=UTC)
        assert alarm_of("interval") == datetime(2026, 3, 3, tzinfo=UTC)

    def test_jitter_moves_a_run_later_and_never_earlier(self, bench):
        items = [ManifestItem(str(number)) for number in range(30)]
        bench.schedules.schedule_many(ping, "job", items, Cron.daily(hour=12), jitter=600)
        bench.seed()
        noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
        alarms = [alarm - noon for alarm in ManifestState.objects.values_list("next_run_at", flat=True) if alarm]
        assert len(alarms) == 30
        assert timedelta(0) <= min(alarms) < max(alarms) <= timedelta(seconds=600)

    def test_a_one_time_job_that_fails_follows_the_normal_retries_and_is_not_done(self, bench):
        bench.schedules.schedule(fail, "once", None, Once(at=NOW + timedelta(hours=1)), retry_delay=60)
        bench.seed()
        assert bench.drain() == []
        assert bench.run_for(hours=3) == ["once", "once", "once"]
        assert DeadLetter.objects.get().manifest == manifest("once")
        assert manifest("once").done_at is None


class TestRefusals:
    """What is no schedule is refused when it is declared, in words that name it, and nothing is written."""

    @pytest.mark.parametrize(
        ("declare", "named"),
        [
            (lambda: Every.seconds(0), "Every.seconds(0)"),
            (lambda: Every.minutes(-5), "Every.minutes(-5)"),
            (lambda: Every.seconds(0.5), "Every.seconds(0.5)"),
            (lambda: Cron.hourly(minute=60), "60"),
            (lambda: Cron.weekly("someday"), "someday"),
            (lambda: Cron.expression("* * * *"), "* * * *"),
            (lambda: Cron.expression("0 0 1 * * * *"), "0 0 1 * * * *"),
            (lambda: Cron.expression("61 * * * *"), "61 * * * *"),
            (lambda: Cron.expression("0 0 30 2 *"), "0 0 30 2 *"),
            (lambda: Cron.expression("@sometimes"), "@sometimes"),
            (lambda: "every day", "every day"),
        ],
    )
    def test_no_schedule_is_refused_by_name(self, declare, named):
        with pytest.raises(ChainschedError) as caught:
            Manifest.objects.schedule(ping, "job", None, declare())
        assert named in str(caught.value)
        assert not Manifest.objects.exists()


class TestOccurrences:
    """Next occurrences are exact instants in the manifest's zone, one run each."""

    @pytest.mark.parametrize(
        ("start", "expression", "days", "expected"),
        [
            pytest.param(NOW, "30 9 * * *", 2, [utc(3, 3, 8, 30), utc(3, 4, 8, 30)], id="a fixed time"),
            pytest.param(NOW, "0 9-11 * * 2", 2, [utc(3, 3, hour) for hour in (8, 9, 10)], id="a range"),
            pytest.param(NOW, "*/20 12 2 3 *", 2, [utc(3, 2, 11, minute) for minute in (0, 20, 40)], id="a step"),
            pytest.param(NOW, "0 6,18 * * *", 1, [utc(3, 2, 17), utc(3, 3, 5)], id="a list"),
            pytest.param(NOW, "0 0 L * *", 60, [utc(3, 30, 22), utc(4, 29, 22)], id="the last day"),
            pytest.param(NOW, "@daily", 2, [utc(3, 2, 23), utc(3, 3, 23)], id="a nickname"),
            pytest.param(NOW, "15 0 12 * * *", 1, [utc(3, 2, 11, 0, 15)], id="six fields, the seconds first"),
            pytest.param(NOW, "0 12 * * 0", 7, [utc(3, 8, 11)], id="day 0 is Sunday"),
            pytest.param(BEFORE_THE_GAP, "30 2 * * *", 2, [utc(3, 29, 1), utc(3, 30, 0, 30)], id="a gap"),
            pytest.param(BEFORE_THE_REPEAT, "30 2 * * *", 2, [utc(10, 25, 0, 30), utc(10, 26, 1, 30)], id="a repeat"),
            pytest.param(
                utc(10, 25, 0, 0),
                "*/30 * * * *",
                0.125,
                [
                    utc(10, 25, 0, 30),
                    *(utc(10, 25, hour, minute) for hour in (1, 2) for minute in (0, 30)),
                    utc(10, 25, 3),
                ],
                id="wildcard hours run in both passes",
            ),
        ],
    )
    def test_a_cron_in_berlin_runs_exactly_at(self, bench, start, expression, days, expected):
        bench.travel_to(start)
        Manifest.objects.schedule(ping, "job", None, Cron.expression(expression), **BERLIN)
        bench.run_for(days=days)
        runs = executions_of("job")
        assert [run.started_at for run in runs] == expected
        assert [run.scheduled_for for run in runs] == expected

    def test_a_leap_day_is_waited_for(self, bench):
        Manifest.objects.schedule(ping, "job", None, Cron.expression("0 0 29 2 *"))
        assert bench.run_until(datetime(2028, 3, 1, tzinfo=UTC)) == ["job"]
        assert executions_of("job")[0].started_at == datetime(2028, 2, 29, tzinfo=UTC)

    @pytest.mark.parametrize(
        ("schedule", "seconds"),
        [(Every.seconds(7), 7), (Every.minutes(7), 420), (Every.hours(7), 25_200), (Every.days(7), 604_800)],
    )
    def test_an_interval_runs_at_once_and_then_after_exactly_its_length(self, bench, schedule, seconds):
        Manifest.objects.schedule(ping, "job", None, schedule)
        assert bench.run_for(seconds=2 * seconds) == ["job", "job", "job"]
        expected = [NOW + timedelta(seconds=seconds * number) for number in range(3)]
        assert [run.started_at for run in executions_of("job")] == expected

    def test_the_next_ten_runs_are_told(self, bench):
        made = Manifest.objects.schedule(ping, "job", None, Cron.daily(hour=12), exclusions=[Exclude.weekdays("tue")])
        told = made.explain().next_runs
        assert len(told) == 10
        assert bench.run_until(told[3]) == ["job"] * 4
        assert tuple(run.started_at for run in executions_of("job")) == told[:4]


class TestMisfires:
    """Within the threshold it fires; beyond it it fires once, or waits for the next boundary."""

    @pytest.mark.parametrize("schedule", [Cron.expression("*/5 * * * *"), Every.minutes(5)], ids=["cron", "interval"])
    @pytest.mark.parametrize(
        ("misfire", "back_at", "runs", "then"),
        [
            ("run_once", utc(3, 2, 13, 2, 0), 1, None),
            ("run_once", utc(3, 2, 13, 0, 30), 1, None),
            ("skip", utc(3, 2, 13, 2, 0), 0, utc(3, 2, 13, 5)),
            ("skip", utc(3, 2, 13, 1, 0), 1, None),
            ("skip", utc(3, 2, 13, 1, 1), 0, utc(3, 2, 13, 5)),
            ("skip", utc(3, 2, 13, 0, 0), 1, None),
        ],
    )
    def test_every_five_minutes_and_down_since_ten(  # noqa: PLR0917
        self, bench, schedule, misfire, back_at, runs, then
    ):
        Manifest.objects.schedule(ping, "job", None, schedule, misfire=misfire, misfire_threshold=60)
        if isinstance(schedule, type(Every.minutes(5))):
            bench.drain()
        bench.travel_to(back_at)
        assert bench.drain() == ["job"] * runs
        if then:
            assert alarm_of("job") == then
            assert manifest("job").explain().code == "not_due"

    @pytest.mark.parametrize("schedule", [Cron.minutely(), Every.minutes(1)], ids=["cron", "interval"])
    @pytest.mark.parametrize(("misfire", "runs"), [("run_once", 1), ("skip", 0)])
    def test_a_week_down_makes_one_run_or_none(self, bench, schedule, misfire, runs):
        Manifest.objects.schedule(ping, "job", None, schedule, misfire=misfire, misfire_threshold=10)
        bench.drain()
        before = len(executions_of("job"))
        bench.advance(days=7, seconds=30)
        assert bench.drain() == ["job"] * runs
        assert bench.run_for(minutes=1) == ["job"]
        assert len(executions_of("job")) == before + runs + 1

    def test_with_jitter_a_skipped_occurrence_is_neither_made_up_for_nor_run_twice(self, bench):
        Manifest.objects.schedule(ping, "job", None, Cron.expression("*/5 * * * *"), misfire="skip", jitter=240)
        bench.travel_to(utc(3, 2, 13, 5, 5))
        assert bench.run_until(utc(3, 2, 13, 9, 59)) == ["job"], "the run of 13:05, and no other"

    def test_a_one_time_run_is_made_up_for_however_late(self, bench):
        Manifest.objects.schedule_once(ping, "job", None, NOW + timedelta(hours=1), misfire="skip")
        bench.advance(days=9)
        assert bench.drain() == ["job"]

    def test_a_late_run_that_falls_into_an_exclusion_waits_for_its_end_or_is_dropped(self, bench):
        closed = [Exclude.window("12:00", "14:00")]
        Manifest.objects.schedule(ping, "interval", None, Every.hours(1), exclusions=closed)
        Manifest.objects.schedule(ping, "cron", None, Cron.hourly(minute=30), exclusions=closed)
        bench.drain()
        bench.travel_to(utc(3, 2, 13))
        assert bench.drain() == []
        assert (alarm_of("interval"), alarm_of("cron")) == (utc(3, 2, 14), utc(3, 2, 14, 30))


class TestExclusions:
    """By weekday, date, inclusive range, window, window over midnight; NOW is Monday, 2 March 2026, 10:00 UTC."""

    @pytest.mark.parametrize(
        ("exclusion", "cron_runs_at", "interval_runs_at"),
        [
            (Exclude.weekdays("mon", "tue"), utc(3, 4, 12), utc(3, 4)),
            (Exclude.dates(date(2026, 3, 2)), utc(3, 3, 12), utc(3, 3)),
            (Exclude.between(date(2026, 3, 2), date(2026, 3, 4)), utc(3, 5, 12), utc(3, 5)),
            (Exclude.window("09:00", "12:00"), utc(3, 2, 12), utc(3, 2, 12)),
            (Exclude.window("09:00", "12:01"), None, utc(3, 2, 12, 1)),
            (Exclude.window("22:00", "11:00"), utc(3, 2, 12), utc(3, 2, 11)),
        ],
        ids=["weekday", "date", "range", "window", "window that covers noon for ever", "window over midnight"],
    )
    def test_a_cron_occurrence_is_dropped_and_an_interval_waits(self, bench, exclusion, cron_runs_at, interval_runs_at):
        Manifest.objects.schedule(ping, "cron", None, Cron.daily(hour=12), exclusions=[exclusion])
        Manifest.objects.schedule(ping, "interval", None, Every.hours(1), exclusions=[exclusion])
        Manifest.objects.schedule(ping, "once", None, Once(NOW), exclusions=[exclusion])
        assert (alarm_of("cron"), alarm_of("interval")) == (cron_runs_at, interval_runs_at)
        assert alarm_of("once") == interval_runs_at
        assert bench.drain() == []

    @pytest.mark.parametrize(
        ("start", "end"),
        [(utc(3, 29, 0, 0), utc(3, 29, 1, 30)), (utc(10, 24, 23, 0), utc(10, 25, 2, 30))],
        ids=["an hour is missing", "an hour comes twice"],
    )
    def test_a_window_follows_the_wall_clock_over_a_change(self, bench, start, end):
        """Closed from half past one to half past three in Berlin: one hour in spring, three in autumn."""
        bench.travel_to(start)
        closed = [Exclude.window("01:30", "03:30")]
        Manifest.objects.schedule(ping, "job", None, Every.minutes(45), exclusions=closed, **BERLIN)
        bench.drain()
        assert alarm_of("job") == end


class TestJitter:
    """Jitter moves a run later by at most its seconds, never earlier, and costs no occurrence."""

    def test_each_occurrence_runs_once_within_its_jitter(self, bench):
        Manifest.objects.schedule(ping, "job", None, Cron.daily(hour=12), jitter=3600)
        bench.run_for(days=10)
        late = [run.started_at - utc(3, 2, 12) - timedelta(days=day) for day, run in enumerate(executions_of("job"))]
        assert len(late) == 10
        assert timedelta(0) <= min(late) < max(late) <= timedelta(hours=1)

    @pytest.mark.parametrize("schedule", [Cron.daily(hour=12), Once(utc(3, 2, 12))], ids=["cron", "once"])
    def test_a_delayed_trigger_between_an_occurrence_and_its_jittered_time_loses_nothing(self, bench, schedule):
        """D: a delayed trigger does not suspend the schedule."""
        Manifest.objects.schedule(ping, "job", None, schedule, jitter=3000)
        jittered = alarm_of("job")
        assert jittered is not None
        assert jittered > utc(3, 2, 12, 1)
        bench.travel_to(jittered - timedelta(seconds=10))
        manifest("job").trigger(timedelta(days=9))
        assert alarm_of("job") == jittered

    def test_a_run_by_hand_that_ends_before_the_jittered_time_does_not_stand_for_it(self, bench):
        Manifest.objects.schedule(ping, "job", None, Cron.daily(hour=12), jitter=3000)
        jittered = alarm_of("job")
        assert jittered is not None
        bench.travel_to(jittered - timedelta(seconds=10))
        manifest("job").trigger()
        assert bench.drain() == ["job"]
        assert alarm_of("job") == jittered
        assert bench.run_for(seconds=10) == ["job"]

    @pytest.mark.parametrize("begins", ["declared", "edited", "enabled"])
    def test_a_schedule_that_begins_after_an_occurrence_does_not_run_for_it(self, bench, begins):
        bench.travel_to(utc(3, 2, 12, 1) if begins == "declared" else NOW)
        Manifest.objects.schedule(ping, "job", None, Cron.daily(hour=12), jitter=3000)
        if begins == "edited":
            bench.travel_to(utc(3, 2, 12, 1))
            Manifest.objects.schedule(ping, "job", None, Cron.expression("0 12 * * 0-6"), jitter=3000)
        elif begins == "enabled":
            manifest("job").disable()
            bench.travel_to(utc(3, 2, 12, 1))
            manifest("job").enable()
        assert bench.run_until(utc(3, 3, 11, 59)) == []


class TestOnce:
    """Waits for its time, runs, and is done; a failure follows the normal retries."""

    def test_a_time_that_has_passed_runs_at_once(self, bench):
        Manifest.objects.schedule_once(ping, "job", None, NOW - timedelta(days=1))
        assert bench.drain() == ["job"]
        assert manifest("job").done_at == bench.now
        assert bench.run_for(days=400) == []

    def test_one_that_was_switched_off_at_its_time_runs_when_it_is_switched_on(self, bench):
        Manifest.objects.schedule_once(ping, "job", None, NOW + timedelta(hours=1))
        manifest("job").disable()
        bench.advance(hours=2)
        assert bench.drain() == []
        manifest("job").enable()
        assert bench.drain() == ["job"]

    @pytest.mark.parametrize(("decision", "runs"), [("retry", ["job"]), ("acknowledge", [])])
    def test_one_that_was_given_up_is_done_when_its_letter_is_decided(self, bench, decision, runs):
        Manifest.objects.schedule_once(give_up, "job", None, NOW)
        bench.drain()
        assert manifest("job").done_at is None
        Manifest.objects.update(workflow="testapp.ping")
        getattr(DeadLetter.objects.get(), decision)()
        assert bench.drain() == runs
        assert manifest("job").done_at == bench.now
        assert bench.run_for(days=9) == []

    @pytest.mark.parametrize("meanwhile", ["queued", "pending", "running", "given up"])
    def test_a_new_time_that_is_set_while_it_is_under_way_is_kept(self, bench, meanwhile):
        """What ends then is the run for the old time."""
        workflow = give_up if meanwhile == "given up" else ping
        Manifest.objects.schedule_once(workflow, "job", None, NOW)
        bench.manage()
        if meanwhile != "queued":
            bench.dispatch()
        if meanwhile == "running":
            start_running(bench)
        if meanwhile == "given up":
            bench.work()
        Manifest.objects.schedule_once(ping, "job", None, NOW + timedelta(hours=1))
        if meanwhile == "given up":
            DeadLetter.objects.get().acknowledge()
        run_on(bench)
        assert bench.drain() == ([] if meanwhile == "given up" else ["job"])
        assert bench.run_for(hours=1) == ["job"]
        assert manifest("job").done_at == bench.now
