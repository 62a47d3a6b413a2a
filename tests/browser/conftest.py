"""A Chromium for the whole run; for each test a site on its database, and a visitor who tolerates nothing."""

from collections.abc import Iterator

import pytest
from django.conf import settings
from django.contrib.staticfiles.handlers import StaticFilesHandler
from django.test import override_settings
from django.test.testcases import LiveServerThread
from selenium.webdriver import Chrome

from chainsched.testing import Workbench
from tests.browser import policy
from tests.browser.visitor import HIGH, WIDE, Visitor, start_chromium
from tests.drive import new_bench


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chrome]:
    driver = start_chromium()
    yield driver
    driver.quit()


@pytest.fixture
def site(transactional_db: None) -> Iterator[str]:
    """The address of a site under the strict policy, in a thread of this process, with connections of its own."""
    policy.reported.clear()
    middleware = ["tests.browser.policy.StrictPolicy", *settings.MIDDLEWARE]
    with override_settings(ALLOWED_HOSTS=["localhost"], MIDDLEWARE=middleware, ROOT_URLCONF="tests.browser.urls"):
        server = LiveServerThread("localhost", StaticFilesHandler)
        server.daemon = True
        server.start()
        server.is_ready.wait()
        if server.error:
            raise server.error
        yield f"http://localhost:{server.port}"
        server.terminate()


@pytest.fixture
def visitor(chromium: Chrome, site: str) -> Iterator[Visitor]:
    """Nobody yet: ``log_in`` makes somebody of them. What the browser complains about fails the test."""
    chromium.delete_all_cookies()
    visitor = Visitor(chromium, site)
    visitor.resize(WIDE, HIGH)
    visitor.prefer("light")
    visitor.grievances()
    yield visitor
    grievances = visitor.grievances()
    chromium.get("about:blank")
    assert not grievances, grievances
    assert not policy.reported, policy.reported


@pytest.fixture
def bench(transactional_db: None) -> Iterator[Workbench]:
    """The engine by hand, at a time that stands still for the site too."""
    with new_bench() as bench:
        yield bench
