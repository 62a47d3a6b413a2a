"""The reference names every option and every check there is."""

import re
from pathlib import Path

import pytest

from chainsched import checks, conf

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
CHECK_IDS = sorted(set(re.findall(r"chainsched\.[EW]\d{3}", Path(checks.__file__).read_text(encoding="utf-8"))))


@pytest.mark.parametrize("option", conf.OPTIONS)
def test_the_reference_names_the_option(option: str) -> None:
    assert f"| `{option}` |" in (REFERENCE / "settings.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("check_id", CHECK_IDS)
def test_the_reference_names_the_check(check_id: str) -> None:
    assert f"| `{check_id}` |" in (REFERENCE / "checks.md").read_text(encoding="utf-8")


def test_the_reference_names_no_option_or_check_that_does_not_exist() -> None:
    options = re.findall(r"^\| `([A-Z_]+)` \|", (REFERENCE / "settings.md").read_text(encoding="utf-8"), re.MULTILINE)
    ids = re.findall(r"^\| `(chainsched\.\w+)` \|", (REFERENCE / "checks.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(options) == sorted(conf.OPTIONS)
    assert sorted(ids) == CHECK_IDS
