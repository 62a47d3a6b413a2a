"""The verbs of ``manage.py chainsched``: one file each, with its arguments and its action."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any, Protocol

from django.core.management.base import OutputWrapper
from django.core.management.color import Style
from django.core.serializers.json import DjangoJSONEncoder

OK = 0
ATTENTION = 1
BAD_INPUT = 2


class Verb(Protocol):
    """The interface of each module; ``run`` returns the exit code."""

    HELP: str

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add its options."""
        ...

    def run(self, options: dict[str, Any], *, out: OutputWrapper, style: Style) -> int:
        """Carry out the verb."""
        ...


def add_json(parser: ArgumentParser) -> None:
    """Add the option that every verb has."""
    parser.add_argument("--json", action="store_true", dest="as_json", help="Print JSON, for programs.")


def print_json(value: Any, *, out: OutputWrapper) -> None:
    """Print one JSON document to standard output."""
    out.write(json.dumps(value, cls=DjangoJSONEncoder, indent=2, sort_keys=True))
