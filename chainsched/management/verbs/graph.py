"""``chainsched graph``: the dependency graph as DOT or SVG."""

from __future__ import annotations

from argparse import ArgumentParser
from pathlib import Path
from typing import Any

from django.core.management.base import CommandError, OutputWrapper
from django.core.management.color import Style

from chainsched import api
from chainsched.graph import export
from chainsched.management.verbs import BAD_INPUT, OK, add_json, print_json

HELP = "Draw manifests and their dependencies, coloured by state."


def add_arguments(parser: ArgumentParser) -> None:
    """Add the options about manifests, format and output."""
    add_json(parser)
    parser.add_argument("--group", help="Only the manifests of this group and their parents.")
    parser.add_argument("--format", choices=("dot", "svg"), help="By default by the suffix of --output, else DOT.")
    parser.add_argument("--output", type=Path, metavar="FILE", help="Write to this file instead of standard output.")


def run(options: dict[str, Any], *, out: OutputWrapper, style: Style) -> int:
    """Load, draw and write."""
    if options["group"]:
        api.find_group(options["group"])
    picture = export.load(group=options["group"])
    if options["as_json"]:
        print_json(picture.as_dict(), out=out)
        return OK
    text = export.to_svg(picture) if _form(options) == "svg" else export.to_dot(picture)
    if options["output"] is None:
        out.write(text)
    else:
        _write(options["output"], text)
        out.write(f"{options['output']}: {len(picture.nodes)} manifests, {len(picture.edges)} edges.")
    return OK


def _form(options: dict[str, Any]) -> str:
    if options["format"]:
        return str(options["format"])
    return "svg" if options["output"] is not None and options["output"].suffix == ".svg" else "dot"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}.", returncode=BAD_INPUT) from error
