"""The settings of the example project: for trying out on one machine, not for production.

Without ``DATABASE_URL`` the data is in ``demo.sqlite3`` beside ``manage.py``. For PostgreSQL write
``postgresql://user:password@host:port/name`` or ``postgresql://user@/name?host=/socket/directory``.
"""

import os
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

PROJECT_ROOT = Path(__file__).resolve().parent.parent


def _database(url: str) -> dict[str, Any]:
    if not url:
        return _sqlite(PROJECT_ROOT / "demo.sqlite3")
    if urlsplit(url).scheme in {"postgresql", "postgres"}:
        return _postgresql(url)
    raise ImproperlyConfigured(f"DATABASE_URL is {url!r}; write postgresql://user:password@host:port/name.")


def _sqlite(path: Path) -> dict[str, Any]:
    return {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": path,
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL;",
        },
    }


def _postgresql(url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.removeprefix("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": options.pop("host", unquote(parts.hostname or "")),
        "PORT": options.pop("port", str(parts.port or "")),
        "OPTIONS": options,
    }


DATABASES = {"default": _database(os.environ.get("DATABASE_URL", ""))}

CHAINSCHED = {
    "MANAGER_INTERVAL": 1,
    "DISPATCHER_INTERVAL": 1,
    "WORKER_INTERVAL": 1,
    "REAP_INTERVAL": 1,
    "RETRY_DELAY": 2,
    "SHUTDOWN_TIMEOUT": 10,
}

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "chainsched",
    "example_project.etl",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
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

ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
DEBUG = True
ROOT_URLCONF = "example_project.urls"
SECRET_KEY = "for the example only"
STATIC_URL = "static/"
TIME_ZONE = "UTC"
USE_TZ = True
WSGI_APPLICATION = "example_project.wsgi.application"
