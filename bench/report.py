"""The results as tables: plain text for a terminal, or the markdown of docs/explanation/performance.md.

python -m bench.report results.json     the results
python -m bench.report                  the settings of those that take part
"""

import ast
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.contestants import CONTESTANTS
from bench.processes import ROOT
from bench.results import Numbers

Table = list[list[str]]

NONE = "-"
# The length of the longest bar of a plot.
BAR = 60
# What the last of the columns says of those that take part.
KEEPS = {
    "chainsched": "queue row and execution, with input and output",
    "floor": "the same rows; not a product",
    "pgqueuer": "3 log rows, no input or output",
    "chancy": "job row",
    "procrastinate": "job row and 3 events",
    "django-tasks-db": "task row with result",
    "celery": "result row",
}
COLUMNS = ["", "jobs/s (min-max)", "CPU µs a job (min-max)", "of it PostgreSQL", "enqueued/s one by one", "together"]
COLUMNS += ["start p50 / p99 ms", "hop p50 / p99 ms", "keeps"]
BESIDE = ("pgqueuer", "procrastinate", "celery")
OURS = ("chainsched-trigger", "chainsched-due", "chainsched-default", "two-schedulers", "finished")


def tables(results: Numbers) -> list[tuple[str, Table]]:
    """Each table with its title; the first row has the names of its columns."""
    made = [
        ("Jobs that do nothing", _contestants(results)),
        ("Ratios in this run: jobs/s, and CPU a job", _ratios(results)),
        ("chainsched alone", _alone(results)),
        ("Targets", _targets(results)),
    ]
    meaningful = made[::2] if results["about"]["is_tiny"] else made
    return [(title, table) for title, table in meaningful if len(table) > 1]


def _contestants(results: Numbers) -> Table:
    return [COLUMNS, *(_contestant(name, row) for name, row in results["contestants"].items())]


def _contestant(name: str, row: Numbers) -> list[str]:
    is_ours = name in OURS
    return [
        name,
        _spread(row["jobs_a_second"]),
        _spread(row["cpu_us_a_job"]),
        f"{row['postgresql_us_a_job']['median']:,.0f}",
        _median(row.get("enqueued_one_by_one_a_second")),
        NONE if name == "chainsched-due" else _median(row["enqueued_together_a_second"]),
        _percentiles(row.get("start_ms")),
        _percentiles(row.get("hop_ms")),
        KEEPS["chainsched"] if is_ours else KEEPS.get(name, "nothing"),
    ]


def _ratios(results: Numbers) -> Table:
    rows = results["contestants"]
    peers = [name for name in BESIDE if name in rows]
    ours = [name for name in OURS if name in rows]
    header = ["", *(f"{figure} / {peer}" for peer in peers for figure in ("jobs/s", "CPU"))]
    return [header, *([name, *_beside(rows, name, peers)] for name in ours)] if peers else []


def _beside(rows: Numbers, name: str, peers: Sequence[str]) -> list[str]:
    return [
        f"{rows[name][figure]['median'] / (rows[peer][figure]['median'] or 1):.2f}"
        for peer in peers
        for figure in ("jobs_a_second", "cpu_us_a_job")
    ]


def _alone(results: Numbers) -> Table:
    table = [["", "a second (min-max)", "CPU µs (min-max)"]]
    if scale := results.get("scale"):
        for name, what in (
            ("due_at_once", f"{scale['jobs']:,} due at once, into the queue"),
            ("long_queue", f"jobs, {scale['jobs']:,} queued: the first tenth"),
            ("short_queue", "jobs, the last tenth of them"),
        ):
            table.append([what, _spread(scale[name]["a_second"]), _spread(scale[name]["cpu_us"])])
    if quiet := results.get("quiet"):
        table += _quiet(quiet)
    return table


def _quiet(quiet: Numbers) -> Table:
    idle, lonely = quiet["idle"], quiet["lonely_run"]
    statements = idle["statements_a_second"]
    counted = NONE if statements is None else f"{statements:.1f} statements"
    used = f"{idle['own_percent_of_a_core']:.2f} % of a core, PostgreSQL {idle['postgresql_percent_of_a_core']:.2f} %"
    a_run = f"{lonely['own_ms'] * 1000:,.0f} a run, PostgreSQL {lonely['postgresql_ms'] * 1000:,.0f}"
    return [["idle, two children", counted, used], ["lonely runs", "5 runs", a_run]]


def _targets(results: Numbers) -> Table:
    return [["", "found", "target", "aim", ""], *(_target(verdict) for verdict in results["targets"])]


def _target(verdict: Numbers) -> list[str]:
    sign = "≤" if verdict["is_upper"] else "≥"
    aim = NONE if verdict["aim"] is None else f"{sign} {verdict['aim']:g}"
    reached = "reached" if verdict["reached"] else "NOT REACHED"
    return [verdict["name"], f"{verdict['found']:.2f}", f"{sign} {verdict['bound']:g}", aim, reached]


def _spread(numbers: Numbers) -> str:
    return f"{numbers['median']:,.0f} ({numbers['min']:,.0f}-{numbers['max']:,.0f})"


def _median(numbers: Numbers | None) -> str:
    return NONE if numbers is None else f"{numbers['median']:,.0f}"


def _percentiles(numbers: Numbers | None) -> str:
    return NONE if numbers is None else f"{numbers['p50']:.1f} / {numbers['p99']:.1f}"


def about(results: Numbers) -> str:
    """On what it was measured, in a sentence or two."""
    facts = results["about"]
    versions = ", ".join(f"{name} {version}" for name, version in facts["versions"].items())
    return (
        f"{facts['count']:,} jobs, {facts['rounds']} rounds, {facts['cores']} cores, Python {facts['python']}, "
        f"PostgreSQL {facts['postgresql']}; load {facts['load_before']:.1f} before, {facts['load_after']:.1f} after. "
        f"{versions}."
    )


def as_text(results: Numbers) -> str:
    """For a terminal."""
    parts = [about(results)]
    for title, table in tables(results):
        widths = [max(len(row[at]) for row in table) for at in range(len(table[0]))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in table]
        parts.append("\n".join([title, *(line.rstrip() for line in lines)]))
    parts += [f"!!!!! NOT MEASURED: {name}: {reason}" for name, reason in results["left_out"].items()]
    return "\n\n".join(parts)


def as_markdown(results: Numbers) -> str:
    """For the documentation."""
    parts = [about(results), *_plots(results)]
    for title, (header, *rows) in tables(results):
        lines = [header, ["---"] * len(header), *rows]
        parts.append("\n".join([f"### {title}", "", *("| " + " | ".join(line) + " |" for line in lines)]))
    return "\n\n".join(parts)


def _plots(results: Numbers) -> list[str]:
    rows = results["contestants"]
    rates = {name: row["jobs_a_second"]["median"] for name, row in rows.items()}
    costs = {name: row["cpu_us_a_job"]["median"] for name, row in rows.items()}
    return [_plot("jobs a second", rates), _plot("CPU µs a job", costs)]


def _plot(title: str, values: dict[str, float]) -> str:
    """Horizontal bars in the order of their lengths."""
    unit = max(values.values(), default=1) / BAR or 1
    ordered = sorted(values.items(), key=lambda item: -item[1])
    lines = [f"{name:<20}{value:>10,.0f}  {'█' * max(1, round(value / unit))}" for name, value in ordered]
    return "\n".join(["```text", title, "", *lines, "```"])


def settings() -> str:
    """What the modules of those that take part say of themselves, once each."""
    modules = dict.fromkeys(one.module for one in CONTESTANTS.values())
    return "\n\n".join(f"### {title}\n\n{text}" for title, text in map(_said, modules))


def _said(module: str) -> tuple[str, str]:
    """The first line of its docstring, and the rest in markdown."""
    path = ROOT / f"{module.replace('.', '/')}.py"
    title, _, text = (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n\n")
    return title.removesuffix(".").replace("``", "`"), text.replace("``", "`")


if __name__ == "__main__":
    print(as_markdown(json.loads(Path(sys.argv[1]).read_text())) if sys.argv[1:] else settings())
