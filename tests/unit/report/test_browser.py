"""A page printed by a browser, and what is said where that fails."""

import os
import shutil
import struct
import tempfile
import threading
import time
import warnings
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.report.renderers import browser

PAGE = "<!doctype html><title>The answer</title><style>p {{ height: 400px }}</style>{}"
FOUND = any(shutil.which(name) for name in (os.environ.get(browser.VARIABLE) or "", *browser.NAMES))
if not FOUND:
    warnings.warn(
        "NO CHROMIUM ON THIS MACHINE: that PDF and PNG can be printed is NOT tested", stacklevel=1
    )
prints = pytest.mark.skipif(not FOUND, reason="no Chromium on this machine")


def fake(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> Path:
    path = folder / "fake-browser"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv(browser.VARIABLE, str(path))
    return path


def png_size(picture: bytes) -> tuple[int, int]:
    assert picture.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", picture[16:24])
    return width, height


@prints
def test_a_pdf_has_everything_that_the_page_folds_away() -> None:
    paragraphs = "<p>more</p>" * 20
    folded = f"<details><summary>folded</summary>{paragraphs}</details>"
    pages = {
        name: browser.render_pdf(PAGE.format(body)).count(b"/Type /Page\n")
        for name, body in (("short", "<p>one</p>"), ("open", paragraphs), ("folded", folded))
    }
    assert pages["short"] == 1
    assert pages["folded"] >= pages["open"] > 3


@prints
def test_a_picture_has_the_whole_page_sharp_and_as_it_opens() -> None:
    one, ten = (png_size(browser.render_png(PAGE.format("<p>x</p>" * n))) for n in (1, 10))
    assert one[0] == ten[0] == browser.PAGE_WIDTH_PX * browser.PICTURE_SCALE
    assert 10 * 400 * browser.PICTURE_SCALE < ten[1] < 10 * 430 * browser.PICTURE_SCALE
    folded = PAGE.format("<p>x</p><details><summary>folded</summary><p>x</p><p>x</p></details>")
    assert png_size(browser.render_png(folded))[1] < 2.5 * 400 * browser.PICTURE_SCALE


@prints
def test_a_very_long_page_is_drawn_smaller_and_not_cut() -> None:
    width, height = png_size(browser.render_png(PAGE.format("<p>x</p>" * 100)))
    assert 0.95 * browser.MAX_PICTURE_PX <= height <= 16_384
    assert width < browser.PAGE_WIDTH_PX


@prints
def test_the_script_of_the_page_has_drawn_before_it_is_printed() -> None:
    script = "<div id=a></div><script>a.innerHTML = '<p>drawn</p>'.repeat(9)</script>"
    assert png_size(browser.render_png(PAGE.format(script)))[1] > 9 * 400


@prints
def test_nothing_is_fetched() -> None:
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        where = f"http://127.0.0.1:{server.server_port}"
        tags = f"<img src='{where}/image'><script src='{where}/script'></script>"
        browser.render_png(PAGE.format(f"{tags}<script>fetch('{where}/fetch')</script>"))
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert asked == []


@prints
@pytest.mark.parametrize("length", [8, 60])
def test_no_process_and_no_folder_is_left(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The path of a long folder for temporary files is too long for Chromium's socket."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="x" * length) as place:
        monkeypatch.setattr("tempfile.tempdir", place)
        before = set(os.listdir("/proc"))
        browser.render_png(PAGE.format("x"))
        assert os.listdir(place) == []
    time.sleep(0.2)  # killed processes of the group are collected by init
    new = [pid for pid in os.listdir("/proc") if pid.isdigit() and pid not in before]
    assert not [pid for pid in new if "--user-data-dir=/tmp/x" in command_line(pid)]


def command_line(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def test_a_browser_that_ends_at_once_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = fake(
        tmp_path, monkeypatch, "echo starting >&2; echo 'no usable \x1b sandbox' >&2; exit 1"
    )
    with pytest.raises(RidgelineError) as error:
        browser.render_pdf(PAGE.format("x"))
    assert str(path) in error.value.message
    assert r"no usable \x1b sandbox" in error.value.message


@pytest.mark.parametrize(
    "script", ["exec sleep 60", "exec cat <&3 >/dev/null", "sleep 60 & sleep 60"]
)
def test_a_browser_that_does_not_answer_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    fake(tmp_path, monkeypatch, script)
    monkeypatch.setattr(browser, "TIME_LIMIT_S", 0.5)
    began_s = time.monotonic()
    with pytest.raises(RidgelineError):
        browser.render_pdf(PAGE.format("x" * 1_000_000))
    assert time.monotonic() - began_s < 30
    assert not any(str(tmp_path) in command_line(pid) for pid in os.listdir("/proc"))


def test_a_browser_that_refuses_is_quoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(
        tmp_path, monkeypatch, r"""printf '{"id":1,"error":{"message":"no tab"}}\0' >&4; sleep 9"""
    )
    with pytest.raises(RidgelineError) as error:
        browser.render_png(PAGE.format("x"))
    assert "no tab" in error.value.message


def test_a_named_browser_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(browser.VARIABLE, "/nowhere/chromium")
    with pytest.raises(RidgelineError) as error:
        browser.find_browser()
    assert "/nowhere/chromium" in error.value.message
