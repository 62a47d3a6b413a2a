"""The Django settings of the benchmarks: those of the tests, with room for as many jobs as a worker takes.

Fairness and limits stay on. CHAINSCHED_BENCH_SETTINGS has other settings of chainsched as JSON; `{}` are its defaults.
"""

import json
import os

from tests.settings import *  # noqa: F403 - a settings module extends another this way
from tests.settings import INSTALLED_APPS as _TESTED

INSTALLED_APPS = [*_TESTED, "bench"]
CHAINSCHED = json.loads(os.environ.get("CHAINSCHED_BENCH_SETTINGS") or '{"MAX_ACTIVE_JOBS": 2000}')
