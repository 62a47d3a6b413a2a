"""The CHAINSCHED setting: each option at its limit and beyond, and every problem in one error."""

from __future__ import annotations

import contextlib
import re
import sys
from dataclasses import FrozenInstanceError, asdict
from textwrap import dedent
from types import MappingProxyType
from typing import Any

import pytest
from django.apps import apps
from django.conf import settings as django_settings
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.test import override_settings

from chainsched.conf import OPTIONS, Config, HeaderNames, SeedConfig, find_problems, get_config, load_server
from chainsched.exceptions import ConfigurationError

DEFAULTS = {
    "database": "default",
    "task_server": "database",
    "seed": {"on_start": True, "post_migrate": True},
    "manager_interval": 5,
    "dispatcher_interval": 5,
    "worker_interval": 1,
    "reap_interval": 5,
    "reconcile_interval": 300,
    "cleanup_interval": 60,
    "bulk_decisions_interval": 5,
    "keep_sessions": True,
    "listen": True,
    "max_active_jobs": 100,
    "dependent_priority_boost": 16,
    "max_retries": 3,
    "retry_delay": 300,
    "retry_multiplier": 2.0,
    "max_retry_delay": 3600,
    "job_timeout": 1200,
    "kill_grace": 5,
    "heartbeat_interval": 5,
    "process_expiry": 30,
    "shutdown_timeout": 30,
    "max_jobs_per_child": 10_000,
    "max_child_memory": None,
    "misfire_policy": "run_once",
    "misfire_threshold": 60,
    "max_job_depth": 5,
    "max_open_runs": 100,
    "max_fan_out": 10,
    "max_input_bytes": 1024 * 1024,
    "max_output_bytes": 1024 * 1024,
    "retention": 30 * 24 * 3600,
    "keep_last": 10,
    "secrets": None,
    "headers": {
        "correlation_id": "chainsched-corr-id",
        "sequence": "chainsched-corr-seq",
        "causation_id": "chainsched-causation-id",
        "root_correlation_id": "chainsched-root-corr-id",
    },
}
NESTED = {"SEED": SeedConfig, "HEADERS": HeaderNames}
SECONDS = [
    "MANAGER_INTERVAL",
    "DISPATCHER_INTERVAL",
    "WORKER_INTERVAL",
    "REAP_INTERVAL",
    "RECONCILE_INTERVAL",
    "CLEANUP_INTERVAL",
    "BULK_DECISIONS_INTERVAL",
    "KILL_GRACE",
    "HEARTBEAT_INTERVAL",
    "PROCESS_EXPIRY",
    "SHUTDOWN_TIMEOUT",
]
SECONDS_OR_ZERO = ["RETRY_DELAY", "MAX_RETRY_DELAY", "MISFIRE_THRESHOLD"]
AT_LEAST = {
    "JOB_TIMEOUT": 1,
    "MAX_RETRIES": 0,
    "KEEP_LAST": 0,
    "MAX_JOB_DEPTH": 0,
    "MAX_ACTIVE_JOBS": 1,
    "MAX_OPEN_RUNS": 1,
    "MAX_FAN_OUT": 1,
    "MAX_JOBS_PER_CHILD": 1,
    "MAX_CHILD_MEMORY": 1,
    "MAX_INPUT_BYTES": 1,
    "MAX_OUTPUT_BYTES": 1,
}
OR_NONE = ["MAX_ACTIVE_JOBS", "MAX_OPEN_RUNS", "MAX_CHILD_MEMORY"]

FINE: list[tuple[str, Any]] = [
    *((key, minimum) for key, minimum in AT_LEAST.items()),
    *((key, None) for key in OR_NONE),
    ("DATABASE", "default"),
    ("OWNER", "shop"),
    ("TASK_SERVER", "database"),
    ("TASK_SERVER", "inline"),
    ("KEEP_SESSIONS", False),
    ("LISTEN", False),
    ("LISTEN", True),
    ("DEPENDENT_PRIORITY_BOOST", 0),
    ("DEPENDENT_PRIORITY_BOOST", 31),
    ("RETRY_MULTIPLIER", 1),
    ("RETRY_MULTIPLIER", 1.5),
    ("MISFIRE_POLICY", "skip"),
    ("SEED", {}),
    ("SEED", {"on_start": False, "post_migrate": False}),
    ("RETENTION", 0.5),
    ("RETENTION", None),
    ("RETENTION", {}),
    ("RETENTION", {"*": 60, "failed": None, "etl.copy": 1, "etl.copy:failed": 0.5}),
    ("KEEP_LAST", {"*": 0, "etl.copy": 100}),
    ("SECRETS", None),
    ("SECRETS", str),
    ("HEADERS", {}),
    ("HEADERS", {"correlation_id": "X-Correlation-Id"}),
]
BAD: list[tuple[str, Any]] = [
    *((key, value) for key in SECONDS for value in (0, -1, True, "5", None, float("inf"), float("nan"))),
    *((key, value) for key in SECONDS_OR_ZERO for value in (-1, True, "5", None, float("inf"), float("nan"))),
    *((key, minimum - 1) for key, minimum in AT_LEAST.items()),
    *((key, value) for key in AT_LEAST for value in (True, 1.5, "5")),
    *((key, None) for key in AT_LEAST if key not in OR_NONE),
    ("DATABASE", "replica"),
    ("DATABASE", None),
    ("OWNER", ""),
    ("OWNER", "  "),
    ("OWNER", None),
    ("TASK_SERVER", "hangfire"),
    ("TASK_SERVER", "hangfire."),
    ("TASK_SERVER", "hang fire.Server"),
    ("TASK_SERVER", ""),
    ("TASK_SERVER", None),
    ("TASK_SERVER", ["database"]),
    ("KEEP_SESSIONS", 0),
    ("LISTEN", 1),
    ("LISTEN", "yes"),
    ("DEPENDENT_PRIORITY_BOOST", -1),
    ("DEPENDENT_PRIORITY_BOOST", 32),
    ("DEPENDENT_PRIORITY_BOOST", True),
    ("RETRY_MULTIPLIER", 0.99),
    ("RETRY_MULTIPLIER", float("inf")),
    ("RETRY_MULTIPLIER", True),
    ("MISFIRE_POLICY", "later"),
    ("SEED", True),
    ("SEED", {"on_start": 1}),
    ("SEED", {"on_stop": True}),
    *(("RETENTION", value) for value in (0, -1, True, "5", float("inf"), {"*": 0}, {"*": "5"}, {3: 60}, {"": 60})),
    ("SECRETS", "myproject.vault.read"),
    *(("KEEP_LAST", value) for value in ({"*": -1}, {"*": None}, {3: 1}, {"failed": 1}, {"etl.copy:failed": 1})),
    ("RETENTION", {"etl.copy:pending": 60}),
    ("RETENTION", {"etl.copy:broken": 60}),
    ("HEADERS", "X-Correlation-Id"),
    ("HEADERS", {"correlation_id": ""}),
    ("HEADERS", {"corr_id": "X"}),
]


def without_owner(config: Config) -> dict[str, Any]:
    return {name: value for name, value in asdict(config).items() if name != "owner"}


def test_the_defaults_are_the_documented_ones():
    with override_settings(CHAINSCHED={}):
        assert without_owner(get_config()) == DEFAULTS


def test_a_project_without_the_setting_gets_the_defaults(settings):
    if hasattr(settings, "CHAINSCHED"):
        del settings.CHAINSCHED
    get_config.cache_clear()
    assert without_owner(get_config()) == DEFAULTS


def test_the_owner_is_the_first_part_of_the_settings_module():
    assert get_config().owner == "tests"


@override_settings(CHAINSCHED={"MAX_RETRIES": 5})
def test_the_owner_stays_the_same_under_overridden_settings():
    assert get_config().owner == "tests"


@pytest.mark.parametrize(("key", "value"), FINE)
def test_a_value_at_its_limit_is_taken(key, value):
    with override_settings(CHAINSCHED={key: value}):
        config = asdict(get_config())
    expected = asdict(NESTED[key](**value)) if key in NESTED else value
    assert config == DEFAULTS | {"owner": config["owner"], key.lower(): expected}


@pytest.mark.parametrize("key", SECONDS + SECONDS_OR_ZERO)
def test_a_fraction_of_a_second_is_a_length_of_time(key):
    others = {"MAX_RETRY_DELAY": {"RETRY_DELAY": 0.5}, "PROCESS_EXPIRY": {"HEARTBEAT_INTERVAL": 0.1}}
    with override_settings(CHAINSCHED={key: 0.5} | others.get(key, {})):
        assert getattr(get_config(), key.lower()) == 0.5


@pytest.mark.parametrize(("key", "value"), BAD)
def test_a_value_beyond_its_limit_is_refused_naming_option_and_value(key, value):
    (problem,) = find_problems({key: value})
    assert problem.startswith(f"CHAINSCHED['{key}']")
    # Of a dict, the one key or value that is wrong is named.
    (named, item) = next(iter(value.items())) if isinstance(value, dict) else (value, value)
    assert repr(named) in problem or repr(item) in problem
    assert problem.endswith(".")
    assert not re.search("pydantic|http|validat|input should|keyword", problem, re.IGNORECASE)


@pytest.mark.parametrize(
    ("key", "value"),
    [("DATABASE", ["default"]), ("OWNER", "x" * 101), ("MAX_RETRIES", 2**31), ("RETRY_DELAY", 10**400)],
    ids=["a database that is no text", "an owner longer than its column", "beyond a column", "beyond a float"],
)
def test_a_value_that_would_break_later_is_refused(key, value):
    (problem,) = find_problems({key: value})
    assert key in problem


def test_every_option_is_tried_here():
    tried = {key for key, _ in FINE} | set(SECONDS) | set(SECONDS_OR_ZERO)
    assert tried == set(OPTIONS)
    assert {key for key, _ in BAD} == set(OPTIONS)


def test_all_problems_are_reported_together():
    stated = {"MAX_RETRIES": -1, "LISTEN": "yes", "MAX_RETRYS": 3, "SEED": {"on_start": 1, "on_stop": True}}
    with override_settings(CHAINSCHED=stated), pytest.raises(ConfigurationError) as caught:
        get_config()
    assert len(caught.value.problems) == 5
    for word in ("MAX_RETRIES", "LISTEN", "MAX_RETRYS", "on_start", "on_stop"):
        assert word in str(caught.value)
    assert isinstance(caught.value, ImproperlyConfigured)


@pytest.mark.parametrize(
    ("key", "near"),
    [("MAX_RETRYS", "MAX_RETRIES"), ("max_retries", "MAX_RETRIES"), ("HEARTBEAT", "HEARTBEAT_INTERVAL")],
)
def test_an_unknown_key_suggests_the_near_one(key, near):
    (problem,) = find_problems({key: 3})
    assert f"no option {key!r}" in problem
    assert f"Did you mean {near!r}?" in problem


@pytest.mark.parametrize("key", ["COLOUR_OF_THE_SKY", 5])
def test_an_unknown_key_that_is_near_nothing_is_refused(key):
    (problem,) = find_problems({key: 3})
    assert f"no option {key!r}" in problem
    assert "Did you mean" not in problem


@pytest.mark.parametrize("stated", [[], "x", None, 5])
def test_a_setting_that_is_no_dict_is_refused(stated):
    (problem,) = find_problems(stated)
    assert "must be a dict" in problem


@pytest.mark.parametrize(
    ("stated", "words"),
    [
        ({"PROCESS_EXPIRY": 9}, ["PROCESS_EXPIRY", "HEARTBEAT_INTERVAL"]),
        ({"HEARTBEAT_INTERVAL": 16}, ["PROCESS_EXPIRY", "HEARTBEAT_INTERVAL"]),
        ({"MAX_RETRY_DELAY": 299}, ["MAX_RETRY_DELAY", "RETRY_DELAY"]),
        ({"RETRY_DELAY": 3601}, ["MAX_RETRY_DELAY", "RETRY_DELAY"]),
    ],
)
def test_values_that_contradict_each_other_are_refused_naming_both(stated, words):
    (problem,) = find_problems(stated)
    assert all(word in problem for word in words)


@pytest.mark.parametrize(
    "stated",
    [
        {"PROCESS_EXPIRY": 10},
        {"HEARTBEAT_INTERVAL": 15},
        {"PROCESS_EXPIRY": 2, "HEARTBEAT_INTERVAL": 1},
        {"MAX_RETRY_DELAY": 300},
        {"RETRY_DELAY": 1, "MAX_RETRY_DELAY": 1},
    ],
)
def test_values_that_just_agree_are_fine(stated):
    assert find_problems(stated) == []


def test_both_contradictions_are_reported_together():
    assert len(find_problems({"PROCESS_EXPIRY": 9, "MAX_RETRY_DELAY": 299})) == 2


def test_a_contradiction_is_reported_together_with_another_problem():
    assert len(find_problems({"PROCESS_EXPIRY": 9, "MAX_RETRYS": 3})) == 2


def test_a_value_of_the_wrong_type_is_refused_with_the_value_and_the_remedy():
    assert find_problems({"MAX_RETRIES": "3"}) == [
        "CHAINSCHED['MAX_RETRIES'] must be a whole number from 0 to 2147483647, not '3'."
    ]


def test_of_a_dict_each_wrong_entry_is_named_by_its_key():
    assert find_problems({"RETENTION": {"*": 60, "etl.copy": "5", "etl.copy:broken": 60}}) == [
        "CHAINSCHED['RETENTION']['etl.copy'] must be None or a number of seconds above 0, ten years at most, not '5'.",
        (
            "CHAINSCHED['RETENTION'] must have as keys '*', a state (completed, failed, cancelled), a workflow, or "
            "'workflow:state', not 'etl.copy:broken'."
        ),
    ]


@pytest.mark.parametrize("key", ["on_stop", 3])
def test_an_unknown_key_of_a_nested_dict_is_refused_with_the_known_ones(key):
    assert find_problems({"SEED": {key: True}}) == [
        f"CHAINSCHED['SEED'] has no key {key!r}; it has on_start, post_migrate."
    ]


def test_a_nested_setting_that_is_no_dict_is_refused_with_its_keys():
    assert find_problems({"SEED": True}) == [
        "CHAINSCHED['SEED'] must be a dict with the keys on_start, post_migrate, not True."
    ]


def test_any_mapping_is_taken_as_a_dict():
    stated = MappingProxyType({"SEED": MappingProxyType({"on_start": False}), "RETENTION": MappingProxyType({"*": 60})})
    with override_settings(CHAINSCHED=stated):
        config = get_config()
    assert config.seed == SeedConfig(on_start=False)
    assert config.retention == {"*": 60}


class TestTheTaskServer:
    """A path to a class is resolved when the setting is read."""

    PATH = "shop_servers.Server"
    COMPLETE = """
        class Server:
            def pools(self, *, now): ...
            def recent_workflows(self, *, now): ...
            def take(self, *, process, limit, now): ...
            def submit(self, execution_ids): ...
            def cancel(self, execution_ids): ...
            def forget(self, execution_ids): ...
    """

    @pytest.fixture
    def write(self, tmp_path, monkeypatch):
        """Write the module of the server, which is forgotten after the test."""
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "shop_servers", raising=False)

        def write(source):
            (tmp_path / "shop_servers.py").write_text(dedent(source))

        yield write
        sys.modules.pop("shop_servers", None)

    def test_a_complete_class_is_taken(self, write):
        write(self.COMPLETE)
        with override_settings(CHAINSCHED={"TASK_SERVER": self.PATH}):
            assert get_config().task_server == self.PATH
            assert load_server() is sys.modules["shop_servers"].Server

    def test_a_class_may_inherit_the_methods(self, write):
        write("""
            from chainsched.servers.database import DatabaseServer

            class Server(DatabaseServer):
                pass
        """)
        assert find_problems({"TASK_SERVER": self.PATH}) == []

    def test_a_module_that_does_not_exist_is_named(self):
        (problem,) = find_problems({"TASK_SERVER": "no_such_shop.servers.Server"})
        assert problem == (
            "CHAINSCHED['TASK_SERVER'] names 'no_such_shop.servers.Server', but the module no_such_shop.servers cannot "
            "be imported: ModuleNotFoundError: No module named 'no_such_shop'. Correct the path or the code."
        )

    def test_a_module_that_fails_is_named_with_its_error(self, write):
        write("raise LookupError('no broker in {region}')")
        (problem,) = find_problems({"TASK_SERVER": self.PATH})
        assert "the module shop_servers cannot be imported: LookupError: no broker in {region}." in problem

    def test_a_class_that_the_module_does_not_have_is_named(self, write):
        write("class Sever: ...")
        (problem,) = find_problems({"TASK_SERVER": self.PATH})
        assert "the module shop_servers has no 'Server'. Correct the name" in problem

    def test_an_object_that_is_no_class_is_refused(self, write):
        write("Server = object()")
        (problem,) = find_problems({"TASK_SERVER": self.PATH})
        assert "'Server' in the module shop_servers is no class." in problem

    def test_each_method_that_a_class_lacks_is_named(self, write):
        write("""
            class Server:
                submit = None
                def pools(self, *, now): ...
        """)
        (problem,) = find_problems({"TASK_SERVER": self.PATH})
        assert "the class lacks cancel, forget, recent_workflows, submit, take. Define each" in problem

    def test_a_method_that_only_the_interface_declares_is_missing(self, write):
        write("""
            from chainsched.servers import TaskServer

            class Server(TaskServer):
                def submit(self, execution_ids): ...
        """)
        (problem,) = find_problems({"TASK_SERVER": self.PATH})
        assert "the class lacks cancel, forget, pools, recent_workflows, take." in problem

    def test_it_is_reported_together_with_all_other_problems(self):
        stated = {"TASK_SERVER": "no_such_shop.servers.Server", "MAX_RETRIES": "3", "PROCESS_EXPIRY": 9, "LISTENN": 1}
        with override_settings(CHAINSCHED=stated), pytest.raises(ConfigurationError) as caught:
            get_config()
        assert len(caught.value.problems) == 4
        for word in ("no_such_shop.servers", "MAX_RETRIES", "PROCESS_EXPIRY", "LISTENN"):
            assert word in str(caught.value)

    def test_before_the_models_are_loaded_the_class_is_not_imported(self, monkeypatch):
        with override_settings(CHAINSCHED={"TASK_SERVER": "no_such_shop.servers.Server"}):
            with monkeypatch.context() as starting:
                starting.setattr(apps, "models_ready", False)
                assert get_config().task_server == "no_such_shop.servers.Server"
            apps.get_app_config("chainsched").ready()
            with pytest.raises(ConfigurationError, match=r"no_such_shop\.servers cannot be imported"):
                get_config()


def test_overridden_settings_take_effect_and_go_again():
    before = get_config().max_retries
    with override_settings(CHAINSCHED={"MAX_RETRIES": before + 4}):
        assert get_config().max_retries == before + 4
    assert get_config().max_retries == before


def test_the_configuration_is_one_value_that_cannot_be_changed():
    assert get_config() is get_config()
    with pytest.raises(FrozenInstanceError):
        get_config().max_retries = 9  # type: ignore[misc]


def test_a_wrong_setting_is_refused_each_time_and_mended_at_once():
    with override_settings(CHAINSCHED={"MAX_RETRIES": -1}):
        for _ in range(2):
            with pytest.raises(ConfigurationError):
                get_config()
    assert isinstance(get_config(), Config)


POSTGRESQL, SQLITE = "django.db.backends.postgresql", "django.db.backends.sqlite3"


class TestListening:
    @pytest.fixture
    def let_be(self, monkeypatch):
        """Make an alias with this engine."""
        made = []

        def make(alias, engine):
            monkeypatch.setitem(
                django_settings.DATABASES, alias, {**django_settings.DATABASES["default"], "ENGINE": engine}
            )
            made.append(alias)

        get_config.cache_clear()
        yield make
        get_config.cache_clear()
        for alias in made:
            # Only those that were asked for were made.
            with contextlib.suppress(AttributeError):
                del connections[alias]

    def test_it_goes_over_the_database_itself_unless_an_alias_is_named(self):
        assert get_config().listening_alias == "default"
        with override_settings(CHAINSCHED={"LISTEN": False}):
            assert get_config().listening_alias == "default"

    def test_an_alias_of_postgresql_can_be_named(self, let_be):
        let_be("main", POSTGRESQL)
        let_be("direct", POSTGRESQL)
        with override_settings(CHAINSCHED={"DATABASE": "main", "LISTEN": "direct"}):
            assert get_config().listening_alias == "direct"

    def test_an_unknown_alias_is_refused_with_the_known_ones(self):
        (problem,) = find_problems({"LISTEN": "dierct"})
        assert problem == "CHAINSCHED['LISTEN'] must be True, False or one of DATABASES (default), not 'dierct'."

    @pytest.mark.parametrize(
        ("main", "listening", "named"), [(POSTGRESQL, SQLITE, "direct"), (SQLITE, POSTGRESQL, "main")]
    )
    def test_one_that_is_not_postgresql_is_refused(self, let_be, main, listening, named):
        let_be("main", main)
        let_be("direct", listening)
        (problem,) = find_problems({"DATABASE": "main", "LISTEN": "direct"})
        assert problem.startswith(f"CHAINSCHED['LISTEN'] names 'direct', but the database {named!r} is not PostgreSQL")
