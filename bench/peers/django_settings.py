"""The Django settings of the peers that are Django apps."""

from psycopg.conninfo import conninfo_to_dict

from bench.peers.environment import DATABASE_URL

_given = conninfo_to_dict(DATABASE_URL)
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _given.get("dbname"),
        "USER": _given.get("user"),
        "PASSWORD": _given.get("password"),
        "HOST": _given.get("host"),
        "PORT": _given.get("port"),
        # db_worker closes connections that are older after each job.
        "CONN_MAX_AGE": None,
    }
}
INSTALLED_APPS = ["procrastinate.contrib.django", "django_tasks", "django_tasks_db", "django_celery_results"]
PROCRASTINATE_IMPORT_PATHS = ["bench.peers.procrastinate"]
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
SECRET_KEY = "for the bench only"  # noqa: S105 - nothing is signed with it
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
