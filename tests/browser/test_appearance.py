"""Every page can be read: in both themes, on wide and narrow screens, and by those who do not see it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

import chainsched
from chainsched.domain.states import DeadLetterStatus, ExecutionState, QueueStatus
from chainsched.models import Manifest
from chainsched.testing import Workbench
from tests.admin.world import url_of
from tests.browser import probes
from tests.browser.pages import PAGES
from tests.browser.visitor import Visitor
from tests.browser.world import Night
from tests.factories import NOW, make_dependent, make_execution, make_group, make_manifest, make_process, make_queue_row

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

LEAST_CONTRAST = 4.5
STYLES = Path(chainsched.__file__).parent / "static" / "chainsched" / "admin.css"

each_theme = pytest.mark.parametrize("theme", ["light", "dark"])


@pytest.fixture
def night(bench: Workbench) -> Night:
    return Night()


@pytest.fixture
def manager(visitor: Visitor, night: Night) -> Visitor:
    visitor.log_in("manager")
    return visitor


def ask_everywhere(visitor: Visitor, night: Night, probe: str, *arguments: Any) -> dict[str, Any]:
    """What a probe finds, by page; pages where it finds nothing are left out."""
    found = {}
    for name, go in PAGES.items():
        go(visitor, night)
        if findings := visitor.run(probe, *arguments):
            found[name] = findings
    return found


def kinds_of_badges() -> Iterator[str]:
    """What badges there are: the states, and what the stylesheet has a colour for."""
    states: tuple[type[StrEnum], ...] = (ExecutionState, QueueStatus, DeadLetterStatus)
    yield from (state.value.replace("_", "-") for kind in states for state in kind)
    yield from re.findall(r"\.chainsched-is-([a-z-]+)", STYLES.read_text(encoding="utf-8"))


@each_theme
def test_every_badge_stands_out_from_its_ground(visitor: Visitor, theme: str) -> None:
    kinds = sorted(set(kinds_of_badges()))
    visitor.prefer(theme)
    visitor.open("/badges/?" + urlencode({"kinds": " ".join(kinds)}))
    assert len(visitor.find_all(".chainsched-badge")) == len(kinds) > 10
    assert visitor.run(probes.PALE, ".chainsched-badge", LEAST_CONTRAST) == []
    assert len(visitor.run(probes.PALE, ".chainsched-badge", 21.1)) == len(kinds), "the probe sees nothing"


@each_theme
def test_every_text_stands_out_from_its_ground(manager: Visitor, night: Night, theme: str) -> None:
    manager.prefer(theme)
    assert ask_everywhere(manager, night, probes.PALE, "#content *", LEAST_CONTRAST) == {}


@pytest.mark.parametrize("width", [1400, 400])
def test_no_page_is_wider_than_the_screen(manager: Visitor, night: Night, width: int) -> None:
    manager.resize(width)
    assert ask_everywhere(manager, night, probes.OVERFLOW) == {}
    assert manager.run("return innerWidth") == width


def test_every_list_shows_all_its_columns_on_a_wide_screen(manager: Visitor, night: Night) -> None:
    """On a narrow one a list is scrolled in its place."""
    assert ask_everywhere(manager, night, probes.SCROLLED_LIST) == {}
    manager.resize(400)
    assert set(ask_everywhere(manager, night, probes.SCROLLED_LIST)) >= {"manifest-list", "metadata-list"}


def test_a_long_name_without_spaces_pushes_nothing_off_the_page(visitor: Visitor, bench: Workbench) -> None:
    manifest = make_manifest("x" * 200, group=make_group("y" * 200))
    execution = make_execution(manifest, state=ExecutionState.IN_PROGRESS, process=make_process(), started_at=NOW)
    make_queue_row(make_dependent(manifest, "z" * 200, group=manifest.group))
    visitor.log_in("manager")
    for row in (manifest, manifest.group, execution, execution.process):
        visitor.open(url_of(type(row), "change", row.pk))
        assert visitor.run(probes.OVERFLOW) == 0, row
        assert visitor.run(probes.SCROLLED_SECTIONS) == [], row
    visitor.open(url_of(Manifest, "change", manifest.pk))
    visitor.press("Trigger")
    assert visitor.run(probes.OVERFLOW) == 0


def test_everything_has_its_name_and_place(manager: Visitor, night: Night) -> None:
    found: dict[tuple[str, str], list[str]] = {}
    for page, go in PAGES.items():
        go(manager, night)
        found |= {(page, about): said for about, probe in probes.STRUCTURE.items() if (said := manager.run(probe))}
    assert found == {}


def test_the_probes_see_what_is_wrong(visitor: Visitor) -> None:
    visitor.open("/flawed/")
    assert {about: len(visitor.run(probe)) for about, probe in probes.STRUCTURE.items()} == dict.fromkeys(
        probes.STRUCTURE, 1
    )
    assert visitor.run(probes.PALE, "#content *", LEAST_CONTRAST) == ["pale (): 1.92"]
    assert visitor.run(probes.OVERFLOW) > 1000
