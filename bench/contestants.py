"""Who takes part: the processes that work, and how their rows say that all is recorded."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

OURS, PEERS = ".venv", ".venv-peers"


@dataclass(frozen=True, slots=True)
class Contestant:
    """A job queue in one setting; ``workers`` are commands with a program of its virtual environment first."""

    name: str
    # What ``bench.client`` calls; its docstring says the settings.
    module: str
    workers: tuple[tuple[str, ...], ...]
    # How many of its jobs are recorded; None if it keeps nothing.
    recorded: str | None = None
    # A cheaper question for the end of a run: whether anything is still to be recorded.
    is_open: str | None = None
    venv: str = PEERS
    # The database that it shares with others, one at a time.
    database: str = ""
    # Of how many jobs a run is, as a multiple of the count of the bench: so many that it takes some seconds.
    share: float = 1.0
    # What must be installed in its virtual environment.
    package: str = "psycopg"
    needs_redis: bool = False
    has_latency: bool = True
    has_chains: bool = False
    # Whether its database has finished executions before the first round, fifty for each manifest.
    has_history: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_ours(self) -> bool:
        return self.venv == OURS


DJANGO = {"DJANGO_SETTINGS_MODULE": "bench.peers.django_settings"}
BENCH = {"DJANGO_SETTINGS_MODULE": "bench.settings"}
DEFAULT_SETTINGS = {**BENCH, "CHAINSCHED_BENCH_SETTINGS": "{}"}
# Manifests and executions stay from one round to the next.
KEPT = {**BENCH, "CHAINSCHED_BENCH_KEEP": "1"}
SCHEDULER = ("python", "manage.py", "run_scheduler", "--processes", "2")
LOOPS = ("python", "manage.py", "run_scheduler", "--processes", "0")
WORKER = ("python", "manage.py", "run_worker", "--processes", "1")

TRIGGER = Contestant(
    name="chainsched-trigger",
    module="bench.ours",
    workers=(SCHEDULER,),
    recorded="SELECT count(*) FROM chainsched_metadata WHERE state = 'completed'",
    venv=OURS,
    database="chainsched",
    has_chains=True,
    environment=BENCH,
)
DUE = replace(TRIGGER, name="chainsched-due", module="bench.ours_due", has_latency=False)
DEFAULT = replace(TRIGGER, name="chainsched-default", environment=DEFAULT_SETTINGS)
TWO_SCHEDULERS = replace(TRIGGER, name="two-schedulers", workers=(LOOPS, LOOPS, WORKER, WORKER), has_latency=False)
HISTORY = replace(
    TRIGGER,
    name="finished",
    database="finished",
    environment=KEPT,
    has_latency=False,
    has_chains=False,
    has_history=True,
)
DUE_AT_ONCE = replace(DUE, name="due-at-once", database="queued", workers=(LOOPS,), environment=KEPT, share=5.0)
QUEUED = replace(DUE_AT_ONCE, name="queued", workers=(SCHEDULER,))

FLOOR = Contestant(
    name="floor",
    module="bench.peers.floor",
    workers=(("python", "-m", "bench.peers.floor"),) * 2,
    recorded="SELECT count(*) FROM floor_execution WHERE state = 'completed'",
    share=2.0,
)
PGQUEUER = Contestant(
    name="pgqueuer",
    module="bench.peers.pgqueuer",
    package="pgqueuer",
    workers=(("python", "-m", "bench.peers.pgqueuer"),) * 2,
    recorded="SELECT count(*) FROM pgqueuer_log WHERE status = 'successful'",
    is_open="SELECT EXISTS (SELECT FROM pgqueuer)",
    share=2.0,
)
CHANCY = Contestant(
    name="chancy",
    module="bench.peers.chancy",
    package="chancy",
    workers=(("chancy", "--app", "bench.peers.chancy.app", "worker", "start"),) * 2,
    recorded="SELECT count(*) FROM chancy_jobs WHERE state = 'succeeded'",
    share=2.0,
)
PROCRASTINATE = Contestant(
    name="procrastinate",
    module="bench.peers.procrastinate",
    package="procrastinate",
    workers=(("python", "-m", "django", "procrastinate", "worker", "--concurrency", "20"),) * 2,
    recorded="SELECT count(*) FROM procrastinate_jobs WHERE status = 'succeeded'",
    share=0.2,
    environment=DJANGO,
)
DJANGO_TASKS = Contestant(
    name="django-tasks-db",
    module="bench.peers.django_tasks",
    package="django-tasks-db",
    workers=(("python", "-m", "django", "db_worker", "--no-startup-delay", "--verbosity", "0"),) * 2,
    recorded="SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status = 'SUCCESSFUL'",
    share=0.2,
    environment=DJANGO,
)
ALONE = ("--without-gossip", "--without-mingle")
CELERY = Contestant(
    name="celery",
    module="bench.peers.celery",
    package="django-celery-results",
    workers=(
        ("celery", "--app", "bench.peers.celery", "worker", "--concurrency", "2", "--loglevel", "WARNING", *ALONE),
    ),
    recorded="SELECT count(*) FROM django_celery_results_taskresult WHERE status = 'SUCCESS'",
    share=0.2,
    needs_redis=True,
    has_chains=True,
    environment=DJANGO,
)
DRAMATIQ = Contestant(
    name="dramatiq",
    module="bench.peers.dramatiq",
    package="dramatiq",
    workers=(("dramatiq", "bench.peers.dramatiq", "--processes", "2", "--threads", "8"),),
    share=0.5,
    needs_redis=True,
)
HUEY = ("--workers", "2", "--worker-type", "process", "--quiet", "--no-periodic")
HUEY_REDIS = Contestant(
    name="huey-redis",
    module="bench.peers.huey_redis",
    package="huey",
    workers=(("huey_consumer", "bench.peers.huey_redis.huey", *HUEY),),
    share=0.5,
    needs_redis=True,
)
HUEY_POSTGRES = Contestant(
    name="huey-postgres",
    module="bench.peers.huey_postgres",
    package="huey",
    workers=(("huey_consumer", "bench.peers.huey_postgres.huey", *HUEY),),
    is_open="SELECT EXISTS (SELECT FROM huey_task)",
    share=0.5,
)

# In the order of a round: ours are spread over it.
CONTESTANTS = {
    one.name: one
    for one in (
        TRIGGER,
        PGQUEUER,
        FLOOR,
        DUE,
        CHANCY,
        PROCRASTINATE,
        DEFAULT,
        CELERY,
        DJANGO_TASKS,
        TWO_SCHEDULERS,
        HISTORY,
        DRAMATIQ,
        HUEY_REDIS,
        HUEY_POSTGRES,
    )
}
