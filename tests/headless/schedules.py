"""The schedules of this project: a job with a dormant child, and jobs that end in a dead letter."""

from chainsched import Every, ManifestItem, schedules
from tests.headless.workflows import look

schedules.schedule(look, "job", False, Every.hours(1), group="jobs").include(
    look, "child", False, group="jobs", dormant=True
)
schedules.schedule_many(
    look,
    "broken",
    [ManifestItem(name, True) for name in ("retried", "acknowledged", "decided", "undecided")],
    Every.hours(1),
    max_retries=1,
)
