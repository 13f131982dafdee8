"""A real browser for the tests of the report: Debian's Chromium, headless, through Selenium."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service


class NoBrowser(Exception):
    """It is not installed; the message says what to install."""


class Page:
    """A page in the browser, as the tests ask about it."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, path: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        """Load a file in a window of that size."""
        screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        self.driver.get(path.resolve().as_uri())

    def run(self, script: str, *arguments: Any) -> Any:
        """What a script returns."""
        return self.driver.execute_script(script, *arguments)

    def text(self, selector: str) -> str:
        """The visible text of an element."""
        return self.run("return document.querySelector(arguments[0]).innerText", selector)

    def click(self, selector: str) -> None:
        """Click an element."""
        self.driver.find_element("css selector", selector).click()

    def keys(self, selector: str, *keys: str) -> None:
        """Press keys while an element has the focus."""
        self.driver.find_element("css selector", selector).send_keys(*keys)

    def complaints(self) -> list[str]:
        """What the browser's console has said since the last time."""
        return [entry["message"] for entry in self.driver.get_log("browser")]  # type: ignore[no-untyped-call]

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        """Save a picture, of the whole page or of what the window shows."""
        options: dict[str, Any] = {}
        if whole:
            size = self.run(
                "const d = document.documentElement; return [innerWidth, d.scrollHeight]"
            )
            clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
            options = {"captureBeyondViewport": True, "clip": clip}
        picture = self.driver.execute_cdp_cmd("Page.captureScreenshot", options)
        path.write_bytes(base64.b64decode(picture["data"]))


@contextmanager
def browser() -> Iterator[Page]:
    """Start a browser, give a page, and end it."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    driver = shutil.which("chromedriver")
    if chromium is None or driver is None:
        raise NoBrowser("Chromium is not installed: apt-get install chromium chromium-driver")
    options = Options()
    options.binary_location = chromium
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-background-networking",
        "--hide-scrollbars",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    chrome = webdriver.Chrome(options=options, service=Service(driver))
    try:
        yield Page(chrome)
    finally:
        chrome.quit()
