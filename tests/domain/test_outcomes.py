"""How an execution ended: text that any database can store, fingerprints, and what dependents make of it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from chainsched.domain import outcomes
from chainsched.domain.outcomes import (
    MAX_TEXT,
    MAX_TYPE_NAME,
    FailureType,
    Outcome,
    completed,
    failed,
    matches,
    raised,
    writable,
)
from chainsched.domain.states import ExecutionState, RunCondition
from chainsched.exceptions import GiveUp

MARK = "\N{REPLACEMENT CHARACTER}"


class SourceIsGone(GiveUp):
    pass


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("I have no words")


class Quitter(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Liar(Exception):
    def __str__(self) -> str:
        return 5  # type: ignore[return-value]  # noqa: PLE0307 - the lie is the case


def caught(error: BaseException) -> Outcome:
    """The outcome of an exception that was really raised, with its traceback."""
    try:
        raise error
    except BaseException as found:  # noqa: BLE001 - whatever the case raises
        return raised(found)


def caught_elsewhere(error: BaseException) -> Outcome:
    try:
        raise error
    except BaseException as found:  # noqa: BLE001 - whatever the case raises
        return raised(found)


def is_storable(text: str) -> bool:
    return "\x00" not in text and text == text.encode(errors="replace").decode()


def test_a_result_is_kept_as_it_is():
    assert completed({"rows": 3}) == Outcome(ExecutionState.COMPLETED, output={"rows": 3})


def test_an_exception_is_told_by_type_words_and_traceback():
    outcome = caught(ValueError("row 17 is broken"))
    assert (outcome.state, outcome.failure_type) == (ExecutionState.FAILED, "ValueError")
    assert outcome.failure_reason == "row 17 is broken"
    assert "in caught" in outcome.failure_traceback
    assert outcome.failure_traceback.rstrip().endswith("ValueError: row 17 is broken")
    assert outcome.failure_fingerprint


@pytest.mark.parametrize(
    ("error", "failure_type", "reason"),
    [
        pytest.param(ValueError("a\x00b"), "ValueError", f"a{MARK}b", id="NUL"),
        pytest.param(ValueError("a\ud800b"), "ValueError", f"a{MARK}b", id="lone surrogate"),
        pytest.param(ValueError("a\x1bb\x07"), "ValueError", f"a{MARK}b{MARK}", id="control characters"),
        pytest.param(ValueError("über 日本 🚀\n\ttab"), "ValueError", "über 日本 🚀\n\ttab", id="other text stays"),
        pytest.param(ValueError(), "ValueError", "ValueError", id="no words"),
        pytest.param(Mute(), "Mute", "(its message cannot be read: RuntimeError)", id="raising __str__"),
        pytest.param(Liar(), "Liar", "(its message cannot be read: TypeError)", id="__str__ that is no text"),
        pytest.param(SystemExit(3), "SystemExit", "3", id="SystemExit"),
        pytest.param(KeyboardInterrupt(), "KeyboardInterrupt", "KeyboardInterrupt", id="KeyboardInterrupt"),
        pytest.param(GeneratorExit("enough"), "GeneratorExit", "enough", id="GeneratorExit"),
        pytest.param(
            ExceptionGroup("two", [ValueError("x"), TypeError("y")]),
            "ExceptionGroup",
            "two (2 sub-exceptions)",
            id="group",
        ),
        pytest.param(
            BaseExceptionGroup("mixed", [SystemExit(1)]),
            "BaseExceptionGroup",
            "mixed (1 sub-exception)",
            id="base group",
        ),
    ],
)
def test_any_exception_becomes_storable_text(error, failure_type, reason):
    outcome = caught(error)
    assert (outcome.failure_type, outcome.failure_reason) == (failure_type, reason)
    assert outcome.state is ExecutionState.FAILED
    assert outcome.failure_traceback
    assert is_storable(outcome.failure_reason)
    assert is_storable(outcome.failure_traceback)


def test_a_message_that_quits_the_process_is_still_a_failure():
    # SystemExit would end the test run, so it is caught here and shows as a wrong answer.
    try:
        reason = caught(Quitter()).failure_reason
    except SystemExit:
        reason = "it escaped"
    assert reason == "(its message cannot be read: SystemExit)"


def test_ten_megabytes_of_words_are_cut_and_say_so():
    outcome = caught(ValueError("x" * 10_000_000))
    for text in (outcome.failure_reason, outcome.failure_traceback):
        assert len(text) < MAX_TEXT + 100
        assert "cut: the text was 10,000," in text


def test_a_long_type_name_fits_its_column():
    long_named = type("E" * 1000, (Exception,), {})
    assert caught(long_named("x")).failure_type == "E" * MAX_TYPE_NAME


def test_a_recursive_chain_of_causes_ends():
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    assert "first" in caught(first).failure_traceback


def test_a_very_long_chain_of_causes_is_told():
    error = ValueError("0")
    for number in range(1, 3000):
        later = ValueError(str(number))
        later.__cause__ = error
        error = later
    outcome = caught(error)
    assert outcome.failure_reason == "2999"
    assert len(outcome.failure_traceback) < MAX_TEXT + 100


def test_an_endless_recursion_is_told():
    def endless() -> None:
        endless()

    with pytest.raises(RecursionError) as found:
        endless()
    outcome = raised(found.value)
    assert outcome.failure_type == "RecursionError"
    assert len(outcome.failure_traceback) < MAX_TEXT + 100


@pytest.mark.parametrize(
    ("text", "expected"),
    [("fine\r\n\t", "fine\r\n\t"), ("\x00", MARK), ("\udfff", MARK), ("", ""), ("x" * MAX_TEXT, "x" * MAX_TEXT)],
)
def test_writable_replaces_only_what_no_database_takes(text, expected):
    assert writable(text) == expected


@pytest.mark.parametrize(
    ("one", "other", "is_same"),
    [
        pytest.param(caught(ValueError("row 17")), caught(ValueError("row 204")), True, id="other numbers"),
        pytest.param(caught(ValueError("row 17")), caught(ValueError("line 17")), False, id="other words"),
        pytest.param(caught(ValueError("row 17")), caught(KeyError("row 17")), False, id="another type"),
        pytest.param(caught(ValueError("row 17")), caught_elsewhere(ValueError("row 17")), False, id="another place"),
        pytest.param(
            failed(FailureType.TIMEOUT, "after 5 s"), failed(FailureType.TIMEOUT, "after 60 s"), True, id="no exception"
        ),
        pytest.param(
            failed(FailureType.TIMEOUT, "gone"),
            failed(FailureType.KILLED, "gone"),
            False,
            id="no exception, other type",
        ),
        pytest.param(
            caught(ValueError("row 7 " + "x" * 600)),
            caught(ValueError("row 1234567 " + "x" * 600)),
            True,
            id="other numbers in a long message",
        ),
    ],
)
def test_failures_that_look_the_same_have_one_fingerprint(one, other, is_same):
    assert (one.failure_fingerprint == other.failure_fingerprint) is is_same


@pytest.mark.parametrize(
    ("outcome", "is_permanent"),
    [
        (caught(GiveUp("the source is gone")), True),
        (caught(SourceIsGone("really")), True),
        (caught(ValueError("maybe tomorrow")), False),
        (caught(ExceptionGroup("several", [ValueError("x")])), False),
        (failed(FailureType.BAD_INPUT, "table: Input should be a valid string"), True),
        (failed(FailureType.TIMEOUT, "after 5 s"), False),
        (failed(FailureType.LOST, "its process died"), False),
        (completed(None), False),
    ],
)
def test_only_giving_up_and_bad_input_are_hopeless(outcome, is_permanent):
    assert outcome.is_permanent is is_permanent


@pytest.mark.parametrize("failure_type", FailureType)
def test_only_a_lost_attempt_was_lost(failure_type):
    assert failed(failure_type, "x").was_lost is (failure_type == "lost")


def test_a_failure_without_exception_has_storable_words():
    outcome = failed(FailureType.KILLED, "signal\x00 9")
    assert (outcome.failure_type, outcome.failure_reason) == ("killed", f"signal{MARK} 9")


FIRES = {
    ("success", "completed"),
    ("failure", "dead-lettered"),
    ("completion", "completed"),
    ("completion", "dead-lettered"),
    ("completion", "cancelled"),
}
ENDS = {
    "completed": (ExecutionState.COMPLETED, False),
    "dead-lettered": (ExecutionState.FAILED, True),
    "failed with retries left": (ExecutionState.FAILED, False),
    "cancelled": (ExecutionState.CANCELLED, False),
}


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("condition", RunCondition)
def test_a_condition_fires_for_the_outcomes_of_the_table(condition, end):
    state, is_dead_lettered = ENDS[end]
    is_match = matches(condition, state=state, is_dead_lettered=is_dead_lettered)
    assert is_match is ((condition.name.lower(), end) in FIRES)


@pytest.mark.parametrize("padding", range(0, 900, 150))
def test_what_a_cut_leaves_of_a_secret_is_not_kept(padding):
    """Where everything else shrinks, what stands next to the cut comes near to what is kept."""
    named = ", ".join(f'{{"token": "{"A" * 400}-half-{"B" * 400}"}}' for _ in range(300))
    assert "-half-" not in outcomes.presentable(named + " " * padding)
    known = "k" * 500 + "-half-" + "z" * 500
    assert "-half-" not in outcomes.presentable(" " * padding + f"{known} " * 300, known=[known])


@pytest.mark.parametrize("told", [KeyError, lambda value: ValueError(json.dumps({"x": value}))])
def test_a_known_value_is_found_as_python_and_json_write_it(told):
    value = "pa\"ss'wo\\rd1"
    assert "rd1" not in outcomes.raised(told(value), known=[value]).failure_reason


class Unnamed(type):
    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(name)


class Closed(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class Anonymous(Exception, metaclass=Unnamed):
    pass


def test_an_exception_that_resists_is_named_all_the_same():
    for error, name in ((Closed("a"), "Closed"), (Anonymous("b"), "Anonymous")):
        outcome = raised(error)
        assert outcome.state == ExecutionState.FAILED
        assert outcome.failure_type == f"<class '{__name__}.{name}'>"
        assert outcome.failure_reason == "(it cannot be described: RuntimeError)"
