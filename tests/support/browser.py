"""A real headless Chromium for tests, with what it complained about."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync",
)  # fmt: skip
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no browser: install the package chromium")


@contextmanager
def opened(profile: Path) -> Iterator[tuple["Page", list[str]]]:
    """Yield a page of a browser with a fresh profile, and the errors that its scripts raise."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch_persistent_context(
            str(profile), executable_path=CHROMIUM, args=list(FLAGS), viewport={"width": 1500, "height": 1250}
        )
        page, errors = browser.new_page(), list[str]()
        page.set_default_timeout(120_000)  # a busy machine
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        try:
            yield page, errors
        finally:
            browser.close()
