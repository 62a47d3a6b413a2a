"""The reference names every option, check, command and public name there is."""

import argparse
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.contrib import admin
from django.core.management import load_command_class
from django.core.management.base import BaseCommand
from django.db.models import Model
from django.dispatch import Signal

import chainsched
from chainsched import checks, conf, correlation, exceptions, signals
from chainsched.domain.due import Reason
from chainsched.domain.results import Answer
from chainsched.flow.maintain.fsck import CHECKS
from chainsched.management.commands.chainsched import VERBS
from chainsched.management.verbs.operate import operator_verbs
from chainsched.models import model_methods
from chainsched.operations import OPERATIONS, Operation
from chainsched.testing import Workbench
from tests.admin.test_matrix import addresses
from tests.browser.pages import PAGES, picture_of

DOCS = Path(__file__).parent.parent / "docs"
PICTURES = {path.stem for path in (DOCS / "_static" / "screenshots").glob("*.png")}
FOR_NOBODY = {"add", "delete"}
CHECK_IDS = sorted(set(re.findall(r"chainsched\.[EW]\d{3}", Path(checks.__file__).read_text(encoding="utf-8"))))
ERRORS = [
    name
    for name, value in vars(exceptions).items()
    if inspect.isclass(value) and issubclass(value, exceptions.ChainschedError)
]
DOORS = sorted(
    {
        name
        for door in (
            model_methods.ManifestScheduling,
            model_methods.ManifestActions,
            model_methods.ExecutionActions,
            model_methods.GroupActions,
            model_methods.DeadLetterActions,
            model_methods.QueueActions,
            model_methods.BulkDecisionActions,
            model_methods.RunActions,
        )
        for name in vars(door)
        if not name.startswith("_")
    }
)
SCOPE = [
    name
    for name, value in vars(correlation).items()
    if getattr(value, "__module__", None) == correlation.__name__ and not name.startswith("_")
]
OPERATOR_VERBS = operator_verbs()
SIGNALS = [name for name, value in vars(signals).items() if isinstance(value, Signal)]


def read(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def section(page: str, title: str) -> str:
    """What the page says below this heading, up to the next heading of the same or a higher level."""
    found = re.search(rf"^(#+) {re.escape(title)}$(.*?)(?=^#{{2,3}} |\Z)", read(page), re.MULTILINE | re.DOTALL)
    assert found is not None, f"{page}.md has no section {title!r}"
    return found[2]


def flags(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings if option.startswith("--")}


def own_options() -> Iterator[tuple[str, str]]:
    """Every option of every command with the heading that it belongs under."""
    djangos = flags(BaseCommand().create_parser("manage.py", "any"))
    for name in ("run_scheduler", "run_worker"):
        parser = load_command_class("chainsched", name).create_parser("manage.py", name)
        yield from ((name, option) for option in sorted(flags(parser) - djangos))
    for name, verb in VERBS.items():
        plain = argparse.ArgumentParser(add_help=False)
        verb.add_arguments(plain)
        yield from ((heading_of(name), option) for option in sorted(flags(plain)))


def heading_of(verb: str) -> str:
    return "Operator verbs" if verb in OPERATOR_VERBS else f"chainsched {verb}"


@pytest.mark.parametrize("option", conf.OPTIONS)
def test_the_reference_names_the_option(option: str) -> None:
    assert f"| `{option}` |" in read("reference/settings")


@pytest.mark.parametrize("check_id", CHECK_IDS)
def test_the_reference_names_the_check(check_id: str) -> None:
    assert f"| `{check_id}` |" in read("reference/checks")


def test_the_reference_names_no_option_or_check_that_does_not_exist() -> None:
    options = re.findall(r"^\| `([A-Z_]+)` \|", read("reference/settings"), re.MULTILINE)
    ids = re.findall(r"^\| `(chainsched\.\w+)` \|", read("reference/checks"), re.MULTILINE)
    assert sorted(options) == sorted(conf.OPTIONS)
    assert sorted(ids) == CHECK_IDS


@pytest.mark.parametrize(("command", "option"), sorted(set(own_options())))
def test_the_reference_describes_the_option_of_the_command(command: str, option: str) -> None:
    assert re.search(rf"^`{option}( .+)?`\n: ", section("reference/commands", command), re.MULTILINE)


@pytest.mark.parametrize("verb", VERBS)
def test_the_reference_shows_how_the_verb_is_called(verb: str) -> None:
    assert f"$ python manage.py chainsched {verb} " in section("reference/commands", heading_of(verb))


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda operation: f"{operation.target}-{operation.name}")
def test_the_reference_has_the_line_of_the_operation(operation: Operation) -> None:
    assert operation.docs_line in section("reference/commands", "Operator verbs")


def test_the_reference_describes_no_option_or_verb_that_does_not_exist() -> None:
    known = set(own_options())
    for command in {command for command, _ in known}:
        described = re.findall(r"^`(--[a-z-]+)(?: .+)?`\n: ", section("reference/commands", command), re.MULTILINE)
        assert {(command, option) for option in described} <= known
    described_verbs = re.findall(r"^### chainsched (\w+)$", read("reference/commands"), re.MULTILINE)
    assert described_verbs == [verb for verb in VERBS if verb not in OPERATOR_VERBS]


@pytest.mark.parametrize("name", chainsched.__all__)
def test_the_reference_names_what_is_public(name: str) -> None:
    assert f"`{name}`" in section("reference/api", "Names in chainsched")


@pytest.mark.parametrize("name", DOORS)
def test_the_reference_names_the_call_on_a_model(name: str) -> None:
    assert re.search(rf"`{name}[(`]", section("reference/api", "Calls on models"))


@pytest.mark.parametrize("name", SCOPE)
def test_the_reference_names_what_is_public_in_scope(name: str) -> None:
    assert re.search(rf"^\| `{name}[(`]", section("reference/api", "Names in chainsched.correlation"), re.MULTILINE)


@pytest.mark.parametrize("name", SIGNALS)
def test_the_reference_names_the_signal(name: str) -> None:
    assert f"| `{name}` |" in section("reference/api", "Names in chainsched.signals")


def test_the_reference_names_every_check_of_fsck_and_no_other() -> None:
    named = re.findall(r"^\| `(\w+)` \|", section("reference/commands", "chainsched fsck"), re.MULTILINE)
    assert named == list(CHECKS)


@pytest.mark.parametrize("name", ERRORS)
def test_the_reference_names_the_error(name: str) -> None:
    assert f"| `{name}` |" in section("reference/api", "Errors")


@pytest.mark.parametrize("page", [page for page in admin.site._registry if page._meta.app_label == "chainsched"])
def test_the_reference_names_the_actions_and_permissions_of_the_page(page: type[Model]) -> None:
    actions = section("reference/admin", "Actions")
    permissions = section("reference/admin", "Permissions")
    assert not [name for name in admin.site.get_model_admin(page).actions or () if f"`{name}`" not in actions]
    assert not [codename for codename, _ in page._meta.permissions if f"| `{codename}` |" not in permissions]


@pytest.mark.parametrize(("page", "view"), [known for known in addresses() if known[1] not in FOR_NOBODY])
def test_there_is_a_picture_of_the_page(page: type[Model], view: str) -> None:
    assert picture_of(page._meta.model_name, view) in PICTURES, "make screenshots"


def test_every_picture_can_be_taken_anew_and_is_shown() -> None:
    shown = {
        name
        for path in DOCS.rglob("*.md")
        for name in re.findall(r"_static/screenshots/([\w-]+)\.png", path.read_text(encoding="utf-8"))
    }
    assert set(PAGES) == PICTURES
    assert shown == PICTURES


@pytest.mark.parametrize("code", Reason)
def test_the_reference_names_the_code_of_an_explanation(code: Reason) -> None:
    assert f"`{code}`" in section("reference/api", "Codes of explanations")


@pytest.mark.parametrize("answer", Answer)
def test_the_guide_explains_the_answer(answer: Answer) -> None:
    assert f"| `{answer}` |" in read("howto/manage-at-run-time")


@pytest.mark.parametrize("name", [name for name in vars(Workbench) if not name.startswith("_") and name != "process"])
def test_the_guide_names_what_the_workbench_can_do(name: str) -> None:
    assert re.search(rf"`{name}[(`]", section("howto/test-your-schedules", "What the bench can do"))
