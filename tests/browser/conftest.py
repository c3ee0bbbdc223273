"""The system's Chromium, one process for each module of tests; without it, a skip with reason.

Not for all modules together: while Playwright's synchronous form is open, an event loop runs in
this thread, and tests of other folders, which a worker may get in between, cannot start their own.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-precise-memory-info",
)
#: Chromium reports each failed request as an error; a test of a lost connection has some.
CONNECTION = "Failed to load resource"

OpenPage = Callable[..., Page]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Headless Chromium. Playwright's own download is never used.

    Its temporary files, which it does not always remove, are not among those of our programs.
    """
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip("no Chromium for the web console's tests: install the package `chromium`")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=program,
            args=list(FLAGS),
            env={**os.environ, "TMPDIR": str(tmp_path_factory.mktemp("chromium"))},
        )
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Function that opens an address in a profile of its own; errors of the page fail the test."""
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def on_console(message: ConsoleMessage) -> None:
        if message.type == "error" and not message.text.startswith(CONNECTION):
            errors.append(message.text)

    def opened(
        address: str, *, scheme: str = "light", width: int = 1280, height: int = 800
    ) -> Page:
        context = browser.new_context(
            color_scheme="dark" if scheme == "dark" else "light",
            viewport={"width": width, "height": height},
        )
        context.set_default_timeout(10_000)
        contexts.append(context)
        page = context.new_page()
        page.on("console", on_console)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(address)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert errors == []
