"""``chainsched explain``: why a manifest is or is not running, or the causes of an execution."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import OutputWrapper
from django.core.management.color import Style

from chainsched import api
from chainsched.domain.results import Ancestry, Explanation
from chainsched.management.verbs import OK, add_json, print_json

HELP = "Explain why a manifest is or is not running, and when it will; or the causes of an execution, up to the root."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the manifest, or the execution."""
    add_json(parser)
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument("external_id", nargs="?", help="The manifest.")
    subject.add_argument(
        "--execution", metavar="ID", help="Instead of a manifest: the number or the uuid of an execution."
    )


def run(options: dict[str, Any], *, out: OutputWrapper, style: Style) -> int:
    """Apply the same rules as the turns do, and print the answer."""
    answer: Ancestry | Explanation
    if options["execution"]:
        answer = api.explain_execution(api.find_execution(options["execution"]))
    else:
        answer = api.explain(api.find(options["external_id"]))
    if options["as_json"]:
        print_json(answer.as_dict(), out=out)
    else:
        out.write(answer.in_words)
    return OK
