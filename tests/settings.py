"""The Django settings the tests run with; CHAINSCHED_TEST_DATABASE_URL chooses the database.

Unset or `sqlite`: SQLite; conftest.py gives each test process a file of its own.
`sqlite:///absolute/path`: SQLite in that file, for a process that a test starts.
`postgresql://user@host:port/name` or `postgresql://user@/name?host=/socket/directory`: PostgreSQL.
"""

import json
import os
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured


def _database(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    if url == "sqlite":
        return _sqlite(":memory:")
    if parts.scheme == "sqlite":
        return _sqlite(unquote(parts.path))
    if parts.scheme in {"postgresql", "postgres"}:
        query = dict(parse_qsl(parts.query))
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(parts.path.removeprefix("/")),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": query.pop("host", parts.hostname or ""),
            "PORT": query.pop("port", str(parts.port or "")),
            "OPTIONS": query,
        }
    raise ImproperlyConfigured(
        f"CHAINSCHED_TEST_DATABASE_URL is {url!r}: it must be 'sqlite', sqlite:///path or postgresql://…; "
        "'python -m tests.postgres -- pytest' starts a PostgreSQL and sets it"
    )


def _sqlite(name: str) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": name,
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            # Tests need not survive a power cut; without this their time is that of the disk.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
        },
    }


DATABASES = {"default": _database(os.environ.get("CHAINSCHED_TEST_DATABASE_URL") or "sqlite")}
# For the processes that tests start: a second way to the same database.
if direct := os.environ.get("CHAINSCHED_TEST_DIRECT_URL"):
    DATABASES["direct"] = _database(direct)
# For the processes that tests start: the options of Django's connection pool as JSON.
if pool := os.environ.get("CHAINSCHED_TEST_POOL"):
    DATABASES["default"]["OPTIONS"]["pool"] = json.loads(pool)

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.auth",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "django.contrib.staticfiles",
    "chainsched",
    "tests.testapp",
    # For processes that run another version of the code.
    *os.environ.get("CHAINSCHED_TEST_MORE_APPS", "").split(),
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

ROOT_URLCONF = "tests.urls"
STATIC_URL = "static/"
SECRET_KEY = "for tests only"
# The default hasher is slow by design; tests log in often.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
USE_TZ = True
TIME_ZONE = "UTC"

# For the processes that tests start: what they say, and options as JSON.
if level := os.environ.get("CHAINSCHED_TEST_LOG_LEVEL"):
    LOGGING = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(levelname)s %(name)s %(message)s"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
        "loggers": {"chainsched": {"handlers": ["console"], "level": level}},
    }
CHAINSCHED = json.loads(os.environ.get("CHAINSCHED_TEST_SETTINGS") or "{}")
