"""The browser's complaints reach the tests: without this, a run without complaints would prove nothing."""

import pytest

from tests.browser import policy
from tests.browser.visitor import Visitor
from tests.waiting import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]


def test_an_inline_script_does_not_run_and_is_noticed_twice(visitor: Visitor) -> None:
    visitor.open("/inline-script/")
    assert visitor.driver.title == "Inline"
    assert visitor.wait(lambda: [told for told in visitor.grievances() if "Content Security Policy" in told])
    (report,) = wait_until(lambda: list(policy.reported))
    assert '"effective-directive":"script-src-elem"' in report
    policy.reported.clear()


def test_an_error_of_a_script_is_noticed(visitor: Visitor) -> None:
    visitor.open("/admin/login/")
    visitor.run("setTimeout(() => { throw new Error('broken on purpose') })")
    assert visitor.wait(visitor.grievances)


def test_what_is_not_found_is_noticed(visitor: Visitor) -> None:
    visitor.open("/nowhere/")
    assert visitor.wait(visitor.grievances)


def test_nothing_is_loaded_from_elsewhere(visitor: Visitor) -> None:
    visitor.open("/admin/login/")
    outcome = visitor.run("return fetch('https://example.com/').then(() => 'loaded', () => 'refused')")
    assert outcome == "refused"
    assert visitor.wait(visitor.grievances)
    wait_until(lambda: list(policy.reported))
    policy.reported.clear()
    # It may be told of in more than one line.
    visitor.grievances()
