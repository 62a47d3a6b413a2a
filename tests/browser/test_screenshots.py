"""The pictures of the documentation: every page of the control room, on the same night."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from chainsched.testing import Workbench
from tests.browser.pages import PAGES
from tests.browser.visitor import Visitor
from tests.browser.world import Night

# The numbers of rows are on the pages, so that they begin anew.
pytestmark = [
    pytest.mark.browser,
    pytest.mark.django_db(transaction=True, reset_sequences=True),
    pytest.mark.timeout(600),
]

HIGHEST = 2200
MAX_COLOURS = 64


@pytest.fixture
def directory(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where the pictures go: where the command line says, else nowhere in particular."""
    chosen = request.config.getoption("--screenshots")
    directory = Path(chosen) if chosen else tmp_path
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def test_a_picture_is_taken_of_every_page(visitor: Visitor, bench: Workbench, directory: Path) -> None:
    night = Night()
    visitor.log_in("manager")
    for name, go in PAGES.items():
        go(visitor, night)
        save(visitor.picture(HIGHEST), directory / f"{name}.png")
    assert {path.stem for path in directory.glob("*.png")} == set(PAGES), "one is of a page that there is no more"


def save(picture: bytes, path: Path) -> None:
    """Few colours are enough for text, and make the file small."""
    image = Image.open(BytesIO(picture)).convert("RGB")
    image.quantize(MAX_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
