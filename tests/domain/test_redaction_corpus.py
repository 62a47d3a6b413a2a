# ruff: noqa: E501 - the messages are written as the libraries print them
"""Messages of everyday exceptions, each with secrets in it: none survives, and the rest of the message stays."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import psycopg
import pydantic
import pytest
from django import forms
from django.test.utils import override_settings
from django.views.debug import SafeExceptionReporterFilter
from hypothesis import assume, given
from hypothesis import strategies as st

from chainsched.domain.outcomes import raised
from chainsched.domain.redaction import REDACTED, is_secret_name, redact, redact_text

CANARY = "canary-k3str3l"
# Its parts, of which none is left; no id or token of a page holds them by chance.
PARTS = ("canary", "k3str3l")


class Credentials(pydantic.BaseModel):
    host: str
    password: str = pydantic.Field(min_length=64)


class Strict(pydantic.BaseModel):
    host: int
    password: str


@dataclass
class Login:
    host: str
    password: Any


class LoginForm(forms.Form):
    host = forms.CharField()
    password = forms.CharField(max_length=3)


def error_of(call: Callable[[], Any]) -> str:
    """The exception as its traceback ends."""
    try:
        call()
    except Exception as error:  # noqa: BLE001 - the point of this function
        return f"{type(error).__name__}: {error}"
    pytest.fail("it raised nothing")


def invalid_form() -> None:
    form = LoginForm({"host": "db1", "password": CANARY})
    assert not form.is_valid()
    raise forms.ValidationError(f"{form.data} {form.errors.as_json()} {form['password']}")


def unknown_scheme() -> None:
    urllib.request.urlopen(f"unheard://bob:{CANARY}@db1/orders")  # noqa: S310 - it is not opened


def not_connected() -> None:
    psycopg.connect(f"host=db1 password={CANARY} orders=1 connect_timeout=1")


def failed_command(*command: str) -> Callable[[], Any]:
    return lambda: subprocess.run([sys.executable, "-c", "raise SystemExit(3)", *command], check=True)


def broken_statement() -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute(f"INSERT INTO db1 (password) VALUES ('{CANARY}')")  # noqa: S608 - it has to fail


def raise_(error: Exception) -> Callable[[], Any]:
    def call() -> None:
        raise error

    return call


# Raised by the libraries themselves. Second are the parts that have to stay readable.
RAISED: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "pydantic: too short": (
        lambda: Credentials(host="db1", password=CANARY),
        ("ValidationError", "password", "64 characters"),
    ),
    "pydantic: of the whole": (
        lambda: Strict.model_validate({"password": CANARY}),
        ("ValidationError", "host", "Field required"),
    ),
    "pydantic: of the whole, shortened": (
        lambda: Strict.model_validate({"comment": "x" * 40, "password": "x" * 20 + CANARY}),
        ("ValidationError", "host", "Field required"),
    ),
    "pydantic: of another class": (
        lambda: Strict.model_validate(Login("db1", CANARY)),
        ("ValidationError", "Strict"),
    ),
    "pydantic: JSON": (
        lambda: Strict.model_validate_json(f'{{"host": "db1", "password": "{CANARY}"'),
        ("ValidationError", "Invalid JSON"),
    ),
    "Django: form": (invalid_form, ("ValidationError", "db1")),
    "Django: settings": (
        raise_(RuntimeError({"ENGINE": "postgresql", "HOST": "db1", "PASSWORD": CANARY, "OPTIONS": {"passfile": "x"}})),
        ("RuntimeError", "postgresql", "db1"),
    ),
    "psycopg: connection string": (
        raise_(psycopg.OperationalError(f"connection is bad: host=db1 user=bob password={CANARY} dbname=orders")),
        ("OperationalError", "db1", "orders"),
    ),
    "psycopg: unknown option": (not_connected, ("ProgrammingError", "orders")),
    "urllib: unknown type": (unknown_scheme, ("URLError", "unheard")),
    "subprocess: two words": (failed_command("--password", CANARY, "--host", "db1"), ("CalledProcessError", "db1")),
    "subprocess: one word": (failed_command(f"--password={CANARY} {CANARY}", "db1"), ("CalledProcessError", "db1")),
    "subprocess: curl": (failed_command("curl", "-u", f"bob:{CANARY}", "https://db1/"), ("bob", "db1", "status 3")),
    "subprocess: header": (failed_command("-H", f"Authorization: Bearer {CANARY}", "db1"), ("db1", "status 3")),
    "subprocess: timeout": (
        raise_(subprocess.TimeoutExpired(f"mysql --password={CANARY} -h db1", 3)),
        ("TimeoutExpired", "db1", "3 seconds"),
    ),
    "json: the document": (
        raise_(ValueError("not JSON: " + json.dumps({"body": json.dumps({"password": CANARY, "host": "db1"})}))),
        ("ValueError", "db1"),
    ),
    "python: dataclass": (raise_(ValueError(Login("db1", [b"x", {CANARY: CANARY}]))), ("ValueError", "Login", "db1")),
    "python: SecretStr": (raise_(ValueError(f"Login(host='db1', x=SecretStr('{CANARY}'))")), ("Login", "db1")),
    "python: KeyError": (raise_(KeyError(f"db1 has no secret={CANARY}")), ("KeyError", "db1")),
    "python: bytes": (
        raise_(OSError(b"host=db1&password=" + CANARY.encode() + b"&page=2")),
        ("OSError", "db1", "page=2"),
    ),
    "python: environment": (
        raise_(
            RuntimeError(f"environ({{'HOST': 'db1', 'DB_PASSWORD': '{CANARY}', 'AWS_SECRET_ACCESS_KEY': '{CANARY}'}})")
        ),
        ("RuntimeError", "db1"),
    ),
    "sqlite3": (broken_statement, ("OperationalError", "db1")),
}

# Written out as these libraries write them; they are not installed here.
WRITTEN: dict[str, tuple[str, tuple[str, ...]]] = {
    "psycopg: unique": (
        ('UniqueViolation: duplicate key value violates unique constraint "orders_token"\n'
        "DETAIL:  Key (api_token)=(canary-k3str3l) already exists."),
        ("UniqueViolation", "orders_token", "already exists"),
    ),
    "psycopg: unique of several": (
        ('UniqueViolation: duplicate key value violates unique constraint "orders_token"\n'
        "DETAIL:  Key (email, lower(api_token))=(a@b.c, canary (k3str3l)) already exists."),
        ("UniqueViolation", "orders_token"),
    ),
    "psycopg: lines in the value": (
        "DETAIL:  Key (secret, id)=(canary\nk3str3l, 5) is not present in table \"orders\".", ("orders",)
    ),
    "psycopg: row": (
        ('NotNullViolation: null value in column "x" of relation "orders" violates not-null constraint\n'
        "DETAIL:  Failing row contains (1, bob, canary-k3str3l, null)."),
        ("NotNullViolation", "orders"),
    ),
    "psycopg: statement": (
        'SyntaxError: syntax error\nLINE 1: INSERT INTO "orders" ("id", "password") VALUES (1, \'canary-k3str3l\'), (2, \'k3str3l\')\n   ^',
        ("SyntaxError", "orders"),
    ),
    "psycopg: statement cut": (
        'SyntaxError: syntax error\nLINE 1: ...sers" ("id", "pass", "x") VALUES (1, \'canary-k3str3l\')\n   ^', ("SyntaxError",)
    ),
    "psycopg: role": ("LINE 1: ALTER ROLE bob WITH PASSWORD 'canary-k3str3l' VALID UNTIL 'x'", ("ALTER ROLE bob",)),
    "mysql: duplicate": (
        "IntegrityError: (1062, \"Duplicate entry 'canary-k3str3l' for key 'orders.api_token'\")",
        ("IntegrityError", "orders.api_token"),
    ),
    "SQLAlchemy: named": (
        ("IntegrityError: (x) failed\n[SQL: INSERT INTO orders (name, password) VALUES (%(name)s, %(password)s)]\n"
        "[parameters: {'name': 'bob', 'password': 'canary-k3str3l'}]\n(Background on this error at: https://sqlalche.me/e/20/gkpj)"),
        ("IntegrityError", "orders", "bob", "sqlalche.me"),
    ),
    "SQLAlchemy: by place": (
        ("IntegrityError: (x) failed\n[SQL: INSERT INTO orders (name,\n password) VALUES (?, ?)]\n"
        "[parameters: ('bob', 'canary-k3str3l')]\n(Background on this error at: https://sqlalche.me/e/20/gkpj)"),
        ("IntegrityError", "orders", "sqlalche.me"),
    ),
    "SQLAlchemy: address": (
        "ArgumentError: Could not parse SQLAlchemy URL from given URL string 'postgresql://bob:canary@k3str3l/#canary@db1/orders'",
        ("ArgumentError", "db1/orders"),
    ),
    "requests: query": (
        "HTTPError: 401 Client Error: Unauthorized for url: https://db1/orders?api_key=canary-k3str3l&page=2",
        ("401 Client Error", "db1/orders", "page=2"),
    ),
    "requests: key": ("HTTPError: 403 for url: https://maps.db1/json?key=canary-k3str3l&x=1", ("403", "maps.db1")),
    "requests: pool": (
        ("ConnectionError: HTTPSConnectionPool(host='db1', port=443): Max retries exceeded with url: /?token=canary-k3str3l "
        "(Caused by NewConnectionError('<HTTPSConnection object at 0x7>: refused'))"),
        ("db1", "Max retries", "refused"),
    ),
    "requests: jar": ("<RequestsCookieJar[<Cookie shop=canary-k3str3l for db1/>, <Cookie a=k3str3l for db2/>]>", ("db1", "db2")),
    "requests: auth": ("HTTPBasicAuth('bob', 'canary-k3str3l') auth=('bob', 'canary-k3str3l') host='db1'", ("db1",)),
    "httpx: headers": (
        "HTTPStatusError: Headers([('host', 'db1'), ('authorization', 'Bearer canary-k3str3l'), ('x-api-key', 'k3str3l')])",
        ("HTTPStatusError", "db1"),
    ),
    "asgi: headers": ("[(b'host', b'db1'), (b'cookie', b'canary=k3str3l; x=canary'), (b'x-token', b'k3str3l')]", ("db1",)),
    "http: request": (
        "POST / HTTP/1.1\r\nAuthorization: Basic canaryk3str3l==\r\nHost: db1\r\n\r\nuser=bob&password=canary-k3str3l&page=2",
        ("POST / HTTP/1.1", "db1", "page=2"),
    ),
    "http: digest": ('Authorization: Digest username="canary", response="k3str3l"\r\nHost: db1', ("db1",)),
    "http: cookies": ("Set-Cookie: sessionid=canary-k3str3l; csrftoken=k3str3l; Path=/\nHost: db1", ("db1",)),
    "http: parts": (
        'form-data; name="password"\r\n\r\ncanary-k3str3l\r\n--db1\r\nform-data; name="page"\r\n\r\n2', ("db1", "page")
    ),
    "http: brackets": ("user%5Bpassword%5D=canary-k3str3l&host=db1", ("db1",)),
    "http: escaped": ("%7B%22password%22%3A%22canary-k3str3l%22%7D at\ndb1", ("db1",)),
    "html": ('<input type="text" name="password" value="canary-k3str3l"> db1', ("db1",)),
    "html: escaped": ("{&quot;password&quot;: &quot;canary k3str3l&quot;}\ndb1", ("db1",)),
    "xml": ("<login><password>canary &amp; k3str3l</password><host>db1</host></login>", ("db1",)),
    "xml: soap": ('<wsse:Password Type="x">canary\nk3str3l</wsse:Password><host>db1</host>', ("db1",)),
    "xml: attributes": ('<add key="Password" value="canary-k3str3l"/><host name="db1" password="k3str3l"/>', ("db1",)),
    "boto: signature": (
        ("ClientError: An error occurred (403) when calling PutObject: https://db1/x?X-Amz-Security-Token=canary-k3str3l"
        "&X-Amz-Signature=k3str3l&X-Amz-Expires=60"),
        ("ClientError", "PutObject", "db1"),
    ),
    "boto: headers": (
        "Authorization: AWS4-HMAC-SHA256 Credential=canary/2026/s3, SignedHeaders=host, Signature=k3str3l\nhost:db1", ("db1",)
    ),
    "boto: named values": ("{'environment': [{'name': 'API_TOKEN', 'value': 'canary-k3str3l'}], 'host': 'db1'}", ("db1",)),
    "azure": ("AccountName=db1;AccountKey=canaryk3str3l==;EndpointSuffix=core.db1", ("AccountName=db1", "core.db1")),
    "redis: pipeline": (
        "AuthenticationError: Command # 1 (AUTH bob canary-k3str3l) of pipeline caused error: WRONGPASS invalid pair",
        ("AuthenticationError", "WRONGPASS"),
    ),
    "redis: address": ("ConnectionError: Error 111 connecting to redis://:canary@k3str3l@db1:6379/0", ("db1:6379/0",)),
    "kombu": ("OperationalError: amqp://bob:canary/k3str3l@db1:5672//: [Errno 111] refused", ("db1:5672", "refused")),
    "smtplib": ("SMTPException: send: 'AUTH PLAIN canaryk3str3l'\r\nfrom db1", ("SMTPException", "db1")),
    "git": ("fatal: repository 'https://canaryk3str3lcanaryk3str3lcanary@db1/x.git/' not found", ("db1/x.git", "not found")),
    "pydantic: errors()": (
        "[{'type': 'too_short', 'loc': ('password',), 'msg': 'String isn\\'t', 'input': 'canary-k3str3l'}] of db1", ("db1",)
    ),
    "psycopg: near": ("syntax error at or near \"'canary-k3str3l'\"\nLINE 1: ALTER ROLE bob 'canary-7...", ("syntax error",)),
    "psycopg: beginning cut": ("error\nLINE 1: ...ary-k3str3l', 'canary', NULL, 'x'\n     ^\nHINT:  db1", ("db1",)),
    "psycopg: port": ('invalid integer value "canary/k3str3l" for connection option "port"', ("connection option",)),
    "psycopg: blank in the password": ('missing "=" after "canary-k3str3l" in connection info string', ("connection info",)),
    "psycopg: host": ('could not translate host name "canaryk3str3l@db1" to address: not known', ("db1", "not known")),
    "urllib: port": ("ValueError: Port could not be cast to integer value as 'canaryk3str3l'", ("ValueError",)),
    "http: port": ("InvalidURL: nonnumeric port: 'canaryk3str3l@db1'", ("InvalidURL",)),
    "http: header": ("ValueError: Invalid header value b'Bearer canary-k3str3l\\n'", ("ValueError",)),
    "requests: host": ("Failed to resolve 'canaryk3str3l@db1' ([Errno -2] not known)", ("db1", "not known")),
    "requests: webhook": ("404 Client Error for url: https://hooks.slack.com/services/T0/B0/canaryk3str3l", ("404", "slack")),
    "requests: bot": ("401 for url: https://api.telegram.org/bot123:canaryk3str3l/sendMessage", ("401", "sendMessage")),
    "boto: parameter": (
        "ParamValidationError: Invalid type for parameter SecretString, value: canaryk3str3l, type: <class 'str'>",
        ("ParamValidationError", "SecretString", "<class 'str'>"),
    ),
    "jsonschema": (
        ("ValidationError: 'canaryk3str3l' is too short\n\nFailed validating 'minLength' in schema['properties']['password']:\n"
        "    {'minLength': 12}\n\nOn instance['password']:\n    'canaryk3str3l'"),
        ("ValidationError", "minLength", "password"),
    ),
    "argparse": ("prog: error: argument --token: invalid int value: 'canaryk3str3l'", ("prog: error", "--token")),
    "graphql": ('Variable "$password" got invalid value "canaryk3str3l"; expected Int', ("Variable", "expected Int")),
    "redis: arguments": ("unknown command 'AUTHH', with args beginning with: 'canary', 'k3str3l',", ("AUTHH",)),
    "mysql: value": ("(1366, \"Incorrect string value: 'canaryk3str3l' for column `db1`.`x`.`password` at row 1\")", ("db1",)),
    "mssql": ("Violation of constraint 'UQ_x' in 'dbo.db1'. The duplicate key value is (canaryk3str3l).", ("UQ_x", "dbo.db1")),
    "mongo": ('E11000 duplicate key error collection: db1.x index: token_1 dup key: { token: "canaryk3str3l" }', ("db1.x",)),
    "odbc": ("DRIVER={ODBC};SERVER=db1;UID=sa;PWD={canary;k3str3l};DATABASE=orders", ("SERVER=db1", "DATABASE=orders")),
    "prose": ("login to db1 failed: invalid password canaryk3str3l for bob", ("db1", "for bob")),
    "prose: for": ("password for user bob: canaryk3str3l", ("bob",)),
    "prose: words in between": ("password: too short, got: canaryk3str3l\nhost: db1", ("db1",)),
    "yaml": ("user: bob\npassword: canary k3str3l\nhost: db1", ("bob", "db1")),
    "yaml: lines": ("password: |\n  canary\n  k3str3l\nhost: db1", ("db1",)),
    "yaml: list": ("tokens:\n- canary\n- k3str3l\nhost: db1", ("db1",)),
    "ini": ("[client]\npassword = canary k3str3l\nhost = db1", ("[client]", "db1")),
    "environment": ("DB_PASSWORD=canary k3str3l\nDB_HOST=db1\nSTRIPE_KEY=canary", ("db1",)),
    "pprint": ("{'host': 'db1',\n 'password': 'canary'\n             '-k3str3l',\n 'port': 1}", ("db1", "'port': 1")),
    "lines in quotes": ("Login(password='canary\nk3str3l\n', host='db1')", ("db1",)),
    "quotes in quotes": ("Login(password='it's canary k3str3l', host='db1')", ("db1",)),
    "braces": ("login failed (user=bob, password=canary-k3str3l) on db1", ("bob", "db1")),
    "log of a client": ("{\"level\": \"error\", \"msg\": \"{\\\"token\\\": \\\"canary\\\\\\\"k3str3l\\\"}\", \"host\": \"db1\"}", ("db1",)),
    "repr of lines": ("'user: bob\\npass: canary-k3str3l\\nhost: db1'", ("bob", "db1")),
    "token without a name": ("eyJhbGciOiJIUzI1NiJ9.canaryk3str3l.canaryk3str3l was refused by db1", ("db1",)),
    "source of a line": ("    client.login('db1', config['password'], set_token('canary-k3str3l'))", ("db1",)),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISED)
def test_an_exception_shows_no_secret_and_the_rest_of_it_stays(name: str) -> None:
    call, telling = RAISED[name]
    message = error_of(call)
    assert not any(part in redact_text(message) for part in PARTS), message
    assert not [part for part in telling if part not in redact_text(message)], message


@pytest.mark.parametrize("name", WRITTEN)
def test_a_message_shows_no_secret_and_the_rest_of_it_stays(name: str) -> None:
    message, telling = WRITTEN[name]
    shown = redact_text(message)
    assert not any(part in shown for part in PARTS)
    assert not [part for part in telling if part not in shown]


EVERY = [*(message for message, _ in WRITTEN.values())]


@pytest.mark.parametrize("message", EVERY)
@pytest.mark.parametrize("wrap", [str, repr, json.dumps, lambda text: json.dumps({"error": json.dumps([text])})])
def test_a_message_inside_of_another_one_shows_no_secret(message: str, wrap: Callable[[str], str]) -> None:
    assert not any(part in redact_text(f"wrapped: {wrap(message)}") for part in PARTS)
    assert not any(part in json.dumps(redact({"wrapped": [wrap(message)]})) for part in PARTS)


@pytest.mark.parametrize("message", EVERY)
def test_redacting_a_message_again_changes_nothing(message: str) -> None:
    assert redact_text(redact_text(message)) == redact_text(message)


@pytest.mark.parametrize("message", EVERY)
def test_an_outcome_holds_no_secret(message: str) -> None:
    outcome = raised(ValueError(message))
    stored = outcome.failure_reason + outcome.failure_traceback
    assert "ValueError" in stored
    assert not any(part in stored for part in PARTS)


# The names that the client of Sentry leaves out by default.
OF_SENTRY = [
    "password",
    "passwd",
    "secret",
    "api_key",
    "apikey",
    "auth",
    "credentials",
    "mysql_pwd",
    "privatekey",
    "private_key",
    "token",
    "ip_address",
    "session",
    "csrftoken",
    "sessionid",
    "remote_addr",
    "x_csrftoken",
    "x_forwarded_for",
    "set_cookie",
    "cookie",
    "authorization",
    "x_api_key",
    "x_real_ip",
    "proxy-authorization",
    "aiohttp_session",
    "connect.sid",
    "csrf_token",
    "csrf",
    "_csrf",
    "_csrf_token",
    "PHPSESSID",
    "_session",
    "symfony",
    "user_session",
    "_xsrf",
    "XSRF-TOKEN",
]


@pytest.mark.parametrize("name", [*OF_SENTRY, *map(str.upper, OF_SENTRY)])
def test_names_that_sentry_leaves_out_are_secret(name: str) -> None:
    assert is_secret_name(name)
    assert CANARY not in redact_text(f"failed: {name}={CANARY}")


@pytest.mark.parametrize("part", SafeExceptionReporterFilter.hidden_settings.pattern.split("|"))
@pytest.mark.parametrize("name", ["{}", "MY_{}", "{}_2", "MY_{}S_OF_ALL"])
def test_settings_that_django_hides_are_secret(name: str, part: str) -> None:
    with override_settings(**{name.format(part): CANARY}):
        assert is_secret_name(name.format(part))
    assert CANARY not in redact_text(f"{name.format(part)} = '{CANARY}'")
    assert CANARY not in json.dumps(redact({name.format(part): [CANARY]}))


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.binary(max_size=8)
literals = st.recursive(
    scalars | st.just(CANARY) | st.just(CANARY.encode()) | st.text(max_size=3).map(lambda text: text + CANARY),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3) | st.tuples(inner)
    ),
    max_leaves=8,
)


@given(
    literals, st.sampled_from(["password", "api_token", "Set-Cookie"]), st.sampled_from(["{!r}: {!r}", "({!r}, {!r})"])
)
def test_no_literal_under_a_secret_name_survives(value: Any, name: str, form: str) -> None:
    assert CANARY not in redact_text("it failed: {'host': 'db1', " + form.format(name, value) + "}")


@given(literals)
def test_what_follows_a_literal_stays(value: Any) -> None:
    # A quote behind a backslash is taken for a part of the text, as it is in a text that another one quotes.
    assume(not any(end in repr(value) for end in ("\\'", '\\"')))
    assert redact_text(f"Login(password={value!r}, host='db1')").endswith(", host='db1')")


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_redacting_twice_is_redacting_once(noise: str) -> None:
    once = redact_text(f"password: {noise}")
    assert redact_text(once) == once


@given(st.text(alphabet="bdfghilmnqruvwy ,;()[]{}'\"\n\\<>", max_size=200))
def test_a_text_without_a_name_stays(text: str) -> None:
    assert redact_text(text) == text


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ([["Authorization", "Bearer x"], ["Host", "db1"]], [["Authorization", REDACTED], ["Host", "db1"]]),
        (["mysql", "--password", "x", "-h", "db1"], ["mysql", "--password", REDACTED, "-h", "db1"]),
        ({"name": "API_TOKEN", "value": "x"}, {"name": "API_TOKEN", "value": REDACTED}),
        ({"loc": ["login", "password"], "input": "x"}, {"loc": ["login", "password"], "input": REDACTED}),
        ({"name": "table", "value": "orders"}, {"name": "table", "value": "orders"}),
        (["id", "password", "email"], ["id", "password", "email"]),
    ],
)
def test_documents_of_names_and_values(document: Any, expected: Any) -> None:
    assert redact(document) == expected


@pytest.mark.parametrize(
    "text",
    [
        "UniqueViolation: Key (id)=(17) already exists in table orders",
        "InvalidTokenError: the signature of db1 has expired",
        "FATAL: password authentication failed for user bob",
        "KeyError: 'orders'",
        'column "password" of relation "orders" does not exist',
        "TypeError: login() missing 1 required positional argument: 'password'",
        "{'password': None, 'has_token': False}",
        "https://db1:8080/orders?page=2 and a@b.c",
        "used max_tokens: 5",
        "git@github.com:owner/name.git",
    ],
)
def test_what_tells_of_a_secret_without_showing_it_stays(text: str) -> None:
    assert redact_text(text) == text
