"""The watcher's lock: held for its life, waited for by the program."""

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ridgeline.harness.capture import watch_lock
from ridgeline.harness.capture.watch_lock import Lock, wait_for

HOLDS = """
import sys
import threading
import time
from ridgeline.harness.capture.watch_lock import Lock
held = Lock(sys.argv[1])
print(held.take(), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / ".watch-rank0.lock"


def _holder(path: Path) -> subprocess.Popen[bytes]:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"True\n"
    return holder


def test_without_a_watcher_the_program_does_not_wait(path: Path) -> None:
    assert wait_for(path, 60)
    path.touch()
    assert wait_for(path, 60)


def test_one_process_holds_the_lock_and_releases_it(path: Path) -> None:
    first, second = Lock(path), Lock(path)
    assert first.take()
    assert first.take()
    assert first.held
    assert not second.take()
    assert not wait_for(path, 0.02)
    first.release()
    first.release()
    assert not first.held
    assert wait_for(path, 0)
    assert second.take()
    second.release()


def test_waiting_leaves_the_lock_free(path: Path) -> None:
    path.touch()
    assert wait_for(path, 0)
    taken = Lock(path)
    assert taken.take()
    taken.release()


def test_the_kernel_releases_the_lock_of_a_killed_watcher(path: Path) -> None:
    holder = _holder(path)
    assert not wait_for(path, 0)
    holder.kill()
    assert wait_for(path, 20)
    holder.communicate()


def test_a_forked_watcher_holds_the_lock_from_its_first_moment(path: Path) -> None:
    """Taken before the fork; the parent's copy goes with its exec."""
    code = """
import os, sys
from ridgeline.harness.capture.watch_lock import Lock
Lock(sys.argv[1]).take() or sys.exit("not taken")
if os.fork() == 0:
    os.close(1)
    sys.stdin.readline()
    os._exit(0)
os.execv(sys.executable, [sys.executable, "-c", "print('became', flush=True)"])
"""
    program = subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert program.stdout is not None
    assert program.stdin is not None
    assert program.stdout.readline() == b"became\n"
    program.wait()
    assert not wait_for(path, 0), "the watcher lives on and holds it"
    program.stdin.close()
    assert wait_for(path, 20)
    program.stdout.close()


def test_a_directory_that_cannot_be_written_gives_no_lock(tmp_path: Path) -> None:
    assert not Lock(tmp_path / "gone" / "lock").take()


def test_without_file_locks_the_program_does_not_wait(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(file: int, how: int) -> None:
        raise OSError(38, os.strerror(38))

    path.touch()
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert not Lock(path).take()
    assert wait_for(path, 60)


def test_ctrl_c_ends_the_waiting(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(seconds: float) -> None:
        raise KeyboardInterrupt

    held = Lock(path)
    held.take()
    monkeypatch.setattr(watch_lock, "_sleep", interrupt)
    assert not wait_for(path, 60)
    held.release()


def test_a_watcher_that_cannot_start_a_thread_works_on(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    held = Lock(path)
    held.take()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with held.showing_life():
        worked = True
    assert worked
    held.release()


def test_the_programs_side_imports_next_to_nothing() -> None:
    code = """
import json, sys
before = set(sys.modules)
import ridgeline.harness.capture.watch_lock
print(json.dumps(sorted(set(sys.modules) - before)))
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    loaded = {name.partition(".")[0] for name in json.loads(said.stdout)}
    assert loaded <= {"ridgeline", *sys.stdlib_module_names}


class FakeTime:
    """A clock that only sleeping moves on; `sign_every_s` sets the lock file's time meanwhile."""

    def __init__(self, path: Path, sign_every_s: float | None, signs: int = 0) -> None:
        self.now = 100.0
        self._path = path
        self._every_s = sign_every_s
        self._left = signs

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        before, self.now = self.now, self.now + seconds
        if self._every_s is None or not self._left:
            return
        if before // self._every_s != self.now // self._every_s:
            self._left -= 1
            at_ns = round(self.now * 1e9)
            os.utime(self._path, ns=(at_ns, at_ns))


def _waited_s(
    path: Path, monkeypatch: pytest.MonkeyPatch, sign_every_s: float | None, signs: int = 0
) -> float:
    time = FakeTime(path, sign_every_s, signs)
    monkeypatch.setattr(watch_lock, "_monotonic", time.monotonic)
    monkeypatch.setattr(watch_lock, "_sleep", time.sleep)
    began = time.now
    assert not wait_for(path, 120)
    return time.now - began


def test_the_program_waits_one_second_for_a_watcher_that_hangs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Lock(path)
    held.take()
    assert _waited_s(path, monkeypatch, None) == pytest.approx(1.0, abs=0.01)
    assert _waited_s(path, monkeypatch, 0.5, signs=20) == pytest.approx(11.0, abs=0.6)
    assert _waited_s(path, monkeypatch, 0.5, signs=1000) == pytest.approx(120.0, abs=0.6)
    held.release()


def test_a_watcher_at_work_sets_the_time_of_its_lock(path: Path) -> None:
    held = Lock(path)
    held.take()
    os.utime(path, (0, 0))
    with held.showing_life():
        deadline = time.monotonic() + 60
        while not path.stat().st_mtime_ns and time.monotonic() < deadline:
            time.sleep(0.005)
    assert path.stat().st_mtime_ns
    held.release()
