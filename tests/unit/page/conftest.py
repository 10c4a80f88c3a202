"""A real browser for tests of pages: Debian's chromium, or another one on the PATH."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Dialog, Page, sync_playwright

CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
)  # fmt: skip


def chromium() -> str | None:
    """Return the path of a browser; None if this machine has none."""
    return next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    found = chromium()
    if found is None:
        pytest.skip("PAGES NOT TESTED: there is no chromium; apt-get install chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        yield browser
        browser.close()


class Opened:
    """A page opened from disk, with what it asked for, and what it complained about or asked a
    person."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.requests: list[str] = []
        page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._asked)
        page.on("request", lambda request: self.requests.append(request.url))

    def _asked(self, dialog: Dialog) -> None:
        self.complaints.append(dialog.message)
        dialog.dismiss()


Open = Callable[..., Opened]


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    """Returns a function that opens the text of a page from disk."""
    contexts = []

    def open_page(text: str, **options: object) -> Opened:
        path = tmp_path / f"page-{len(contexts)}.html"
        path.write_text(text, "utf-8")
        context = browser.new_context(**options)  # type: ignore[arg-type]
        contexts.append(context)
        opened = Opened(context.new_page())
        opened.page.goto(path.as_uri())
        return opened

    yield open_page
    for context in contexts:
        context.close()
