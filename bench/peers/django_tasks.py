"""Django's tasks with the database backend ``django-tasks-db``, two worker processes.

Worker: twice ``db_worker``, each one job at a time, looking once a second when the queue is empty (its default; there
is no wake-up), without its random delay at the start. Connections are kept (``CONN_MAX_AGE`` None; by Django's default
each job opens a new one, and costs more than twice as much). Enqueued by ``enqueue()``; it has no call for many, so in
bulk that is called in transactions of 1,000. It keeps the row of the task with its result.
"""

import django

django.setup()

from django.core.management import call_command  # noqa: E402 - Django must be set up first
from django.db import connection, transaction  # noqa: E402
from django_tasks import task  # noqa: E402

from bench.marks import mark  # noqa: E402

PAGE = 1000


@task()
def do_nothing() -> None:
    """Leave a mark."""
    mark()


def install() -> None:
    """Create its tables."""
    call_command("migrate", "django_tasks_database", verbosity=0)


def prepare(_many: int, _singles: int) -> None:
    """Delete all jobs."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE django_tasks_database_dbtaskresult")


def enqueue_many(count: int) -> None:
    """Enqueue in transactions."""
    for start in range(0, count, PAGE):
        with transaction.atomic():
            for _ in range(min(PAGE, count - start)):
                do_nothing.enqueue()


def enqueue_one() -> None:
    """Enqueue one job."""
    do_nothing.enqueue()
