"""A real Chromium without a window."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

from tests.support.processes import not_here


@contextlib.contextmanager
def start_browser() -> Iterator[Any]:
    """Start Chromium under selenium, with the logs of its console and its requests; skip where it is missing."""
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        not_here("chromium and chromedriver are not installed (Debian: apt install chromium chromium-driver)")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    session.set_page_load_timeout(60)
    try:
        yield session
    finally:
        session.quit()
