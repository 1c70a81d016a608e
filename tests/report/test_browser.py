"""The report in a browser: no error, no request, hostile texts inert, sorting and the matrix at work."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from classify.cli import main
from tests.support import tiny
from tests.support.browser import start_browser

pytestmark = pytest.mark.slow

HOSTILE = '<script>document.title = "owned"</script><img src=x onerror="document.title = \'owned\'">'


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with start_browser() as session:
        yield session


@pytest.fixture(scope="module")
def folder(model_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on hostile texts and labels, with two epochs and its page."""
    place = tmp_path_factory.mktemp("browser")
    rows = [(f"{HOSTILE} {text}", f"<b>{label}</b>") for text, label in tiny.table_rows(200)]
    table = tiny.write_table(place / "my.csv", rows)
    words = f"train --data {table} --model {model_folder} --cpu --output-dir {place / 'out'} --epochs 2 --folds 0"
    assert main([*words.split(), "--contrastive-steps", "2", "--logging-steps", "1"]) == 0
    return place / "out"


def open_page(browser: Any, path: Path) -> None:
    """Open a page, and check what every page has to be."""
    browser.get_log("performance")
    browser.get_log("browser")
    browser.get(path.as_uri())
    errors = [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert errors == []
    requests = [
        message["params"]["request"]["url"]
        for message in (json.loads(entry["message"])["message"] for entry in browser.get_log("performance"))
        if message["method"] == "Network.requestWillBeSent"
    ]
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]


def test_hostile_texts_are_inert(browser: Any, folder: Path) -> None:
    open_page(browser, folder / "report.html")
    assert browser.title == "out: report"
    body = browser.find_element("tag name", "body").text
    assert "<b>card</b>" in body
    assert HOSTILE[:30] in body


def test_a_click_sorts_the_classes(browser: Any, folder: Path) -> None:
    open_page(browser, folder / "report.html")
    section = browser.find_element("id", "per_class")

    def column() -> list[float]:
        return [
            float(cell.text.rstrip(" \u00a0%"))
            for cell in section.find_elements("css selector", "tbody td:nth-child(4)")
        ]

    button = section.find_elements("css selector", "th button")[3]
    before = column()
    button.click()
    assert column() == sorted(before, reverse=True)
    button.click()
    assert column() == sorted(before)
    assert button.find_element("xpath", "..").get_attribute("aria-sort") == "ascending"


def test_it_fits_a_phone(browser: Any, folder: Path) -> None:
    """Wide tables scroll by themselves; the page does not."""
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    )
    open_page(browser, folder / "report.html")
    width = browser.execute_script("return document.documentElement.scrollWidth")
    browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert width <= 390


def test_it_is_readable_without_scripts(browser: Any, folder: Path) -> None:
    browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        open_page(browser, folder / "report.html")
        visible = browser.find_element("tag name", "body").text
        # Technical sections are folded; a link to one opens it.
        browser.find_element("css selector", 'nav a[href="#course"]').click()
        body = visible + browser.find_element("id", "course").text
    finally:
        browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
    assert "validation loss" not in visible
    for words in ("<b>card</b>", "validation loss", "classify predict --model", "macro F1"):
        assert words in body


def test_a_cell_of_the_matrix_opens_its_texts(browser: Any, folder: Path) -> None:
    open_page(browser, folder / "report.html")
    link = browser.find_element("css selector", "table.confusion a")
    texts = browser.find_element("css selector", link.get_attribute("href").partition("#")[2].join(["[id='", "']"]))
    assert not texts.is_displayed()
    link.click()
    assert texts.is_displayed()
    assert len(texts.find_elements("tag name", "li")) == min(5, int(link.text))


def test_a_filter_leaves_the_rows_with_its_words(browser: Any, folder: Path) -> None:
    open_page(browser, folder / "report.html")
    section = browser.find_element("id", "errors")

    def visible() -> list[str]:
        return [row.text for row in section.find_elements("css selector", "tbody tr") if row.is_displayed()]

    every = visible()
    word = every[0].split()[-1]
    section.find_element("css selector", "input[type=search]").send_keys(word)
    assert visible() == [row for row in every if word.lower() in row.lower()]
    assert f"{len(visible())} of {len(every)} rows" in section.text


@pytest.mark.parametrize(("width", "media"), [(390, "light"), (1200, "light"), (1200, "dark"), (1200, "print")])
def test_axe_finds_nothing(browser: Any, folder: Path, width: int, media: str) -> None:
    """https://github.com/dequelabs/axe-core, the rules of WCAG 2.2 AA, contrast among them, and best practices."""
    script = (files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    features = [{"name": "prefers-color-scheme", "value": "dark" if media == "dark" else "light"}]
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia", {"media": "print" if media == "print" else "screen", "features": features}
    )
    try:
        open_page(browser, folder / "report.html")
        browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
        browser.execute_script(script)
        found = browser.execute_async_script(
            "const done = arguments[0]; axe.run().then(found => done(found.violations))"
        )
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": []})
    assert [(one["id"], json.dumps(one["nodes"])[:600]) for one in found] == []
