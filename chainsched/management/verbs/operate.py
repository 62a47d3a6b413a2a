"""``chainsched trigger``, ``cancel``, ``retry`` and all other operator verbs, from the table in ``operations.py``."""

from __future__ import annotations

import json
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import CommandError, OutputWrapper
from django.core.management.color import Style

from chainsched.domain.declarations import MAX_PRIORITY
from chainsched.exceptions import ChainschedError
from chainsched.management.options import positive_number, positive_seconds, whole_number
from chainsched.management.verbs import ATTENTION, BAD_INPUT, OK, Verb, add_json, print_json
from chainsched.models import DeadLetter
from chainsched.operations import OPERATIONS, TARGETS, Instruction, Operation, OperationResult, apply_operation

# The value of an option that was left out; None may be given.
UNSET = object()
REFUSED = "refused"
# A target that is named without an option: the only one of a verb, or its manifests.
PLAIN = "manifest"


def _document(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ArgumentTypeError(f"it is no JSON: {error}") from error


def _limit(text: str) -> int | None:
    return None if text == "none" else positive_number(text)


# The further inputs of operations, as options.
ASKED: dict[str, dict[str, Any]] = {
    "delay": {"type": positive_seconds, "metavar": "SECONDS", "help": "Run it after this time."},
    "input": {"type": _document, "metavar": "JSON", "help": "Run it with this input instead of its own."},
    "max_active_jobs": {"type": _limit, "metavar": "N|none", "help": "How many of its jobs may be active at once."},
    "priority": {"type": whole_number, "metavar": "N", "help": f"0 to {MAX_PRIORITY}; higher goes first."},
    "queue": {"metavar": "NAME", "help": "The queue that workers take its jobs from; an empty name for none."},
}


@dataclass(frozen=True)
class OperatorVerb(Verb):
    """One verb of the command line, for all kinds of rows that it applies to."""

    operations: Sequence[Operation]

    @property
    def HELP(self) -> str:  # type: ignore[override]  # noqa: N802 - as the other verbs name it
        return " ".join(f"{TARGETS[each.target].words.capitalize()}: {each.summary}" for each in self.operations)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add the rows, the further inputs, the user and the reason."""
        add_json(parser)
        chosen = parser.add_mutually_exclusive_group(required=True)
        for operation in self.operations:
            if operation.target == self._plain:
                chosen.add_argument(
                    operation.target,
                    nargs="*",
                    default=[],
                    metavar=operation.target,
                    help=TARGETS[operation.target].naming,
                )
            else:
                option = f"--{operation.target.replace('_', '-')}"
                chosen.add_argument(
                    option, nargs="+", default=[], metavar="NAME", help=TARGETS[operation.target].naming
                )
        if self._plain == "letter":
            chosen.add_argument("--fingerprint", help="All dead letters with this fingerprint that await a decision.")
            chosen.add_argument("--all", action="store_true", dest="all_awaiting", help="All that await a decision.")
        for name in self._asked:
            parser.add_argument(f"--{name.replace('_', '-')}", dest=name, default=UNSET, **ASKED[name])
        needs_reason = any(operation.needs_reason for operation in self.operations)
        parser.add_argument("--reason", default="", required=needs_reason, help="Kept in the history and with the row.")
        parser.add_argument("--by", metavar="USERNAME", help="The user to act as; needed for an entry in the history.")

    def run(self, options: dict[str, Any], *, out: OutputWrapper, style: Style) -> int:
        """Apply it to each row and print the outcomes; exit code 1 if one had no effect, 2 if one was refused."""
        operation, rows = self._choose(options)
        instruction = Instruction(_find_user(options["by"]), options["reason"], self._details(operation, options))
        name_of = TARGETS[operation.target].name_of
        apply = apply_operation if len(rows) == 1 else _apply_to_one_of_many
        results = [(name_of(row), apply(operation, row, instruction)) for row in rows]
        if options["as_json"]:
            print_json(_as_json(operation, results), out=out)
        else:
            for name, result in results:
                out.write(f"{name}: {result.in_words.rstrip('.')}.")
        if any(result.code == REFUSED for _, result in results):
            return BAD_INPUT
        return OK if results and all(result.has_effect for _, result in results) else ATTENTION

    @property
    def _plain(self) -> str:
        return PLAIN if len(self.operations) > 1 else self.operations[0].target

    @property
    def _asked(self) -> list[str]:
        return [name for name in ASKED if any(name in operation.asks for operation in self.operations)]

    def _choose(self, options: dict[str, Any]) -> tuple[Operation, list[Any]]:
        """The operation by the kind of rows that were named, and the rows, all of which must exist."""
        for operation in self.operations:
            if names := options[operation.target]:
                return operation, [TARGETS[operation.target].find(name) for name in names]
        awaiting = DeadLetter.objects.awaiting().order_by("id")
        if options.get("fingerprint"):
            return self.operations[0], list(awaiting.filter(fingerprint__startswith=options["fingerprint"]))
        if options.get("all_awaiting"):
            return self.operations[0], list(awaiting)
        kinds = ", ".join(TARGETS[operation.target].words for operation in self.operations)
        raise CommandError(f"Name at least one {kinds}.", returncode=BAD_INPUT)

    def _details(self, operation: Operation, options: dict[str, Any]) -> dict[str, Any]:
        given = {name: options[name] for name in self._asked if options[name] is not UNSET}
        if foreign := [name for name in given if name not in operation.asks]:
            listed = " and ".join(f"--{name.replace('_', '-')}" for name in foreign)
            raise CommandError(f"{listed}: not for a {TARGETS[operation.target].words}.", returncode=BAD_INPUT)
        return given


def _apply_to_one_of_many(operation: Operation, row: Any, instruction: Instruction) -> OperationResult:
    """Apply it to one row; an error is the result of this row, and the others go on."""
    try:
        return apply_operation(operation, row, instruction)
    except ChainschedError as error:
        return OperationResult(str(error), has_effect=False, code=REFUSED)


def _find_user(name: str | None) -> Any:
    if name is None:
        return None
    try:
        return get_user_model()._default_manager.get_by_natural_key(name)  # noqa: SLF001 - Django's own name for it
    except get_user_model().DoesNotExist:
        raise CommandError(f"There is no user {name!r}; --by takes a user name.", returncode=BAD_INPUT) from None


def _as_json(operation: Operation, results: Iterable[tuple[str, OperationResult]]) -> list[dict[str, Any]]:
    return [
        {
            operation.target: name,
            "verb": operation.command,
            "outcome": result.in_words,
            "code": result.code,
            "has_effect": result.has_effect,
        }
        for name, result in results
    ]


def operator_verbs() -> dict[str, OperatorVerb]:
    """The verbs by their name on the command line, in the order of the table."""
    names = dict.fromkeys(operation.command for operation in OPERATIONS)
    return {name: OperatorVerb([each for each in OPERATIONS if each.command == name]) for name in names}
