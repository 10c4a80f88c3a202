"""A page as PDF or PNG, printed by a Chromium of this machine.

The browser is a child process with a profile of its own, which is removed, with no network, and
with a time limit. It is told what to do through a pipe, by the protocol of its developer tools: so
no port is opened, and an error is known as such.
"""

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ridgeline.errors import RidgelineError
from ridgeline.report.plain import printable

ENDINGS = (".pdf", ".png")
VARIABLE = "RIDGELINE_CHROMIUM"
NAMES = (
    "chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome",
    "chrome-headless-shell", "microsoft-edge",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
)  # fmt: skip
TIME_LIMIT_S = 60.0
"""Printing takes one to three seconds, on a busy machine ten."""
MAX_SETTLE_MS = 500
"""How long the page's own script may draw before the page is printed."""
PAGE_WIDTH_PX = 1200
MAX_PICTURE_PX = 16_000
"""Chromium draws no picture that is higher than 16,384 pixels."""
PICTURE_SCALE = 2.0
"""Pixels of a picture for one of the page: text stays sharp on dense screens."""
MAX_FOLDER_LENGTH = 40
"""Chromium makes a socket in its temporary folder and ends if the path has more than 107 letters;
what follows this folder takes 64."""
A4_INCHES, MARGIN_INCHES = (8.27, 11.69), 0.45
PRINT_WIDTH_PX = 840
"""The width at which a page is laid out for paper; it is then scaled to the width of A4."""
PX_PER_INCH = 96
_BROWSER_READS, _BROWSER_WRITES = 3, 4
"""The descriptors at which Chromium expects the pipe of its developer tools."""
_FLAGS = (
    "--headless", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--disable-extensions", "--disable-dev-shm-usage", "--no-first-run",
    "--no-default-browser-check", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND",
    "--remote-debugging-pipe",
)  # fmt: skip
_SETTLED = (
    "Promise.race([document.fonts.ready.then(() => new Promise(done => requestAnimationFrame(() => "
    f"requestAnimationFrame(done)))), new Promise(done => setTimeout(done, {MAX_SETTLE_MS}))])"
    ".then(() => 0)"
)
_PAPER_STYLE = """
body { font-size: 0.85rem; } pre { white-space: pre-wrap; overflow-wrap: anywhere; }
.scroll { overflow: visible; } main table { width: 100%; font-size: 0.75rem; }
main th, main td { padding-right: 0.5rem; }
main th { white-space: normal; overflow-wrap: normal; }
td.name, td.place, td.words { white-space: normal; overflow-wrap: anywhere; }
h1, h2, h3, figcaption { break-after: avoid; } li, tr, pre, figure { break-inside: avoid; }
"""
"""Paper does not scroll: nothing may be cut at its edge, no title may stand alone, and a table that
is wider than the paper would make everything else smaller."""
_FOR_PAPER = (
    "document.querySelectorAll('details').forEach(details => { details.open = true });"
    f"document.head.append(Object.assign(document.createElement('style'), "
    f"{{textContent: {json.dumps(_PAPER_STYLE)}}}))"
)


def find_browser() -> str:
    """Return the path of a Chromium. Raise RidgelineError if there is none."""
    named = os.environ.get(VARIABLE, "")
    for name in (named,) if named else NAMES:
        if path := shutil.which(name):
            return path
    if named:
        raise RidgelineError(f"{VARIABLE} names {printable(named)}, which is no program")
    raise RidgelineError(
        "PDF and PNG are printed by Chromium or Chrome, and none was found on this machine",
        f"install one (Debian, Ubuntu: apt install chromium), or name it in {VARIABLE}; or write "
        ".html and print it from a browser",
    )


def render_pdf(page: str) -> bytes:
    """Return the page on paper, in light colours, with everything unfolded."""
    with _opened(page, PRINT_WIDTH_PX, "print") as tab:
        tab.call("Runtime.evaluate", expression=_FOR_PAPER)
        tab.call("Runtime.evaluate", expression=_SETTLED, awaitPromise=True)
        width, height = A4_INCHES
        scale = (width - 2 * MARGIN_INCHES) * PX_PER_INCH / PRINT_WIDTH_PX
        margins = dict.fromkeys(
            ("marginTop", "marginBottom", "marginLeft", "marginRight"), MARGIN_INCHES
        )
        printed = tab.call(
            "Page.printToPDF", printBackground=True, generateTaggedPDF=True, scale=scale,
            generateDocumentOutline=True, paperWidth=width, paperHeight=height, **margins,
        )  # fmt: skip
        return base64.b64decode(printed["data"])


def render_png(page: str) -> bytes:
    """Return a picture of the whole page as it opens. A very long page is drawn smaller."""
    with _opened(page, PAGE_WIDTH_PX, "screen") as tab:
        size = tab.call("Page.getLayoutMetrics")["cssContentSize"]
        width, height = size["width"], size["height"]
        scale = min(PICTURE_SCALE, MAX_PICTURE_PX / max(height, 1))
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": scale}
        drawn = tab.call(
            "Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip
        )
        return base64.b64decode(drawn["data"])


class _Tab:
    """The one tab of the browser. `call` tells it what to do and returns the answer."""

    def __init__(self, browser: str, send: int, receive: int, log: Path) -> None:
        self._browser, self._send, self._receive, self._log = browser, send, receive, log
        self._end_s = time.monotonic() + TIME_LIMIT_S
        self._received = b""
        self._number = 0
        self._session: dict[str, str] = {}

    def open(self, page: str, width_px: int, medium: str) -> None:
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = {"sessionId": attached["sessionId"]}
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width_px, height=800,
            deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        light = [{"name": "prefers-color-scheme", "value": "light"}]
        self.call("Emulation.setEmulatedMedia", media=medium, features=light)
        self.call("Network.enable")
        self.call(
            "Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0,
            uploadThroughput=0,
        )  # fmt: skip
        frame = self.call("Page.getFrameTree")["frameTree"]["frame"]["id"]
        self.call("Page.setDocumentContent", frameId=frame, html=page)
        self.call("Runtime.evaluate", expression=_SETTLED, awaitPromise=True)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the browser's answer. Raise RidgelineError if it refuses, ends or is too slow."""
        self._number += 1
        asked = {"id": self._number, "method": method, "params": parameters, **self._session}
        left = memoryview(json.dumps(asked).encode() + b"\0")
        while left:
            self._wait([], [self._send])
            try:
                left = left[os.write(self._send, left) :]
            except BrokenPipeError:
                raise self._ended() from None
        while True:
            answer = json.loads(self._message())
            if answer.get("id") == self._number:
                break
        if "error" in answer:
            raise RidgelineError(f"the browser could not print the page: {answer['error']}")
        result = answer["result"]
        assert isinstance(result, dict)
        return result

    def _message(self) -> bytes:
        while b"\0" not in self._received:
            self._wait([self._receive], [])
            part = os.read(self._receive, 1 << 20)
            if not part:
                raise self._ended()
            self._received += part
        message, _, self._received = self._received.partition(b"\0")
        return message

    def _wait(self, readable: list[int], writable: list[int]) -> None:
        left_s = self._end_s - time.monotonic()
        if left_s <= 0 or not any(select.select(readable, writable, [], left_s)):
            raise RidgelineError(f"the browser did not print the page in {TIME_LIMIT_S:.0f} s")

    def _ended(self) -> RidgelineError:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        fatal = [line for line in lines if ":FATAL:" in line]  # a crash report may follow it
        cause = f": {printable((fatal or lines)[-1][:300])}" if lines else ""
        return RidgelineError(f"{self._browser} ended before it printed the page{cause}")


@contextmanager
def _opened(page: str, width_px: int, medium: str) -> Iterator[_Tab]:
    """Yield a tab of a new browser that shows the page as on this medium."""
    browser = find_browser()
    place = tempfile.gettempdir()
    place = place if len(place) <= MAX_FOLDER_LENGTH else "/tmp"
    with tempfile.TemporaryDirectory(
        prefix="ridgeline-", dir=place, ignore_cleanup_errors=True
    ) as folder:
        log = Path(folder) / "stderr"
        for_browser, send = os.pipe()
        receive, from_browser = os.pipe()
        os.set_blocking(send, False)
        try:
            try:
                pid = _started(browser, folder, log, for_browser, from_browser)
            finally:
                os.close(for_browser)
                os.close(from_browser)
            try:
                tab = _Tab(browser, send, receive, log)
                tab.open(page, width_px, medium)
                yield tab
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        finally:
            os.close(send)
            os.close(receive)


def _started(browser: str, folder: str, log: Path, for_browser: int, from_browser: int) -> int:
    """Start the browser and return its process id, which is also that of its group."""
    sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []  # root cannot have one
    command = [browser, *_FLAGS, *sandbox, f"--user-data-dir={folder}/profile", "about:blank"]
    nothing, above = os.devnull, _BROWSER_WRITES + 1
    ends = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, above) for end in (for_browser, from_browser)]
    try:
        return os.posix_spawn(
            browser, command, os.environ | {"HOME": folder, "TMPDIR": folder}, setpgroup=0,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, nothing, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, nothing, os.O_WRONLY, 0),
                (os.POSIX_SPAWN_OPEN, 2, log, os.O_WRONLY | os.O_CREAT, 0o600),
                (os.POSIX_SPAWN_DUP2, ends[0], _BROWSER_READS),
                (os.POSIX_SPAWN_DUP2, ends[1], _BROWSER_WRITES),
            ],
        )  # fmt: skip
    except OSError as error:
        raise RidgelineError(f"{browser} could not be started: {error.strerror}") from error
    finally:
        for end in ends:
            os.close(end)
