"""Rows 11 and 13: names are text on every page, and the viewer answers only its owner."""

import tempfile
import time
from itertools import islice
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from reliability.row import Asked, Row
from tests.unit.hostile import MARKUP
from tests.unit.page.conftest import FLAGS, Opened, chromium
from tests.unit.page.hostile_pages import faults, pages
from tests.unit.viewer import test_viewer_access as access
from tests.unit.viewer.served import Served, made, made_running, serving

MIN_TEXTS, MIN_HOSTS, MIN_ORIGINS = 200, 60, 30


def run(asked: Asked) -> list[Row]:
    return [_names(asked), _owner(asked)]


def _names(asked: Asked) -> Row:
    """Put each text into each text field of the pages of a run and a trace, and each fifth into
    those of two other kinds, and open them."""
    row = Row(11, "names are text", least=2 * MIN_TEXTS)
    began = time.monotonic()
    found = chromium()
    if found is None:
        row.failures.append("there is no chromium on this machine")
        return row
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=found, args=FLAGS)
        for by in range(len(MARKUP)):
            if asked.takes(f"texts {by}"):
                _open(browser, Path(folder), by, row)
        browser.close()
    row.seconds = time.monotonic() - began
    return row


def _open(browser: Browser, folder: Path, by: int, row: Row) -> None:
    for name, text in islice(pages(by), 2 if by % 5 else None):
        path = folder / f"{name}.html"
        path.write_text(text, "utf-8")
        page = Opened(browser.new_page())
        page.page.goto(path.as_uri())
        bad = [*page.complaints, *faults(page.page), *page.requests[1:]]
        page.page.close()
        row.done += 1
        row.failures += [f"{name}, texts {by}: {one}" for one in bad]


def _owner(asked: Asked) -> Row:
    """Ask for each route with each pair of a foreign Host and Origin, with the right cookie."""
    row = Row(13, "the viewer answers only its owner",
              least=len(access.ROUTES) * MIN_HOSTS * MIN_ORIGINS)  # fmt: skip
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        runs = Path(folder) / ".ridgeline" / "runs"
        made(runs, access.RUN, program=f"{access.CANARY}.py")
        made_running(runs, "running")
        with serving(runs) as served:
            for route in access.ROUTES:
                if asked.takes(route):
                    _ask(served, route, row)
    row.seconds = time.monotonic() - began
    return row


def _ask(served: Served, route: str, row: Row) -> None:
    headers = access.foreign(served.port)
    origins = [one["Origin"] for one in headers if "Origin" in one]
    for host in (one["Host"] for one in headers if "Host" in one):
        for origin in origins:
            sent = {"Cookie": served.cookie, "Host": host, "Origin": origin}
            response = served.request("GET", route, sent)
            row.done += 1
            if (response.status, response.text) != (403, access.REFUSAL):
                row.failures.append(f"{route} {host} {origin}: {response.status}")
