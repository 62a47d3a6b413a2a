"""Run the chaos: `python -m chaos --jobs 1000 --seed 1`, or prove its checker: `--prove`.

Prints the counts and then each invariant as one JSON line; the exit code is 1 if one was violated.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn, TypeVar

import django

from chaos.apps import WITHOUT, UnknownGuard
from chaos.faults import FROZEN, KILLED, Amounts
from chaos.servers import running_postgres
from chaos.workload import MIX
from tests.postgres import VARIABLE, on_signals

if TYPE_CHECKING:
    from chaos.run import Result, RunOptions

N = TypeVar("N", int, float)


def main(arguments: Sequence[str]) -> int:
    """Run and print; the exit code is 1 if an invariant was violated."""
    parser = _parser()
    options = parser.parse_args(arguments)
    os.environ["DJANGO_SETTINGS_MODULE"] = "chaos.settings"
    try:
        return _prove(options) if options.prove is not None else _judge(options)
    except UnknownGuard as error:
        parser.error(str(error))


def _prove(options: argparse.Namespace) -> int:
    from chaos.prove import prove  # noqa: PLC0415 - Django's settings are known by now

    return prove(options.prove)


def _judge(options: argparse.Namespace) -> int:
    on_signals(_end_in_order)
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10**6)
    if options.minutes is None:
        options.minutes = max(1.0, options.jobs / 1000)
    folder = Path(tempfile.mkdtemp(prefix="chainsched-chaos-"))
    print(f"Seed {options.seed}; logs are in {folder}.", file=sys.stderr)
    result = _run(options, folder)
    _print(result, options)
    if result.is_green and not options.keep:
        shutil.rmtree(folder)
    else:
        print(json.dumps({"logs": str(folder)}))
    return 0 if result.is_green else 1


def _end_in_order(number: int, _frame: FrameType | None) -> NoReturn:
    """End without leaving a process or a server running; further signals are ignored until that is done."""
    on_signals(signal.SIG_IGN)
    raise SystemExit(128 + number)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--jobs", type=_positive, default=1000, help="About how many runs there are.")
    parser.add_argument("--seed", type=_natural, help="The same seed draws the same jobs and faults.")
    parser.add_argument(
        "--minutes", type=_duration, help="For how long jobs come due and faults happen; by default 1 for 1,000 jobs."
    )
    parser.add_argument("--kills", type=_natural, help="SIGKILLs; by default one for 100 jobs.")
    parser.add_argument("--freezes", type=_natural, help="SIGSTOPs beyond the lease; by default one for 500 jobs.")
    parser.add_argument("--restarts", type=_natural, help="Restarts of PostgreSQL; by default one for 2,000 jobs.")
    parser.add_argument("--pauses", type=_natural, help="Pauses of PostgreSQL; by default as many as restarts.")
    parser.add_argument(
        "--terminations", type=_natural, help="Rounds of ended sessions; by default as many as restarts."
    )
    parser.add_argument(
        "--receivers", type=_natural, help="Times in which receivers of signals block; by default as many as restarts."
    )
    parser.add_argument(
        "--holds", type=_natural, help="Open transactions that hold manifests; by default as many as restarts."
    )
    parser.add_argument(
        "--refusals", type=_natural, help="Times in which the database refuses rows; by default as many as restarts."
    )
    parser.add_argument("--kinds", nargs="+", choices=MIX, help="Only these kinds of jobs.")
    parser.add_argument("--killed", choices=KILLED, help="The targets of SIGKILLs; by default all of these.")
    parser.add_argument("--frozen", choices=FROZEN, help="The targets of freezes; by default all of these.")
    parser.add_argument(
        "--patience",
        type=_duration,
        default=90,
        help="Give up after so many seconds in which no job came to its end.",
    )
    parser.add_argument("--keep", action="store_true", help="Keep the logs and the witness file.")
    parser.add_argument("--without", help="Switch this guard off; the checker must notice.")
    parser.add_argument(
        "--prove", nargs="*", metavar="GUARD", help="Switch each guard off in a run of its own; all must turn red."
    )
    return parser


def _positive(text: str) -> int:
    return _number(text, int, is_allowed=lambda number: number > 0, kind="a whole number above 0")


def _natural(text: str) -> int:
    return _number(text, int, is_allowed=lambda number: number >= 0, kind="a whole number, at least 0")


def _duration(text: str) -> float:
    return _number(text, float, is_allowed=lambda number: 0 < number < math.inf, kind="a number above 0")


def _number(text: str, convert: Callable[[str], N], *, is_allowed: Callable[[N], bool], kind: str) -> N:
    with contextlib.suppress(ValueError):
        number = convert(text)
        if is_allowed(number):
            return number
    raise argparse.ArgumentTypeError(f"{text!r} is not {kind}")


def _run(options: argparse.Namespace, folder: Path) -> Result:
    if options.without:
        os.environ[WITHOUT] = options.without
    with running_postgres() as postgres:
        os.environ[VARIABLE] = postgres.url
        postgres.create_database()
        django.setup()
        from chaos.guards import find_guard  # noqa: PLC0415 - needs the models to be loaded
        from chaos.run import run  # noqa: PLC0415

        prepare = find_guard(options.without).prepare if options.without else lambda: None
        return run(_run_options(options), postgres=postgres, folder=folder, prepare=prepare)


def _run_options(options: argparse.Namespace) -> RunOptions:
    from chaos.run import RunOptions  # noqa: PLC0415 - needs the models to be loaded
    from chaos.workflows import POISONS  # noqa: PLC0415

    def number(stated: int | None, default: int) -> int:
        return default if stated is None else stated

    restarts = number(options.restarts, max(1, options.jobs // 2000))
    amounts = Amounts(
        kills=number(options.kills, options.jobs // 100),
        freezes=number(options.freezes, options.jobs // 500),
        restarts=restarts,
        pauses=number(options.pauses, restarts),
        terminations=number(options.terminations, restarts),
        receivers=number(options.receivers, restarts),
        holds=number(options.holds, restarts),
        refusals=number(options.refusals, restarts),
    )
    return RunOptions(
        jobs=options.jobs,
        seed=options.seed,
        seconds=options.minutes * 60,
        amounts=amounts,
        kinds=options.kinds or list(MIX),
        poisons=list(POISONS),
        killed={options.killed: 1} if options.killed else KILLED,
        frozen={options.frozen: 1} if options.frozen else FROZEN,
        patience=options.patience,
    )


def _print(result: Result, options: argparse.Namespace) -> None:
    print(json.dumps({"seed": options.seed, "without": options.without, **result.counts}))
    for verdict in result.verdicts:
        print(json.dumps(verdict.as_dict()))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
