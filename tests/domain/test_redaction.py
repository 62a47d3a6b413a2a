"""What is redacted, what is not, and that it always ends."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chainsched.domain.redaction import (
    MAX_DEPTH,
    MAX_NAME,
    REDACTED,
    find_secret_names,
    is_secret_name,
    redact,
    redact_text,
)
from chainsched.domain.redaction import documents as searched
from chainsched.domain.redaction import names as secret_names
from chainsched.domain.redaction import texts as texts_module
from chainsched.domain.redaction.marks import has_mark, may_reveal
from chainsched.domain.redaction.texts import redact_text_with_marks

SECRET = "hunter2"
NAMES = [
    "password",
    "PASSWORD",
    "userPassword",
    "user_password_2",
    "pass-word",
    "db.passwd",
    "pwd",
    "secret",
    "clientSecret",
    "token",
    "access_token",
    "accessToken",
    "ACCESSTOKEN",
    "refresh-token",
    "api_key",
    "apiKey",
    "API-KEY",
    "api key",
    "X-Api-Key",
    "Authorization",
    "proxy-authorization",
    "credentials",
    "private_key",
    "privateKey",
    "Set-Cookie",
    "dsn",
    "SENTRY_DSN",
    "db.dsn",
    "HTTPAuth",
    "ｐａｓｓｗｏｒｄ",  # noqa: RUF001 - full width on purpose
]
HARMLESS = ["table", "tokenizer", "max_tokens", "tokens_used", "passenger", "compass", "monkey", "author", "id", ""]


@pytest.mark.parametrize("name", NAMES)
def test_a_secret_name_is_known_however_it_is_spelled(name: str) -> None:
    assert is_secret_name(name)
    assert redact({"a": [{name: SECRET}]}) == {"a": [{name: REDACTED}]}


@pytest.mark.parametrize("name", HARMLESS)
def test_other_names_stay(name: str) -> None:
    assert not is_secret_name(name)
    assert redact({name: SECRET}) == {name: SECRET}


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"password": {"a": SECRET}}, {"password": REDACTED}),
        ({"tokens": [SECRET]}, {"tokens": REDACTED}),
        ({"password": None}, {"password": None}),
        ({"password": ""}, {"password": ""}),
        ({"has_password": True}, {"has_password": True}),
        ({"pin": 1, "secret": 1234}, {"pin": 1, "secret": REDACTED}),
        ([1, 2.5, None, True, "plain"], [1, 2.5, None, True, "plain"]),
        ({"body": '{"token": "hunter2", "n": 1}'}, {"body": '{"token": "[redacted]", "n": 1}'}),
        ({"body": '  [{"cookie": "hunter2"}]'}, {"body": '[{"cookie": "[redacted]"}]'}),
        ({"url": "postgres://me:hunter2@host/db"}, {"url": "postgres://me:[redacted]@host/db"}),
        ("token=hunter2", "token=[redacted]"),
    ],
)
def test_documents(document: Any, expected: Any) -> None:
    assert redact(document) == expected


def test_json_in_json_in_strings_is_unfolded() -> None:
    inner = json.dumps({"x": json.dumps({"password": SECRET})})
    assert SECRET not in json.dumps(redact({"payload": inner}))


def test_what_is_wrapped_too_often_is_replaced_as_a_whole() -> None:
    wrapped: Any = {"a": SECRET}
    for _ in range(8):
        wrapped = {"a": json.dumps(wrapped)}
    assert SECRET not in json.dumps(redact(wrapped))


def test_what_is_nested_too_deep_is_replaced_as_a_whole() -> None:
    deep: Any = ["token", SECRET]
    for _ in range(MAX_DEPTH + 5):
        deep = [deep]
    assert SECRET not in json.dumps(redact(deep))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("password=hunter2 next", "password=[redacted]"),
        ("password: hunter2, user: me", "password: [redacted], user: me"),
        ("{'password': 'hunter2', 'a': 1}", "{'password': '[redacted]', 'a': 1}"),
        ('{"api-key": "hunter2", "a": 1', '{"api-key": "[redacted]", "a": 1'),
        ('{\\"token\\": \\"hunter2\\"}', '{\\"token\\": \\"[redacted]\\"}'),
        (r'"secret": "hun\"ter2" tail', '"secret": "[redacted]" tail'),
        ("Authorization: Bearer hunter2.hunter2", "Authorization: [redacted]"),
        ("sent Bearer hunter2hunter2", "sent Bearer [redacted]"),
        ("GET /?token=hunter2&page=2", "GET /?token=[redacted]&page=2"),
        ("redis://:hunter2@cache/0", "redis://:[redacted]@cache/0"),
        ("Api key: hunter2", "Api key: [redacted]"),
        ("private key = hunter2", "private key = [redacted]"),
        ("SECRET_KEY => hunter2", "SECRET_KEY => [redacted]"),
        ("a -----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY----- b", "a [redacted] b"),
        ("-----BEGIN PRIVATE KEY-----\nhunter2", "[redacted]"),
        ("File 'x.py', line 3, in password_check", "File 'x.py', line 3, in password_check"),
        ("row 17 is broken: value=3", "row 17 is broken: value=3"),
    ],
)
def test_texts(text: str, expected: str) -> None:
    assert redact_text(text) == expected


def test_of_a_long_name_only_its_beginning_is_remembered() -> None:
    secret_names._is_secret_name.cache_clear()
    texts_module._may_be_secret.cache_clear()
    sizes = set()
    for end in "abc":
        redact({"data": "x" * MAX_NAME + end + "=", "token": None})
        sizes.add(
            (secret_names._is_secret_name.cache_info().currsize, texts_module._may_be_secret.cache_info().currsize)
        )
    assert len(sizes) == 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=30,
)


@given(json_values)
def test_any_document_comes_out_as_json(document: Any) -> None:
    json.dumps(redact(document))


@given(json_values, st.sampled_from(NAMES))
def test_no_document_gives_away_values_under_a_secret_name(document: Any, name: str) -> None:
    shown = redact({"around": document, name: "canary-7f3a", "text": json.dumps({name: ["canary-7f3a", document]})})
    assert "canary-7f3a" not in json.dumps(shown)


@given(json_values, st.sampled_from(NAMES), st.sampled_from(["\ud800", "x\udfffy", "\0"]), st.integers(1, 3))
def test_what_can_be_stored_can_still_be_stored(document: Any, name: str, odd: str, folds: int) -> None:
    folded: Any = {name: "canary-7f3a", "a": odd, odd: document}
    for _ in range(folds):
        folded = {"text": json.dumps(folded)}
    shown = redact(folded)["text"]
    assert "canary-7f3a" not in shown
    assert b"\0" not in shown.encode()


NAME_PARTS = [
    "pass",
    "word",
    "sec",
    "ret",
    "To",
    "ken",
    "api",
    "KEY",
    "\N{FULLWIDTH LATIN SMALL LETTER P}ass",
    "\u0301",
]
MARKS = ["-", "_", " ", "\n", "\t", "\0", "\\", "\\n", '"', ":", "=", "[", "]", '{"a', '": 1}']
REVEALING = ["://a:b@c", "Basic dXNlcjpwYXNz", "Bearer 123456789", "-----BEGIN PRIVATE KEY-----"]
texts = st.lists(st.sampled_from([*NAME_PARTS, *MARKS, *REVEALING]), max_size=8).map("".join)
documents = st.recursive(
    st.integers() | texts | texts.map(lambda text: json.dumps({text: text})),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)


@given(documents)
def test_the_first_look_passes_no_document_that_the_search_would_change(document: Any) -> None:
    if not may_reveal(document):
        assert searched._redact(document, depth=0, json_depth=0) == document


@pytest.mark.parametrize("mark", ["\n", "\t", '"', "\\", "\x01", "/"])
def test_a_name_that_json_writes_with_an_escape_is_found(mark):
    name = mark.join(["sec", "ret"])
    for document in ({name: SECRET}, [json.dumps({name: SECRET})], json.dumps({name: SECRET})):
        assert SECRET not in str(redact(document))


def test_what_has_no_json_form_is_searched_all_the_same():
    odd = object()
    assert redact({"a": odd, "token": SECRET}) == {"a": odd, "token": REDACTED}
    assert redact(odd) is odd


@given(texts)
def test_the_first_look_passes_no_text_that_the_search_would_change(text: str) -> None:
    if not has_mark(text):
        assert redact_text_with_marks(text) == text


@pytest.mark.parametrize("document", [None, True, 7, "two\nlines", {"id": 1, "note": "two\nlines"}, ["é"]])
def test_most_documents_need_no_search(document, monkeypatch):
    monkeypatch.setattr(searched, "redact_text_with_marks", None)
    assert redact(document) == document


@given(st.text())
def test_any_text_is_answered_and_redacting_twice_changes_nothing_more(text: str) -> None:
    once = redact_text(text)
    assert "canary-7f3a" not in redact_text(f"{once} password=canary-7f3a")
    assert len(once) <= len(text) * (1 + len(REDACTED)) + len(REDACTED)


@pytest.mark.parametrize(
    "piece",
    [
        "a",
        "a ",
        "password=",
        'password="',
        "x=\\",
        "\\",
        "-----BEGIN PRIVATE KEY-----",
        "://a:b",
        "api ",
        "'",
        "{",
        '["',
        "password={",
        "password='x' \n ",
        "password=x, ",
        "password=x\n",
        "password:\n  ",
        "token(",
        "token('",
        "('token', ",
        "<password>",
        '<secret a="b">',
        "(token)=(",
        "Failing row contains (",
        "-u a:b ",
        "-u=a",
        "Duplicate entry '",
        "(token) VALUES (1,",
        "...) VALUES (",
        "'loc': ('token',), 'msg': 'x', 'input': ",
        "password\n  input_value='a...b', input_type=\n",
        "[SQL: token [parameters: ('a')\n",
        "<Cookie a=",
        "LINE 1: ...",
        "LINE 1: ...'",
        "at or near \"'",
        "host=a@b ",
        "token for a a a ",
        "'loc': ('token',), 'msg': 'x', 'input': token(",
        "--password x ",
        "name='password' ",
        '\\"password\\":\\"',
        'token=\\\\\\\\"',
        "?key=&",
        "password=x )",
        "%22token%22%3A",
        "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx(",
        "[redacted]",
    ],
)
def test_a_text_of_half_a_megabyte_is_a_matter_of_moments(piece: str) -> None:
    text = piece * (500_000 // len(piece))
    began = time.process_time()
    redact_text(text)
    redact(text)
    assert time.process_time() - began < 5


def test_a_redactor_that_fails_gives_nothing_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_args: object, **_options: object) -> str:
        raise RuntimeError(SECRET)

    monkeypatch.setattr(searched, "is_secret_name", fail)
    monkeypatch.setattr(texts_module, "is_secret_name", fail)
    assert redact({"token": SECRET}) == REDACTED
    assert redact_text(f"password={SECRET}") == REDACTED


def test_a_name_that_stands_twice_hides_no_value():
    assert "hunter22" not in str(redact({"body": '{"password": "hunter22", "password": null}'}))


@pytest.mark.parametrize(
    ("described", "is_found"),
    [
        ({"type": "string"}, True),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, True),
        ({"type": "array", "items": {"type": "string"}}, True),
        ({"type": "object", "additionalProperties": {"type": "string"}}, True),
        ({"type": "string", "format": "by-name"}, False),
        ({"type": "integer"}, False),
        ({"type": "object", "additionalProperties": True}, False),
    ],
)
def test_properties_that_hold_secrets_in_the_clear_are_found(described, is_found):
    schema = {"type": "object", "properties": {"passwords": described, "table": {"type": "string"}}}
    assert find_secret_names(schema, by_name_only="by-name") == (["passwords"] if is_found else [])
