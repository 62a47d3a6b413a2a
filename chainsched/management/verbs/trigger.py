"""``chainsched trigger``: run a manifest or a group now."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError, OutputWrapper
from django.core.management.color import Style

from chainsched import api
from chainsched.domain.inputs import OWN_INPUT
from chainsched.domain.results import Answer
from chainsched.management.options import positive_seconds
from chainsched.management.verbs import ATTENTION, BAD_INPUT, OK, add_json, print_json, unknown_group
from chainsched.models import ManifestGroup

HELP = "Run a manifest now, or all members of a group; says what became of the wish."


def add_arguments(parser: ArgumentParser) -> None:
    """What to run, when, and with which input."""
    add_json(parser)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("external_id", nargs="?", help="The manifest.")
    what.add_argument("--group", help="Instead of a manifest: the group whose members are to run.")
    parser.add_argument("--delay", type=positive_seconds, metavar="SECONDS", help="Run it after this time.")
    parser.add_argument("--input", metavar="JSON", help="Run it with this input instead of its own.")


def run(options: dict[str, Any], *, out: OutputWrapper, style: Style) -> int:
    """Trigger and print the answer; exit code 1 if a dead letter stands in the way."""
    if options["group"]:
        return _trigger_group(options, out=out)
    manifest = api.find(options["external_id"])
    answer = api.trigger(manifest, delay=options["delay"], input=_read_input(options["input"]))
    if options["as_json"]:
        print_json({"external_id": manifest.external_id, "code": answer, "answer": answer.in_words}, out=out)
    else:
        out.write(f"{manifest.external_id}: {answer.in_words}.")
    return ATTENTION if answer is Answer.AWAITS_DEAD_LETTER else OK


def _trigger_group(options: dict[str, Any], *, out: OutputWrapper) -> int:
    if options["delay"] or options["input"]:
        raise CommandError("--delay and --input are for one manifest, not for a group.", returncode=BAD_INPUT)
    group = ManifestGroup.objects.filter(name=options["group"]).first()
    if group is None:
        raise unknown_group(options["group"])
    answers = api.trigger_group(group)
    if options["as_json"]:
        print_json({"group": group.name, "answers": answers}, out=out)
    else:
        counted = [f"{number} {answer.in_words}" for answer, number in answers.items()]
        out.write(f"{group.name}: {'; '.join(counted) or 'it has no members to run'}.")
    return ATTENTION if answers[Answer.AWAITS_DEAD_LETTER] else OK


def _read_input(text: str | None) -> Any:
    if text is None:
        return OWN_INPUT
    try:
        return json.loads(text)
    except ValueError as error:
        raise CommandError(f"--input is no JSON: {error}", returncode=BAD_INPUT) from error
