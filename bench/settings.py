"""The Django settings of the benchmarks: those of the tests, with room for as many jobs as a worker takes."""

from tests.settings import *  # noqa: F403 - a settings module extends another this way
from tests.settings import INSTALLED_APPS as _TESTED

INSTALLED_APPS = [*_TESTED, "procrastinate.contrib.django", "bench"]
# Fairness and limits stay on; a limit of 100 would measure the dispatcher's interval instead of its work.
CHAINSCHED = {"MAX_ACTIVE_JOBS": 2000}
