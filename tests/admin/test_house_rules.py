"""What the admin's sources must not contain, and that its pages combine with the ModelAdmin of a theme."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from django.contrib import admin
from django.core.checks import Error

import chainsched
from chainsched.admin import ManifestPage
from chainsched.models import Manifest

PACKAGE = Path(chainsched.__file__).parent
TEMPLATES = sorted((PACKAGE / "templates").rglob("*.html"))
SOURCES = sorted((PACKAGE / "admin").rglob("*.py"))


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_escapes_everything_and_runs_nothing(path: Path) -> None:
    # A script may be named, if it is a file of ours.
    text = re.sub(
        r'<script src="{% static "chainsched/[a-z.]+" %}" defer></script>', "", path.read_text(encoding="utf-8")
    )
    assert not re.search(r"\|\s*safe|autoescape off|<script|<style|\sstyle=|\son[a-z]+=|https?://", text)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.name)
def test_no_markup_is_made_by_formatting_text(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    made = [
        node for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) and re.search(r"</?[a-z]", ast.unparse(node))
    ]
    assert not made
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == "list_editable"]


def test_a_theme_combines_a_page_with_a_model_admin_of_its_own() -> None:
    class ThemedAdmin(admin.ModelAdmin):
        """Stands for the ModelAdmin of a theme."""

    class ThemedManifestAdmin(ManifestPage, ThemedAdmin):
        """Two lines, as the guide shows."""

    page = ThemedManifestAdmin(Manifest, admin.AdminSite("themed"))
    assert [problem for problem in page.check() if isinstance(problem, Error)] == []
    assert not issubclass(ManifestPage, admin.ModelAdmin)
