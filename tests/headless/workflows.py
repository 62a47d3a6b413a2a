"""The workflow of this project."""

from chainsched import workflow
from tests.headless import admin_modules


@workflow
def look(is_broken: bool) -> list[str]:
    """The modules of the admin that are loaded where jobs run."""
    if is_broken:
        raise RuntimeError("row 17 is broken")
    return admin_modules()
