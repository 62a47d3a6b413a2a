"""Somebody in front of a browser: reads pages, follows links, presses buttons, fills in forms."""

from __future__ import annotations

import base64
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

from django.contrib.auth.models import User
from django.urls import reverse
from selenium.common.exceptions import WebDriverException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.wait import WebDriverWait

from tests.admin.world import make_user

T = TypeVar("T")

PATIENCE = 60
WIDE, HIGH = 1400, 800
MARGIN = 20
BOTTOM = """
const shown = document.querySelectorAll("#content, #nav-sidebar .module, #changelist-filter");
return Math.max(...[...shown].map(element => element.getBoundingClientRect().bottom));
"""
# When the page that is there came, once all of it is.
LOADED = "return document.readyState === 'complete' ? performance.timeOrigin : null;"
PROGRAMS = ("chromium", "chromedriver")
INSTALL = "apt-get install -y chromium chromium-driver"
SWITCHES = (
    "--headless=new",
    # Containers run as root and without the namespaces that the sandbox wants.
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-extensions",
    "--disable-sync",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--lang=en-US",
    # Nothing is loaded from anywhere but the site under test.
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE localhost",
)


def start_chromium() -> Chrome:
    """A headless Chromium of the system, driven by the system's chromedriver; nothing is downloaded."""
    browser, driver = (shutil.which(program) for program in PROGRAMS)
    if browser is None or driver is None:
        raise FileNotFoundError(f"The browser tests need {' and '.join(PROGRAMS)}: {INSTALL}")
    os.environ["SE_OFFLINE"] = "true"
    options = ChromeOptions()
    options.binary_location = browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for switch in (*SWITCHES, f"--window-size={WIDE},{HIGH}"):
        options.add_argument(switch)
    return Chrome(options=options, service=Service(executable_path=driver))


class Visitor:
    """One browser at one site."""

    def __init__(self, driver: Chrome, site: str) -> None:
        self.driver = driver
        self.site = site
        self.complaints: list[str] = []

    @property
    def path(self) -> str:
        """The path of the page that is shown."""
        return urlsplit(self.driver.current_url).path

    @property
    def text(self) -> str:
        """What the page says."""
        return self.find("#content").text

    def open(self, path: str) -> None:
        """Go to a page of the site."""
        self.driver.get(self.site + path)
        self.complaints += self._console()

    def log_in(self, role: str) -> User:
        """Log in by the form as a user of this kind."""
        user = User.objects.filter(username=role).first() or make_user(role)
        self.open(reverse("admin:login"))
        self.fill("Username:", role)
        self.fill("Password:", role)
        with self.leaving():
            self.find("[type=submit]").click()
        assert self.path == reverse("admin:index"), self.driver.page_source
        return user

    def follow(self, words: str) -> None:
        """Click the link in the page's content that says this."""
        self.click(self.wait(lambda: self.find("#content").find_element(By.LINK_TEXT, words)))

    def press(self, words: str) -> None:
        """Press the button that says this."""
        self.click(self.button(words))

    def click(self, element: WebElement) -> None:
        """Click what leads to another page."""
        with self.leaving():
            element.click()

    def type_keys(self, *keys: str) -> None:
        """Type without saying where: into what has the focus."""
        ActionChains(self.driver).send_keys(*keys).perform()

    def fill(self, label: str, value: str) -> None:
        """Type into the field that has this label."""
        field = self.field(label)
        field.clear()
        field.send_keys(value)

    def field(self, label: str) -> WebElement:
        """The field that has this label."""
        found = self.driver.find_element(By.XPATH, f"//label[normalize-space()='{label}']")
        return self.driver.find_element(By.ID, found.get_attribute("for") or "")

    def errors_at(self, label: str) -> str:
        """What is said at the field that has this label."""
        return self.field(label).find_element(By.XPATH, "ancestor::div[contains(@class, 'form-row')]").text

    def button(self, words: str) -> WebElement:
        """The button in the page's content that says this."""
        return self.find("#content").find_element(By.XPATH, f".//button[normalize-space()='{words}']")

    def buttons(self) -> list[str]:
        """What the buttons say that do something to the row, or ask whether to."""
        return [button.text for button in self.find_all(".chainsched-actions button, .submit-row button")]

    def messages(self) -> list[str]:
        """What the site says to have become of the last wish."""
        return [message.text for message in self.find_all(".messagelist li")]

    def fact(self, name: str) -> str:
        """What the page says under this name."""
        return self.find_fact(name).text

    def section(self, title: str) -> str:
        """What the page says below this title."""
        return self.driver.find_element(By.XPATH, f"//section[h2[normalize-space()='{title}']]").text

    def find_fact(self, name: str) -> WebElement:
        row = self.driver.find_element(By.XPATH, f"//tr[th[normalize-space()='{name}']]")
        return row.find_element(By.CSS_SELECTOR, ".chainsched-value")

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def run(self, script: str, *arguments: Any) -> Any:
        """What a function body in the page's own context returns; a promise is waited for."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: Callable[[], T], *, patience: float = PATIENCE) -> T:
        """What the condition answers, once that is true."""
        return WebDriverWait(self.driver, patience, poll_frequency=0.05).until(lambda _: condition())

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Do something that leads to another page, and wait until that is there."""
        before = self.run(LOADED)
        yield
        # An element of the old page is not asked: the driver may fail over it while the new page comes.
        patience = WebDriverWait(self.driver, PATIENCE, poll_frequency=0.05, ignored_exceptions=[WebDriverException])
        patience.until(lambda _: self.run(LOADED) not in (None, before))
        self.complaints += self._console()

    def resize(self, width: int, height: int = HIGH) -> None:
        """Give the page exactly this room; a window has a least width of its own."""
        metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)

    def prefer(self, theme: str) -> None:
        """Ask for the light or the dark theme, as an operating system does."""
        features = [{"name": "prefers-color-scheme", "value": theme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})

    def picture(self, highest: int) -> bytes:
        """The page as a PNG, as high as what it shows, up to this height."""
        self.resize(WIDE, min(highest, int(self.run(BOTTOM)) + MARGIN))
        taken = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        self.resize(WIDE)
        return base64.b64decode(taken["data"])

    def grievances(self) -> list[str]:
        """What the browser has complained about since it was last asked."""
        self.complaints += self._console()
        complaints, self.complaints = self.complaints, []
        return complaints

    def _console(self) -> list[str]:
        return [
            f"{self.path}: {entry['message']}"
            for entry in self.driver.get_log("browser")
            if entry["level"] in ("SEVERE", "WARNING")
        ]
