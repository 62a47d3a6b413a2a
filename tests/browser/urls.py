"""The site that the browser visits: that of the other tests, and pages that only a browser can judge."""

from django.http import HttpRequest, HttpResponse
from django.template import engines
from django.urls import include, path

INLINE_SCRIPT = "<!doctype html><title>Inline</title><script>document.title = 'It ran'</script>"
FLAWED = f"""<!doctype html><title>Flawed</title><div id="content"><h1>One</h1><h3>Three</h3>
<input id="twice"><p id="twice"><font color="#bbbbbb">pale</font></p><button></button>
<table><tr><td>{"wide" * 1000}</td></tr></table></div>"""
BADGES = """{% extends "admin/base_site.html" %}{% load static %}
{% block extrastyle %}{{ block.super }}<link rel="stylesheet" href="{% static "chainsched/admin.css" %}">{% endblock %}
{% block content %}{% for kind in request.GET.kinds.split %}
<p><span class="chainsched-badge chainsched-is-{{ kind }}">{{ kind }}</span></p>
{% endfor %}{% endblock %}"""


def inline_script(_request: HttpRequest) -> HttpResponse:
    """A page that breaks the policy."""
    return HttpResponse(INLINE_SCRIPT)


def flawed(_request: HttpRequest) -> HttpResponse:
    """A page that has one of each flaw."""
    return HttpResponse(FLAWED)


def badges(request: HttpRequest) -> HttpResponse:
    """A badge of each kind that the address names."""
    return HttpResponse(engines["django"].from_string(BADGES).render({}, request))


def nothing(_request: HttpRequest) -> HttpResponse:
    """For what browsers ask for by themselves."""
    return HttpResponse(status=204)


urlpatterns = [
    path("inline-script/", inline_script),
    path("flawed/", flawed),
    path("badges/", badges),
    path("favicon.ico", nothing),
    path("", include("tests.urls")),
]
