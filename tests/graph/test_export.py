"""The graph as a file: the SVG does not depend on the template engines of the project."""

from xml.etree import ElementTree as ET

import pytest

from chainsched.graph.export import Node, Picture, to_svg
from chainsched.graph.states import NodeState

DJANGO = "django.template.backends.django.DjangoTemplates"


@pytest.mark.parametrize(
    "templates",
    [
        pytest.param([], id="none"),
        pytest.param([{"BACKEND": DJANGO}], id="one that does not look into apps"),
        pytest.param(
            [{"BACKEND": DJANGO, "APP_DIRS": True, "OPTIONS": {"autoescape": False}}], id="one without escapes"
        ),
        pytest.param([{"BACKEND": "django.template.backends.dummy.TemplateStrings"}], id="one of another kind"),
    ],
)
def test_the_svg_needs_no_template_engine_of_the_project(templates, settings):
    settings.TEMPLATES = templates
    (name,) = texts(to_svg(Picture([Node("<a> & b", "etl", "interval", NodeState.SUCCEEDED)], [])))
    assert name == "<a> & b"


def texts(svg: str) -> list[str | None]:
    return [text.text for text in ET.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")]  # noqa: S314 - our own
