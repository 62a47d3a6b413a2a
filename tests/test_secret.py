"""Secrets: the name is stored, the value is found when the job asks, and it comes to rest nowhere."""

import json
import logging
from dataclasses import dataclass, field

import pytest
from django.apps import apps
from django.db import connection

from chainsched import GiveUp, RunContext, Secret, workflow
from chainsched.checks import check_inputs
from chainsched.domain.inputs import InputType
from chainsched.exceptions import InvalidInput, UnknownSecret
from chainsched.models import Manifest, Metadata
from chainsched.registry import Registry
from chainsched.secret import MAX_REMEMBERED, _Revealed, variable_of
from tests.drive import new_bench

CANARY = "canary-7f3a91"
NAME = "warehouse/writer"
VARIABLE = "CHAINSCHED_SECRET_WAREHOUSE_WRITER"


@dataclass(frozen=True)
class Leak:
    """In which way a job gives its secret away."""

    how: str
    credential: Secret = field(default=Secret(NAME))


@workflow(name="tests.leak")
def leak(job: Leak, run: RunContext) -> object:
    value = job.credential.reveal()
    run.progress(1, 2, f"logged in with {value}")
    if job.how == "error":
        raise GiveUp(f"cannot log in with {value}")
    if job.how == "cause":
        try:
            raise KeyError(value)
        except KeyError as error:
            raise GiveUp("cannot log in") from error
    if job.how == "number":
        return {value: 1, "nested": [{"harmless": f"<{value}>"}]}
    return value


@pytest.fixture
def canary(monkeypatch):
    monkeypatch.setenv(VARIABLE, CANARY)


class TestTheType:
    stored = InputType(lambda: Leak, workflow="tests.leak")

    def test_its_name_is_stored(self):
        assert self.stored.dump(Leak("output"), max_bytes=1000) == {"how": "output", "credential": NAME}

    def test_a_name_is_taken_for_it(self):
        assert self.stored.load({"how": "x", "credential": "other"}).credential == Secret("other")

    @pytest.mark.parametrize("name", ["", "  ", "x" * 201, 17, None, {"name": "a"}])
    def test_nothing_else_is(self, name):
        with pytest.raises(InvalidInput, match="the name of a secret is a text of 1 to 200 characters"):
            self.stored.load({"how": "x", "credential": name})

    def test_it_tells_its_name_and_not_its_value(self, canary):
        Secret(NAME).reveal()
        assert repr(Secret(NAME)) == f"Secret(name={NAME!r})"
        assert CANARY not in f"{Secret(NAME)}"

    def test_its_schema_says_what_it_is(self):
        assert self.stored.schema()["properties"]["credential"]["format"] == "chainsched-secret"


class TestRevealing:
    def test_the_environment_is_asked_under_a_prefix(self, canary):
        assert variable_of(NAME) == VARIABLE
        assert Secret(NAME).reveal() == CANARY

    def test_no_other_variable_can_be_reached(self):
        with pytest.raises(UnknownSecret):
            Secret("PATH").reveal()

    def test_a_project_may_ask_its_vault(self, settings):
        settings.CHAINSCHED = {"SECRETS": {"db": "from the vault"}.get}
        assert Secret("db").reveal() == "from the vault"
        with pytest.raises(UnknownSecret, match=r"There is no secret .other.\. Set the environment variable"):
            Secret("other").reveal()


@pytest.mark.django_db
@pytest.mark.parametrize("how", ["output", "error", "cause", "number"])
def test_the_value_comes_to_rest_nowhere(how, canary, caplog):
    caplog.set_level(logging.DEBUG)
    bench = new_bench()
    Manifest.objects.schedule(leak, "leaking", Leak(how), None).trigger()
    bench.drain()
    execution = Metadata.objects.get()
    assert execution.ended_at is not None
    assert "[redacted]" in json.dumps([execution.output, execution.progress, execution.failure_traceback])
    assert CANARY not in dump()
    assert CANARY not in caplog.text


def dump() -> str:
    """Every value of every table of ours."""
    found = []
    with connection.cursor() as cursor:
        for model in apps.get_app_config("chainsched").get_models():
            cursor.execute(f"SELECT * FROM {model._meta.db_table}")  # noqa: S608 - our own tables
            found += [str(row) for row in cursor.fetchall()]
    assert NAME in "".join(found), "the dump holds inputs"
    return "\n".join(found)


@pytest.mark.django_db
def test_a_plain_value_under_a_secret_name_is_not_kept_either():
    @workflow(name="tests.careless")
    def careless() -> dict[str, str]:
        return {"access_token": "swordfish", "rows": "3"}

    bench = new_bench()
    Manifest.objects.schedule(careless, "careless", None, None).trigger()
    bench.drain()
    assert Metadata.objects.get().output == {"access_token": "[redacted]", "rows": "3"}


class TestTheCheck:
    @pytest.fixture
    def registry(self, monkeypatch):
        fresh = Registry()
        monkeypatch.setattr("chainsched.registry.registry", fresh)
        monkeypatch.setattr("chainsched.checks.registry", fresh)
        return fresh

    def test_a_text_with_a_secret_name_is_warned_of(self, registry):
        @dataclass
        class Inner:
            api_key: str | None

        @dataclass
        class Login:
            password: str
            inner: Inner
            table: str
            max_tokens: int

        @workflow(name="tests.login")
        def login(job: Login) -> None: ...

        messages = check_inputs(None)
        assert [message.id for message in messages] == ["chainsched.W004"] * 2
        assert "tests.login: the field 'api_key'" in messages[0].msg
        assert "the field 'password'" in messages[1].msg

    def test_a_secret_is_not(self, registry):
        @dataclass
        class Login:
            password: Secret
            token: Secret | None = None

        @workflow(name="tests.login")
        def login(job: Login) -> None: ...

        assert check_inputs(None) == []


def test_the_value_that_was_asked_for_last_is_forgotten_last():
    kept = _Revealed()
    kept.remember("the-present-one")
    for number in range(MAX_REMEMBERED - 1):
        kept.remember(f"another-{number}")
    kept.remember("the-present-one")
    kept.remember("one-more")
    assert "the-present-one" in kept.values()
    assert "another-0" not in kept.values()
