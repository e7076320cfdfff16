"""A real browser, headless, that the tests drive."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar
from urllib.parse import urlsplit

from selenium import webdriver
from selenium.common.exceptions import ElementClickInterceptedException, NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait
from tests.server.dashboard.seclusion import can_seclude, secluded

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
MISSING = (
    "there is no chromium with chromedriver (Debian: chromium, chromium-driver)"
    if not (CHROMIUM and DRIVER)
    else None
    if can_seclude()
    else "this machine lets no network be made for the browser"
)
PATIENCE = 30
"""Seconds that something may take to show; the machine may be busy with other things."""
EXPECTED_LOGS = ("the server responded with a status of 401",)
Result = TypeVar("Result")


class Browser:
    """One window on one server. Everything waits until what it needs is there."""

    def __init__(self, driver: webdriver.Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, path: str) -> None:
        """Goes to a page of the dashboard."""
        self.driver.get(f"{self.url}/dashboard{path}")

    def sign_in(self, key: str, path: str = "/") -> None:
        """Signs in with a key, to be at `path` afterwards."""
        self.driver.delete_all_cookies()
        self.open(path)
        self.find("#key").send_keys(key, Keys.ENTER)
        self.find("header.bar")

    def at_home(self, key: str) -> None:
        """Goes to the first page, signed in with a key: anew only where nobody is."""
        self.open("/")
        if self.find("header.bar, #key").tag_name == "input":
            self.sign_in(key)
        # The browser complains of a font whose download is broken off by going elsewhere.
        self.wait(lambda _: self.run("return document.fonts.status") == "loaded" or None, "the fonts")

    def find(self, selector: str, text: str | None = None) -> WebElement:
        """The element that a CSS selector names and that shows `text`, once there is one to be seen."""

        def look(_: object) -> WebElement | None:
            for element in self.driver.find_elements(By.CSS_SELECTOR, selector):
                if element.is_displayed() and (text is None or text in element.text):
                    return element
            return None

        return self.wait(look, f"{selector} {text or ''}")

    def click(self, selector: str, text: str | None = None) -> None:
        """Clicks it."""

        def act(_: object) -> bool:
            self.find(selector, text).click()
            return True

        self.wait(act, f"click on {selector} {text or ''}")

    def gone(self, selector: str, text: str | None = None) -> None:
        """Waits until nothing is left of it."""

        def look(_: object) -> bool:
            found = self.driver.find_elements(By.CSS_SELECTOR, selector)
            return not any(element.is_displayed() and (text is None or text in element.text) for element in found)

        self.wait(look, f"the end of {selector} {text or ''}")

    def type(self, keys: str) -> None:
        """Presses keys wherever the focus is."""
        webdriver.ActionChains(self.driver).send_keys(keys).perform()

    def texts(self, selector: str) -> list[str]:
        """What all elements of that selector show."""
        return [element.text for element in self.driver.find_elements(By.CSS_SELECTOR, selector)]

    def run(self, script: str, *arguments: object) -> object:
        """What a script in the page returns."""
        return self.driver.execute_script(script, *arguments)

    def wait(self, condition: Callable[[object], Result | None], what: str) -> Result:
        """What `condition` gives as soon as it gives anything."""
        ignored = (StaleElementReferenceException, NoSuchElementException, ElementClickInterceptedException)
        return WebDriverWait(self.driver, PATIENCE, 0.05, ignored).until(condition, f"{what} did not come")  # type: ignore[return-value,arg-type]

    def resize(self, width: int, height: int) -> None:
        """Makes the page so large, as on a phone, say."""
        self.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 700}
        )

    def prefer(self, scheme: str) -> None:
        """Lets the page know that dark or light pages are preferred."""
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [{"name": "prefers-color-scheme", "value": scheme}]})

    def picture(self, path: Path) -> None:
        """Keeps what is to be seen."""
        path.write_bytes(self.driver.get_screenshot_as_png())

    def problems(self) -> list[str]:
        """What the browser complained of since the last time: errors of scripts, refused or failed requests."""
        lines = [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        return [line for line in lines if not any(expected in line for expected in EXPECTED_LOGS)]


@contextmanager
def browser(url: str) -> Iterator[Browser]:
    """A browser with nothing in it yet."""
    with TemporaryDirectory() as directory, secluded(CHROMIUM or "", urlsplit(url).port or 80, Path(directory)) as program:
        driver = webdriver.Chrome(_options(program), webdriver.ChromeService(DRIVER))
        try:
            window = Browser(driver, url)
            window.resize(1280, 800)
            yield window
        finally:
            driver.quit()


def _options(program: str) -> webdriver.ChromeOptions:
    options = webdriver.ChromeOptions()
    options.binary_location = program
    # As root chromium wants no sandbox of its own. Its driver speaks to it through pipes, since they share no network.
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-pipe"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    return options
