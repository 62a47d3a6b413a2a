"""What people do in the control room, from logging in to seeing what became of it."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.select import Select

from chainsched import Every
from chainsched.admin.pages.overview import REFRESH_SECONDS
from chainsched.domain.states import ExecutionState
from chainsched.models import DeadLetter, Manifest, ManifestGroup, WorkQueue
from chainsched.registry import registry
from chainsched.testing import Workbench
from tests.admin.test_pages import fingerprint
from tests.admin.world import url_of
from tests.browser.probes import FORGED_POST, LOOKS_OF_FOCUS, NAME_OF_FOCUS
from tests.browser.visitor import PATIENCE, Visitor
from tests.drive import executions_of, manifest
from tests.factories import make_letter, make_manifest
from tests.testapp import workflows

pytestmark = [pytest.mark.browser, pytest.mark.timeout(300)]

MAX_TABS = 80
# What a script sees of an answer that leads elsewhere.
REDIRECTED = 0


@pytest.fixture
def chain(bench: Workbench) -> Workbench:
    """An extract that succeeded, a transform that was given up, a load that waits for it, a dormant repair."""
    extract = bench.schedules.schedule(workflows.ping, "etl-extract", None, Every.hours(1), group="etl")
    extract.then_include(workflows.fail, "etl-transform", group="etl", max_retries=2, retry_delay=1).then_include(
        workflows.ping, "etl-load", group="etl"
    )
    extract.include(workflows.copy, "etl-repair", workflows.Slice("orders"), group="etl", dormant=True)
    bench.seed()
    bench.drain()
    bench.advance(seconds=2)
    bench.drain()
    return bench


@pytest.fixture
def mend(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the source be mended before anybody looks."""
    monkeypatch.setattr(registry.get("testapp.fail"), "function", lambda: "mended")


def enter(visitor: Visitor) -> None:
    """Begin where everybody begins: at the first page of the app."""
    visitor.open(reverse("admin:app_list", args=["chainsched"]))


def find_what_failed(visitor: Visitor, external_id: str) -> None:
    """From the banner of the overview to the dead letter of a manifest."""
    assert "Needs attention" in visitor.text
    visitor.follow("1 dead letter awaits a decision; its manifest does not run until then.")
    assert external_id in visitor.text
    visitor.follow(external_id)
    visitor.click(visitor.find("#content a[href*='/deadletter/']"))


def go_to(visitor: Visitor, *way: str) -> None:
    enter(visitor)
    for words in way:
        visitor.follow(words)


def test_what_failed_is_found_understood_and_retried(visitor: Visitor, chain: Workbench, mend: None) -> None:
    visitor.log_in("manager")
    enter(visitor)
    find_what_failed(visitor, "etl-transform")
    assert visitor.fact("Status") == "awaiting intervention"
    assert "row 17 is broken" in visitor.fact("Reason")
    assert "RuntimeError: row 17 is broken" in visitor.section("Failure traceback")

    visitor.press("Retry")
    assert "Retry: 1 dead letter" in visitor.text
    visitor.fill("Reason:", "the source is back")
    visitor.press("Retry")
    assert visitor.messages() == ["Retry: 1 dead letter: queued once more."]
    assert visitor.buttons() == []

    assert chain.drain() == ["etl-transform", "etl-load"]
    visitor.open(visitor.path)
    assert visitor.fact("Status") == "retried"
    assert visitor.fact("Note") == "the source is back"
    visitor.click(visitor.find_fact("Retry").find_element(By.TAG_NAME, "a"))
    assert visitor.fact("State") == "completed"
    assert "etl-load" in visitor.section("Tree")

    visitor.open(url_of(Manifest, "change", manifest("etl-load").pk))
    assert "completed" in visitor.section("Recent executions")


def test_the_history_says_who_did_it_and_why(visitor: Visitor, chain: Workbench) -> None:
    visitor.log_in("operator")
    enter(visitor)
    find_what_failed(visitor, "etl-transform")
    visitor.press("Acknowledge")
    visitor.press("Acknowledge")
    assert "This field is required." in visitor.errors_at("Note:")
    visitor.fill("Note:", "known, the partner is closed")
    visitor.press("Acknowledge")
    assert visitor.messages() == ["Acknowledge: 1 dead letter: acknowledged."]
    visitor.click(visitor.find(".historylink"))
    assert "operator" in visitor.text
    assert "Reason: known, the partner is closed." in visitor.text


def test_a_dormant_child_is_activated_with_an_input_that_fits(visitor: Visitor, chain: Workbench) -> None:
    visitor.log_in("operator")
    go_to(visitor, "Manifests", "etl-repair")
    visitor.press("Activate")
    visitor.fill("Size:", "1.5")
    visitor.press("Activate")
    assert "This field is required." in visitor.errors_at("Table:")
    assert "Enter a whole number." in visitor.errors_at("Size:")
    assert visitor.field("Size:").get_attribute("aria-invalid") == "true"
    assert chain.drain() == []

    visitor.fill("Table:", "invoices")
    visitor.fill("Size:", "7")
    visitor.press("Activate")
    assert visitor.messages() == ["Activate: 1 manifest: queued."]
    assert chain.drain() == ["etl-repair"]
    (run,) = executions_of("etl-repair")
    assert (run.state, run.output) == (ExecutionState.COMPLETED, {"table": "invoices", "rows": 7})
    visitor.open(visitor.path)
    assert "completed" in visitor.section("Recent executions")


def test_a_disabled_group_does_not_run_until_it_is_enabled(visitor: Visitor, chain: Workbench) -> None:
    visitor.log_in("operator")
    go_to(visitor, "Manifest groups", "etl")
    visitor.press("Disable")
    assert "None of its work is queued or dispatched" in visitor.text
    visitor.press("Disable")
    assert visitor.fact("Switch") == "disabled"
    assert chain.run_for(hours=3) == []
    go_to(visitor, "Manifests", "etl-extract")
    assert "group" in visitor.fact("Why")

    go_to(visitor, "Manifest groups", "etl")
    visitor.press("Enable")
    visitor.press("Enable")
    assert visitor.fact("Switch") == "enabled"
    assert chain.run_for(hours=1).count("etl-extract") >= 1


def test_several_manifests_are_disabled_from_the_list(visitor: Visitor, chain: Workbench) -> None:
    visitor.log_in("operator")
    go_to(visitor, "Manifests")
    for name in ("etl-extract", "etl-load"):
        visitor.find(f"input.action-select[value='{manifest(name).pk}']").click()
    Select(visitor.find("select[name=action]")).select_by_visible_text("Disable selected manifests")
    visitor.click(visitor.find("#changelist-form .actions button"))
    assert "Disable: 2 manifests" in visitor.text
    visitor.press("Disable")
    assert visitor.messages() == ["Disable: 2 manifests: disabled."]
    assert set(Manifest.objects.filter(is_enabled=False).values_list("external_id", flat=True)) == {
        "etl-extract",
        "etl-load",
    }


def test_a_viewer_sees_everything_and_can_do_nothing(visitor: Visitor, chain: Workbench) -> None:
    visitor.log_in("viewer")
    enter(visitor)
    find_what_failed(visitor, "etl-transform")
    letter = visitor.path
    assert visitor.buttons() == []
    assert "Hidden: seeing them requires the permission chainsched.view_payloads." in visitor.text
    go_to(visitor, "Manifests")
    assert visitor.find_all("select[name=action]") == []
    group = url_of(ManifestGroup, "change", ManifestGroup.objects.get(name="etl").pk)
    visitor.open(group)
    assert visitor.buttons() == []

    before = fingerprint()
    for path, action in ((letter, "retry"), (letter, "acknowledge"), (group, "disable"), (group, "trigger")):
        row = path.split("/")[-3]
        form = {"_selected_action": row, "CHANGE_FORM-action": action, "count": "1", "confirmed": "yes", "reason": "x"}
        assert visitor.run(FORGED_POST, path, form) == 403, action
    listed = {"_selected_action": letter.split("/")[-3], "action": "retry", "count": "1", "confirmed": "yes"}
    assert visitor.run(FORGED_POST, url_of(DeadLetter, "changelist"), listed) in (REDIRECTED, 200)
    assert fingerprint() == before
    assert not LogEntry.objects.exists()
    assert not WorkQueue.objects.queued().exists()
    assert all("403" in told for told in visitor.grievances())


def test_the_keyboard_alone_is_enough(visitor: Visitor, chain: Workbench) -> None:
    visitor.log_in("operator")
    go_to(visitor, "Manifests", "etl-extract")
    tab_to(visitor, "Disable")
    with visitor.leaving():
        visitor.type_keys(Keys.ENTER)
    tab_to(visitor, "Reason:")
    visitor.type_keys("maintenance")
    tab_to(visitor, "Disable")
    with visitor.leaving():
        visitor.type_keys(Keys.ENTER)
    assert visitor.messages() == ["Disable: 1 manifest: disabled."]
    assert not manifest("etl-extract").is_enabled
    assert "Reason: maintenance." in str(LogEntry.objects.get().change_message)


def tab_to(visitor: Visitor, name: str) -> None:
    """Press the tab key until the focus is on what has this name; every stop on the way can be seen."""
    for _ in range(MAX_TABS):
        visitor.type_keys(Keys.TAB)
        here = visitor.run(NAME_OF_FOCUS)
        focused, plain = visitor.run(LOOKS_OF_FOCUS)
        assert focused != plain, f"the focus on {here!r} cannot be seen"
        if here == name:
            return
    raise AssertionError(f"{name!r} was not reached with {MAX_TABS} tabs")


def test_the_overview_refreshes_itself(visitor: Visitor, bench: Workbench) -> None:
    visitor.log_in("viewer")
    enter(visitor)
    assert "dead letter awaits" not in visitor.text
    visitor.driver.execute_script("window.isTheSamePage = true")
    make_letter(make_manifest(state={}))
    visitor.wait(lambda: "1 dead letter awaits" in visitor.text, patience=REFRESH_SECONDS + PATIENCE)
    assert visitor.driver.execute_script("return window.isTheSamePage")


def test_an_overview_that_waits_for_its_reader_says_so(visitor: Visitor, bench: Workbench) -> None:
    visitor.log_in("viewer")
    enter(visitor)
    visitor.find("#chainsched-overview summary").click()
    make_letter(make_manifest(state={}))
    visitor.wait(lambda: "Not refreshed while it has the focus" in visitor.text, patience=REFRESH_SECONDS + PATIENCE)
    assert "dead letter awaits" not in visitor.text
    visitor.find("#content h1").click()
    visitor.wait(lambda: "1 dead letter awaits" in visitor.text, patience=REFRESH_SECONDS + PATIENCE)
    assert "Not refreshed" not in visitor.text
