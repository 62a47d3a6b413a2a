"""The house rules of DESIGN §3 and STYLE.md, read from the source: who imports whom, who writes what."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "chainsched"

# From the bottom up; a module may import its own folder and those before it. A folder that is not named here with its
# sub-folders belongs to one rank as a whole.
LAYERS: list[set[str]] = [
    {"exceptions"},
    {"domain"},
    {"registry", "correlation", "scope", "conf", "secret", "signals", "history"},
    {"db"},
    {"models"},
    {"flow"},
    {"flow.run"},
    {"flow.schedule"},
    {"flow.operate"},
    {"flow.maintain"},
    {"flow.inspect"},
    {"servers", "graph", "migrations"},
    {"api"},
    {"operations"},
    {"runtime", "runtime.support"},
    {"runtime.loops"},
    {"runtime.workers"},
    {"runtime.process"},
    {"admin.kit"},
    {"admin.charts"},
    {"admin.pages"},
    {"management", "admin", "contrib", "testing", "views", "urls"},
    {"templatetags"},
    {"apps", "checks"},
]
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}

CLOCKS = {"now", "utcnow", "today", "time", "monotonic", "perf_counter", "time_ns"}
IMPURE_MODULES = {"django", "logging", "random", "time", "secrets", "os", "socket", "threading", "warnings"}
BANNED_NAMES = {"import_string", "mark_safe", "csrf_exempt", "eval", "exec"}
BANNED_MODULES = {"pickle", "marshal", "shelve", "cPickle", "dill"}

# What belongs to a session of PostgreSQL and is left to a stranger by a pooler that pools transactions.
SESSION_FEATURES = re.compile(
    r"pg_(try_)?advisory_(lock|unlock)|set_config\([^()]*, *false\)|[\"'] *(RE)?SET +(?!LOCAL)\w"
    r"|DECLARE +\w+ +(\w+ +)*CURSOR|WITH +HOLD|PREPARE +\w+ +AS|CREATE +TEMP|DISCARD +\w|[\"'] *LISTEN +"
)
# Nothing depends on what is heard in the one; the other frees the sessions of jobs from what these left there.
OF_SESSIONS = {"chainsched/runtime/process/listener.py", "chainsched/db/kept_sessions.py"}

# Modules that can be loaded only where django.contrib.admin is installed.
OF_THE_ADMIN = re.compile(r"(django\.contrib|chainsched)\.admin(\.|$)")

# The one name of Django's module for transactions that opens none.
KEEPS_OUT_OF_TRANSACTIONS = "django.db.transaction.non_atomic_requests"

MAX_MODULE_LINES = 300
MAX_FUNCTION_LINES = 40

FLOW_WITHOUT_STAGE = {"__init__.py", "transactions.py"}


def place_of(parts: tuple[str, ...]) -> str:
    """The folder of a module by its parts below the package, with its sub-folder where LAYERS names that."""
    exact = ".".join(parts[:2])
    return exact if exact in RANKS else parts[0]


@dataclass(frozen=True)
class Module:
    """A source file of the package."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def layer(self) -> str:
        return self.folder.partition(".")[0]

    @property
    def folder(self) -> str:
        """The most exact name of its place that LAYERS knows: ``flow.run``, ``domain``, ``api``."""
        return place_of(self.path.relative_to(PACKAGE).with_suffix("").parts)

    @cached_property
    def source(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.source, filename=self.name)

    @property
    def is_written_by_hand(self) -> bool:
        return not (self.layer == "migrations" and self.path.name[0].isdigit())


MODULES = [Module(path) for path in sorted(PACKAGE.rglob("*.py"))]
BY_HAND = [module for module in MODULES if module.is_written_by_hand]


def each(modules: list[Module]) -> pytest.MarkDecorator:
    """One case a module."""
    return pytest.mark.parametrize("module", [pytest.param(module, id=module.name) for module in modules])


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """Every imported name, dotted and in full, wherever in the file it is imported."""
    return imports_among(ast.walk(tree))


def imports_at_load(tree: ast.AST) -> Iterator[tuple[str, ast.stmt]]:
    """The names that loading the module imports."""
    return imports_among(walk_at_load(tree))


def walk_at_load(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when the module is loaded: not those in functions, nor those for type checkers."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}:
            for statement in child.orelse:
                yield from walk_at_load(statement)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from walk_at_load(child)


def imports_among(nodes: Iterable[ast.AST]) -> Iterator[tuple[str, ast.stmt]]:
    """Every name that one of these nodes imports, dotted and in full."""
    for node in nodes:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"line {node.lineno}: relative import"
            for alias in node.names:
                yield f"{node.module}.{alias.name}", node


def layer_of(imported: str) -> str | None:
    """The layer an import reaches into; None for what is not ours. The package itself re-exports from ``flow``."""
    parts = imported.split(".")
    if parts[0] != "chainsched":
        return None
    return place_of(tuple(parts[1:])) if len(parts) > 1 and parts[1] in RANKS else "apps"


def is_for_types(module: Module, layer: str) -> bool:
    """The methods of models lead up to the API, which they load at the first call; only type checkers import it."""
    return module.name == "chainsched/models/model_methods.py" and layer in {"api", "apps"}


def calls(module: Module) -> Iterator[ast.Call]:
    return (node for node in ast.walk(module.tree) if isinstance(node, ast.Call))


def called_name(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else ""


def places(module: Module, nodes: list[ast.expr] | list[ast.stmt]) -> list[str]:
    return [f"{module.name}:{node.lineno}" for node in nodes]


def test_every_part_of_the_package_has_its_layer():
    parts = {module.folder for module in MODULES} - {"__init__"}
    assert parts <= set(RANKS), f"say in LAYERS where {parts - set(RANKS)} belongs"


@each([module for module in MODULES if module.layer != "__init__"])
def test_imports_point_down(module):
    upward = [
        f"{module.name}:{statement.lineno}: {module.folder} -> {imported}"
        for imported, statement in imports(module.tree)
        if (layer := layer_of(imported)) is not None
        and RANKS[layer] > RANKS[module.folder]
        and not is_for_types(module, layer)
    ]
    assert not upward


@each([module for module in MODULES if module.layer == "domain"])
def test_the_domain_is_pure(module):
    impure = [
        f"{module.name}:{statement.lineno}: {imported}"
        for imported, statement in imports(module.tree)
        if imported.split(".")[0] in IMPURE_MODULES
    ]
    clocks = [
        call
        for call in calls(module)
        if isinstance(call.func, ast.Attribute)
        and call.func.attr in CLOCKS
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id in {"datetime", "date", "time"}
    ]
    settings = [node for node in ast.walk(module.tree) if isinstance(node, ast.Name) and node.id == "settings"]
    assert not impure
    assert not places(module, list(clocks))
    assert not places(module, list(settings))


@each([module for module in MODULES if module.layer != "admin"])
def test_only_the_admin_loads_the_admin(module):
    """A project may be without it. Template tags are no exception: Django imports them in every project."""
    loaded = [
        f"{module.name}:{statement.lineno}: {imported}"
        for imported, statement in imports_at_load(module.tree)
        if OF_THE_ADMIN.match(imported)
    ]
    assert not loaded


@each([module for module in MODULES if module.layer != "flow"])
def test_transactions_live_in_flow(module):
    found = [
        node
        for node in ast.walk(module.tree)
        if (isinstance(node, ast.Attribute) and node.attr == "atomic")
        or (isinstance(node, ast.Name) and node.id == "atomic")
    ]
    imported = {name for name, _ in imports(module.tree) if name.startswith("django.db.transaction")}
    ours = [name for name, _ in imports(module.tree) if name == "chainsched.flow.transactions.transact"]
    assert not places(module, list(found))
    assert imported <= {KEEPS_OUT_OF_TRANSACTIONS}
    assert not ours, f"{module.name} opens a transaction; a stage in flow/ does that"


@each([module for module in MODULES if module.layer not in {"db", "models"}])
def test_locks_and_raw_sql_live_in_db_and_models(module):
    raw = {"select_for_update", "cursor", "raw", "RawSQL", "extra", "executemany"}
    assert not places(module, [call for call in calls(module) if called_name(call) in raw])


@each([module for module in MODULES if module.name not in OF_SESSIONS])
def test_nothing_is_kept_in_a_session(module):
    found = [line for line in module.source.splitlines() if SESSION_FEATURES.search(line)]
    # Outside a transaction this is a cursor that the session holds.
    assert not places(module, [call for call in calls(module) if called_name(call) == "iterator"])
    assert not found


@pytest.mark.parametrize(
    ("line", "is_kept"),
    [
        ('"SELECT pg_advisory_lock(1)"', True),
        ('"SELECT pg_try_advisory_lock(1)"', True),
        ('"SELECT pg_advisory_xact_lock(1)"', False),
        ('"SET lock_timeout = 1"', True),
        ('"SET LOCAL lock_timeout = 1"', False),
        ("\"SELECT set_config(%s, 'on', false)\"", True),
        ("\"SELECT set_config(%s, 'on', true)\"", False),
        ('f"UPDATE {table} SET {sets}"', False),
        ('"DECLARE rows NO SCROLL CURSOR WITH HOLD FOR SELECT 1"', True),
        ('"PREPARE claim AS SELECT 1"', True),
        ('"CREATE TEMPORARY TABLE ids (id int)"', True),
        ('f"LISTEN {CHANNEL}"', True),
    ],
)
def test_what_a_session_keeps_is_known(line, is_kept):
    assert bool(SESSION_FEATURES.search(line)) is is_kept


@pytest.mark.parametrize(
    ("model", "home"),
    [("WorkQueue", "chainsched/flow/run/enqueue.py"), ("Metadata", "chainsched/flow/run/dispatch.py")],
)
def test_rows_are_created_in_one_place(model, home):
    creators = {"insert", "create", "bulk_create", "get_or_create", "update_or_create"}
    births = set()
    for module in MODULES:
        for call in calls(module):
            named = [argument.id for argument in call.args if isinstance(argument, ast.Name)]
            is_insert = called_name(call) == "insert" and named[:1] == [model]
            is_create = called_name(call) in creators and f"{model}.objects" in ast.unparse(call.func)
            is_instance = isinstance(call.func, ast.Name) and call.func.id == model
            if is_insert or is_create or is_instance:
                births.add(module.name)
    assert births == {home}


# Calls with columns to write.
ALARM_WRITERS = {"update", "CompiledUpdate", "create", "ManifestState"}


def test_the_alarm_is_written_in_one_place():
    homes = {"chainsched/flow/run/alarm.py", "chainsched/models/manifest_state.py"}
    writers = {module.name for module in MODULES if any(_alarm_writes(module))}
    assert writers == homes


def _alarm_writes(module: Module) -> Iterator[ast.AST]:
    """Where the module assigns ``next_run_at``, names it in a row to write, or passes it to a writing call."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Attribute) and node.attr == "next_run_at" and isinstance(node.ctx, ast.Store):
            yield node
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                # A mapping from one name to another only reads.
                if isinstance(key, ast.Constant) and key.value == "next_run_at" and not isinstance(value, ast.Constant):
                    yield node
        elif isinstance(node, ast.Call) and called_name(node) in ALARM_WRITERS:
            yield from (keyword for keyword in node.keywords if keyword.arg == "next_run_at")


@each(BY_HAND)
def test_every_module_says_what_it_is_for(module):
    docstring = ast.get_docstring(module.tree)
    assert docstring
    assert docstring.splitlines()[0].rstrip().endswith((".", ":", "?"))


@each(BY_HAND)
def test_every_public_function_and_class_has_a_docstring(module):
    public = [
        node
        for node in module.tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        and not node.name.startswith("_")
        and not any(ast.unparse(decorator) == "overload" for decorator in node.decorator_list)
    ]
    assert not [f"{module.name}:{node.lineno}: {node.name}" for node in public if not ast.get_docstring(node)]


@each([module for module in MODULES if module.layer == "flow" and module.path.name not in FLOW_WITHOUT_STAGE])
def test_a_stage_says_what_it_reads_writes_and_what_comes_next(module):
    lines = (ast.get_docstring(module.tree) or "").splitlines()
    starts = [line.partition(":")[0] for line in lines if ":" in line and not line.startswith(" ")]
    assert [start for start in starts if start in {"Reads", "Writes", "Next"}] == ["Reads", "Writes", "Next"]


@each(MODULES)
def test_nothing_dangerous_is_used(module):
    """No allow-list: what is named here is used nowhere."""
    found = [
        f"{module.name}:{statement.lineno}: {imported}"
        for imported, statement in imports(module.tree)
        if BANNED_MODULES & set(imported.split(".")) or imported.split(".")[-1] in BANNED_NAMES
    ]
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Name) and node.id in BANNED_NAMES | BANNED_MODULES:
            found.append(f"{module.name}:{node.lineno}: {node.id}")
        elif isinstance(node, ast.Attribute) and node.attr in {"import_string", "mark_safe", "csrf_exempt"}:
            found.append(f"{module.name}:{node.lineno}: {node.attr}")
        elif isinstance(node, ast.Attribute) and ast.unparse(node) in {"yaml.load", "yaml.unsafe_load"}:
            found.append(f"{module.name}:{node.lineno}: {ast.unparse(node)}")
        elif isinstance(node, ast.keyword) and node.arg == "shell" and ast.unparse(node.value) != "False":
            found.append(f"{module.name}:{node.value.lineno}: shell=True")
    assert not found


def test_what_has_grown_long_is_told(record_property, capsys):
    """Not a failure: a list of what STYLE.md would split, printed with ``pytest -s`` and kept in the report."""
    long_modules = [
        f"{module.name}: {lines} lines"
        for module in BY_HAND
        if (lines := len(module.source.splitlines())) > MAX_MODULE_LINES
    ]
    long_functions = [
        f"{module.name}:{node.lineno}: {node.name}, {lines} lines"
        for module in BY_HAND
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (lines := (node.end_lineno or node.lineno) - node.lineno + 1) > MAX_FUNCTION_LINES
    ]
    record_property("long_modules", long_modules)
    record_property("long_functions", long_functions)
    with capsys.disabled():
        for line in [*long_modules, *long_functions]:
            print(f"\nlong: {line}", end="")  # noqa: T201 - the point of this test
    assert MODULES


@pytest.mark.parametrize(
    ("source", "layer", "is_upward"),
    [
        ("from chainsched.models import Manifest", "flow", False),
        ("from chainsched.flow.run.alarm import arm", "models", True),
        ("from chainsched.flow.run.alarm import arm", "flow.schedule", False),
        ("from chainsched.flow.schedule.seed import seed", "flow.run", True),
        ("from chainsched.flow.transactions import transact", "flow.run", False),
        ("from chainsched.runtime.process.supervisor import Supervisor", "runtime.workers", True),
        ("from chainsched.conf import get_config", "domain", True),
        ("from chainsched import schedules", "flow", True),
        ("from chainsched.flow.inspect import explain", "api", False),
        ("def f():\n    from chainsched.runtime.loops import poller", "flow", True),
        ("from django.db import models", "domain", False),
    ],
)
def test_this_test_knows_up_from_down(source, layer, is_upward):
    found = {layer_of(imported) for imported, _ in imports(ast.parse(source))} - {None}
    assert any(RANKS[str(name)] > RANKS[layer] for name in found) is is_upward


@pytest.mark.parametrize(
    ("source", "is_loaded"),
    [
        ("from django.contrib import admin", True),
        ("from django.contrib.admin.models import LogEntry", True),
        ("import chainsched.admin", True),
        ("from chainsched.admin.pages.overview import look", True),
        ("class Page:\n    from chainsched import admin", True),
        ("try:\n    from chainsched import admin\nexcept ImportError:\n    admin = None", True),
        ("if TYPE_CHECKING:\n    x = 1\nelse:\n    from chainsched import admin", True),
        ("if TYPE_CHECKING:\n    from chainsched import admin", False),
        ("def look():\n    from chainsched import admin", False),
        ("class Page:\n    async def look(self):\n        from chainsched import admin", False),
        ("from django.contrib import admindocs", False),
    ],
)
def test_this_test_knows_which_imports_load_the_admin(source, is_loaded):
    found = [imported for imported, _ in imports_at_load(ast.parse(source)) if OF_THE_ADMIN.match(imported)]
    assert bool(found) is is_loaded
