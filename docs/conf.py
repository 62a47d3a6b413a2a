"""How Sphinx builds the documentation; it needs neither the network nor the package installed."""

import re
from pathlib import Path

_source = (Path(__file__).parent.parent / "chainsched" / "__init__.py").read_text(encoding="utf-8")
_version = re.search(r'^__version__ = "(.+)"', _source, re.MULTILINE)
if _version is None:
    raise RuntimeError('chainsched/__init__.py has no line __version__ = "…"')

project = "chainsched"
author = "The chainsched developers"
copyright = author  # noqa: A001 (the name is Sphinx's)
release = version = _version[1]

extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence", "deflist", "fieldlist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = f"chainsched {release}"
