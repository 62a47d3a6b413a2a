"""The file map in docs/explanation/architecture.md names every folder and module of the package, and no other."""

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "chainsched"
PAGE = "docs/explanation/architecture.md"


def mapped() -> tuple[list[str], list[str]]:
    """The folders and the modules that the map names, as paths from the root, in the order of the page."""
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    found = re.search(r"^## File map$(.*?)(?=^## )", page, re.MULTILINE | re.DOTALL)
    assert found is not None, f'{PAGE} has no section "## File map"'
    folders: list[str] = []
    modules: list[str] = []
    for line in found[1].splitlines():
        if heading := re.fullmatch(r"### (chainsched/(?:\w+/)*)", line):
            folders.append(heading[1])
        elif row := re.fullmatch(r"\| `(\w+\.py)` \| \S.* \|", line):
            modules.append(folders[-1] + row[1])
        else:
            assert not line.startswith(("###", "| `")), f"{PAGE}: the map cannot be read at {line!r}"
    return folders, modules


def is_mapped(path: Path) -> bool:
    """Whether a module has a line of its own: neither the file of a folder nor a migration."""
    return path.name != "__init__.py" and not re.fullmatch(r"migrations/\d.*", path.relative_to(PACKAGE).as_posix())


def names(paths: set[Path]) -> set[str]:
    return {path.relative_to(ROOT).as_posix() for path in paths}


SOURCES = set(PACKAGE.rglob("*.py"))
MODULES = names({path for path in SOURCES if is_mapped(path)})
FOLDERS = {f"{name}/" for name in names({path.parent for path in SOURCES})}


def test_the_map_names_every_module():
    _, modules = mapped()
    missing = sorted(MODULES - set(modules))
    assert not missing, f"not in the file map: {missing}; add a line for each below its folder in {PAGE}"


def test_the_map_names_no_module_that_does_not_exist():
    _, modules = mapped()
    gone = sorted(set(modules) - MODULES)
    assert not gone, f"in the file map, but not in the tree: {gone}; remove or rename their lines in {PAGE}"


def test_the_map_names_each_module_once():
    folders, modules = mapped()
    twice = sorted(name for name, count in Counter([*folders, *modules]).items() if count > 1)
    assert not twice, f"more than once in the file map: {twice}; keep one line for each in {PAGE}"


def test_the_map_names_every_folder_and_no_other():
    folders, _ = mapped()
    missing, gone = sorted(FOLDERS - set(folders)), sorted(set(folders) - FOLDERS)
    assert not missing, f"not in the file map: {missing}; add a heading for each in {PAGE}"
    assert not gone, f"in the file map, but not in the tree: {gone}; remove their headings from {PAGE}"
