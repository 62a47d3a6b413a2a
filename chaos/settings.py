"""The settings of the processes in a chaos run: short leases, short waits, limits that bind.

The database is the one that CHAINSCHED_TEST_DATABASE_URL names.
"""

from tests.settings import *  # noqa: F403 - the tests' settings, with the changes below
from tests.settings import INSTALLED_APPS as APPS_OF_TESTS

INSTALLED_APPS = [*(app for app in APPS_OF_TESTS if app != "tests.testapp"), "chaos"]

PROCESS_EXPIRY = 4.0
MAX_ACTIVE_JOBS = 10
KILL_GRACE = 1

CHAINSCHED = {
    "MANAGER_INTERVAL": 0.25,
    "DISPATCHER_INTERVAL": 0.25,
    "WORKER_INTERVAL": 0.1,
    "REAP_INTERVAL": 0.5,
    "RECONCILE_INTERVAL": 5,
    "HEARTBEAT_INTERVAL": 0.5,
    "PROCESS_EXPIRY": PROCESS_EXPIRY,
    "MAX_ACTIVE_JOBS": MAX_ACTIVE_JOBS,
    # Every job that a fault hits fails, and a marathon in a process with poison is mostly hit, so that jobs may fail
    # often without being poison; the checker requires a cause of each failure. The poison states its own number.
    "MAX_RETRIES": 100,
    "RETRY_DELAY": 0.2,
    "RETRY_MULTIPLIER": 1.5,
    "MAX_RETRY_DELAY": 2,
    "JOB_TIMEOUT": 30,
    "KILL_GRACE": KILL_GRACE,
    "SHUTDOWN_TIMEOUT": 20,
    # The harness seeds, and keeps all rows for the checker.
    "SEED": {"on_start": False, "post_migrate": False},
    "RETENTION": None,
}

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "{asctime} {process} {levelname} {name}: {message}", "style": "{"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"chainsched": {"handlers": ["stderr"], "level": "INFO"}},
}
