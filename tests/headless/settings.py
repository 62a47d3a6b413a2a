"""Settings of a project without the admin: no sessions, no messages, no static files.

HEADLESS_DATABASE is the path of its SQLite file. With HEADLESS_TEMPLATES there is a template engine, as in most
projects that offer an API; Django then imports the template tags of every installed app.
"""

import os
from typing import Any

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["HEADLESS_DATABASE"],
        "OPTIONS": {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=OFF;",
        },
    }
}
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "chainsched", "tests.headless"]
MIDDLEWARE: list[str] = []
TEMPLATES: list[dict[str, Any]] = []
if os.environ.get("HEADLESS_TEMPLATES"):
    TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "APP_DIRS": True}]
ROOT_URLCONF = "chainsched.urls"
ALLOWED_HOSTS = ["testserver"]
SECRET_KEY = "for tests only"
USE_TZ = True
