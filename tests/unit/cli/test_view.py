"""`ridgeline view` as a person types it: the address, a wrong name, a taken port, Ctrl-C."""

import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from http.cookiejar import CookieJar
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ridgeline.cli.view import command
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.run_directory import RunDirectory
from tests.unit.viewer.served import made, made_running

RUN = "1115-010203-train"
START_TIMEOUT_S = 60


def called(*arguments: str) -> Result:
    return CliRunner().invoke(command, arguments, catch_exceptions=True)


def test_it_prints_an_address_that_works_and_ctrl_c_ends_it_with_one_line(tmp_path: Path) -> None:
    made(tmp_path, RUN)
    command = [sys.executable, "-m", "ridgeline", "view", "--no-browser", "--runs-dir", "."]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    timer = threading.Timer(START_TIMEOUT_S, process.kill)
    timer.start()
    try:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/\?token=[\w-]+", process.stderr.readline())
        assert found is not None
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(CookieJar()))
        with opener.open(found[0], timeout=10) as response:
            assert RUN in response.read().decode()
        process.stderr.readline()  # how to end it
        process.send_signal(signal.SIGINT)
        assert len(process.stderr.readlines()) == 1
        assert process.wait(10) == 0
    finally:
        timer.cancel()
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_wrong_name_gets_the_nearest_names(tmp_path: Path) -> None:
    made(tmp_path, "1115-010203-finetune")
    made(tmp_path, "1115-010204-evaluate")
    error = called("finetume", "--runs-dir", str(tmp_path)).exception
    assert isinstance(error, RidgelineError)
    assert "1115-010203-finetune" in error.hint
    assert "evaluate" not in error.hint
    error = called("zzz", "--runs-dir", str(tmp_path)).exception
    assert isinstance(error, RidgelineError)
    assert "evaluate" in error.hint  # nothing is near: the newest names


def test_a_name_in_an_empty_folder_says_how_to_make_a_run(tmp_path: Path) -> None:
    error = called("train", "--runs-dir", str(tmp_path)).exception
    assert isinstance(error, RidgelineError)
    assert "ridgeline run" in error.hint


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        arguments = ("--port", port, "--no-browser", "--runs-dir", str(tmp_path))
        error = called(*arguments).exception
    assert isinstance(error, RidgelineError)
    assert port in error.message


@pytest.mark.parametrize("port", ["0", "80", "70000", "x"])
def test_a_port_that_cannot_be_is_refused(port: str) -> None:
    assert called("--port", port).exit_code == 2


def test_live_needs_a_terminal(tmp_path: Path) -> None:
    error = called("--live", "--runs-dir", str(tmp_path)).exception
    assert isinstance(error, UsageError)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Takes the captured output for a terminal."""
    monkeypatch.setattr(
        "click.testing._NamedTextIOWrapper.isatty", lambda self: True, raising=False
    )


@pytest.mark.usefixtures("terminal")
def test_live_takes_the_run_under_way_and_ctrl_c_leaves_it_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(tmp_path, "newer", began_at="2026-11-16T01:02:03+00:00")
    made_running(tmp_path, RUN)
    shown: list[str] = []

    def interrupted(run: RunDirectory, console: object) -> None:
        shown.append(run.name)
        raise KeyboardInterrupt

    monkeypatch.setattr("ridgeline.viewer.terminal.show_live", interrupted)
    result = called("--live", "--runs-dir", str(tmp_path))
    assert result.exit_code == 0, result.exception
    assert shown == [RUN]
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.usefixtures("terminal")
def test_live_without_a_run_under_way_says_so(tmp_path: Path) -> None:
    made(tmp_path, RUN)
    error = called("--live", "--runs-dir", str(tmp_path)).exception
    assert isinstance(error, RidgelineError)
    assert "under way" in error.message


@pytest.mark.usefixtures("terminal")
def test_live_prints_the_report_of_a_run_that_is_over(tmp_path: Path) -> None:
    made(tmp_path, RUN)
    result = called("--live", RUN, "--runs-dir", str(tmp_path))
    assert result.exit_code == 0
    assert "input-bound" in result.stdout


def test_a_browser_is_opened_by_an_address_that_works_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other users of the machine can read the command line of a browser."""
    made(tmp_path, RUN)
    opened: list[str] = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    monkeypatch.setattr(
        "ridgeline.viewer.server.Viewer.serve_forever",
        lambda self, poll_interval: [t.join(5) for t in threading.enumerate() if t.daemon],
    )
    result = called(RUN, "--runs-dir", str(tmp_path))
    assert result.exit_code == 0
    printed = re.search(r"http://\S+", result.stderr)
    assert printed is not None
    assert len(opened) == 1
    paths = [address.partition("?")[0] for address in (printed[0], opened[0])]
    assert paths[0] == paths[1]
    assert paths[0].endswith(f"/run/{RUN}")
    assert printed[0] != opened[0]


def test_without_a_display_no_browser_is_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ridgeline.cli.view import _open_browser

    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    _open_browser("http://127.0.0.1:1/")
    assert opened == []
