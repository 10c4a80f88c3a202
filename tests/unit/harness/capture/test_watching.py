"""Watching a program to its end: real children where the system matters, else a made-up clock."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from ridgeline.harness.capture import watching
from ridgeline.harness.capture.watching import Ending, Watched, exit_code, watch
from ridgeline.machine import telemetry
from ridgeline.records.run import Capture, ProcessSample, Telemetry
from ridgeline.records.run_directory import RunDirectory

SECOND = 1_000_000_000
# A grandchild cannot be waited for by its watcher, as the program cannot: the parent collects it.
COLLECTS = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"


def _newer_than(major: int, minor: int) -> bool:
    if sys.platform != "linux":
        return False
    numbers = os.uname().release.split(".")
    return (int(numbers[0]), int(numbers[1])) >= (major, minor)


gives_exit_codes = pytest.mark.skipif(not _newer_than(6, 15), reason="needs Linux 6.15")
has_pidfds = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="needs pidfds")


@pytest.fixture
def directory(tmp_path: Path) -> RunDirectory:
    return RunDirectory(tmp_path)


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    started: list[subprocess.Popen[bytes]] = []

    def go(code: str, *arguments: str) -> subprocess.Popen[bytes]:
        program = subprocess.Popen(
            [sys.executable, "-c", code, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        started.append(program)
        return program

    yield go
    for program in started:
        program.kill()
        program.communicate()


class Clock:
    def __init__(self) -> None:
        self.now = 5 * SECOND

    def __call__(self) -> int:
        return self.now


class MadeUpProgram:
    """Dies at a moment of the made-up clock, which only waiting moves on."""

    def __init__(self, clock: Clock, dies_after_s: float, then: Callable[[int], None]) -> None:
        self._clock = clock
        self._began = clock.now
        self._dies = clock.now + int(dies_after_s * SECOND)
        self._then = then

    def gone(self, within_s: float = 0.0) -> bool:
        self._clock.now = min(self._clock.now + round(within_s * SECOND), self._dies)
        self._then(self._clock.now - self._began)
        return self._clock.now >= self._dies

    def exit_code(self) -> int | None:
        return 3

    def close(self) -> None: ...


class MadeUpSampler:
    workers = 0

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def sample(self, at_ns: int) -> Telemetry:
        crowd = tuple(ProcessSample(pid=i, rss_bytes=1 << 40) for i in range(self.workers))
        return Telemetry(at_ns=at_ns, processes=crowd)

    def close(self) -> None: ...


def _watch(
    directory: RunDirectory,
    dies_after_s: float,
    then: Callable[[int], None] = lambda _: None,
    sampler: Callable[[int], MadeUpSampler] = MadeUpSampler,
) -> Ending:
    clock = Clock()
    program = MadeUpProgram(clock, dies_after_s, then)
    return watch(directory, 0, 7, program=program, sampler=sampler, clock=clock)


def _write_capture(directory: RunDirectory, **said: object) -> None:
    capture = Capture(**said)  # type: ignore[arg-type]
    directory.write_whole(directory.capture_file(0).name, msgspec.json.encode(capture))


def _times(directory: RunDirectory) -> list[float]:
    return [(sample.at_ns - 5 * SECOND) / SECOND for sample in directory.telemetry(0)]


def test_a_program_is_sampled_ten_times_a_second_until_its_death(directory: RunDirectory) -> None:
    ending = _watch(directory, 3.05)
    assert (ending.kind, ending.exit_code, ending.problem) == ("death", 3, "")
    assert ending.at_ns == 5 * SECOND + int(3.05 * SECOND)
    assert _times(directory) == pytest.approx([n / 10 for n in range(31)])
    assert ending.samples == 31


def test_after_ten_minutes_one_sample_a_second(directory: RunDirectory) -> None:
    _watch(directory, 700)
    times = _times(directory)
    assert len(times) == 6000 + 100
    assert times[-3:] == pytest.approx([697, 698, 699])


def test_lines_are_appended_once_a_second(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []
    append = RunDirectory.append

    def note(self: RunDirectory, name: str, data: bytes) -> None:
        sizes.append(data.count(b"\n"))
        append(self, name, data)

    monkeypatch.setattr(RunDirectory, "append", note)
    _watch(directory, 4.05)
    assert sizes == [11, 10, 10, 10]


def test_the_last_capture_is_noticed_within_one_poll(directory: RunDirectory) -> None:
    def say(after_ns: int) -> None:
        if after_ns >= 2 * SECOND:
            _write_capture(directory, ended="raised", pid=7, ended_ns=after_ns)

    ending = _watch(directory, 60, say)
    assert (ending.kind, ending.exit_code) == ("goodbye", None)
    assert (ending.at_ns - 5 * SECOND) / SECOND == pytest.approx(2.0, abs=0.11)
    assert _times(directory)[-1] == pytest.approx(2.0, abs=0.11), "a last look while it waits"


def test_a_capture_of_a_running_program_does_not_end_the_watching(directory: RunDirectory) -> None:
    ending = _watch(directory, 1, lambda after: _write_capture(directory, pid=7, steps=after))
    assert ending.kind == "death"


def test_a_damaged_capture_does_not_end_the_watching(directory: RunDirectory) -> None:
    directory.capture_file(0).write_bytes(b'{"ended": "fini')
    assert _watch(directory, 1).kind == "death"


def test_the_last_capture_of_an_earlier_attempt_does_not_count(directory: RunDirectory) -> None:
    _write_capture(directory, ended="raised", pid=6)
    assert _watch(directory, 1).kind == "death"


def test_a_last_capture_just_before_the_death_counts(directory: RunDirectory) -> None:
    def say(after_ns: int) -> None:
        if after_ns >= SECOND:
            _write_capture(directory, ended="finished", pid=7)

    ending = _watch(directory, 1, say)
    assert (ending.kind, ending.exit_code) == ("goodbye", 3)


def test_the_capture_is_read_only_when_it_has_changed(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    _write_capture(directory, pid=7)
    reads = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path) or read(path))
    _watch(directory, 20)
    assert len(reads) == 1


def test_a_vanished_directory_does_not_end_the_watching(tmp_path: Path) -> None:
    ending = _watch(RunDirectory(tmp_path / "gone"), 5)
    assert (ending.kind, ending.samples) == ("death", 0)
    assert ending.problem == "telemetry could not be written: No such file or directory"


def test_a_full_disk_is_one_sentence_and_no_more_writing(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = []

    def full(self: RunDirectory, name: str, data: bytes) -> None:
        tried.append(name)
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(RunDirectory, "append", full)
    ending = _watch(directory, 5)
    assert ending.problem == "telemetry could not be written: No space left on device"
    assert len(tried) == 1


def test_a_fault_of_the_sampler_is_one_sentence(directory: RunDirectory) -> None:
    class Faulty(MadeUpSampler):
        def sample(self, at_ns: int) -> Telemetry:
            if at_ns > 6 * SECOND:
                raise ValueError("no such field")
            return super().sample(at_ns)

    ending = _watch(directory, 5, sampler=Faulty)
    assert ending.kind == "death"
    assert ending.problem == "telemetry stopped: ValueError: no such field"
    assert ending.samples == len(_times(directory)) == 11


def test_the_file_stops_at_its_largest_size(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Crowded(MadeUpSampler):
        workers = 300

    monkeypatch.setattr(watching, "MAX_TELEMETRY_BYTES", 1 << 20)
    ending = _watch(directory, 60, sampler=Crowded)
    size = directory.telemetry_file(0).stat().st_size
    assert ending.problem == "telemetry stopped at 1 MiB, its largest size"
    assert (1 << 19) < size <= 1 << 20
    assert len(list(directory.telemetry(0))) == ending.samples, "whole lines"


def test_what_an_earlier_attempt_wrote_counts_towards_the_size(
    directory: RunDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "MAX_TELEMETRY_BYTES", 5000)
    directory.append("telemetry.jsonl", b'{"at_ns":1}\n' * 416)
    ending = _watch(directory, 2)
    assert "largest size" in ending.problem
    assert directory.telemetry_file(0).stat().st_size == 416 * 12


def test_a_program_gone_before_the_watching_began_is_noticed_at_once(
    directory: RunDirectory, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    program = start("")
    program.wait()
    ending = watch(directory, 0, program.pid)
    assert (ending.kind, ending.samples) == ("death", 0)
    assert not directory.telemetry_file(0).exists()


@pytest.mark.skipif(not telemetry.has_proc(), reason="needs /proc")
def test_a_later_process_with_the_same_id_is_not_the_program(
    start: Callable[..., subprocess.Popen[bytes]],
) -> None:
    program = start("import sys; sys.stdin.read()")
    seen = telemetry.process_stat(program.pid)
    assert seen is not None
    assert not Watched(program.pid, float(seen.started)).gone()
    assert Watched(program.pid, float(seen.started - 1)).gone()


def test_a_real_program_is_sampled_to_its_death(
    directory: RunDirectory, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    program = start("import time; time.sleep(0.5)")
    ending = watch(directory, 0, program.pid)
    samples = list(directory.telemetry(0))
    assert ending.kind == "death"
    assert len(samples) == ending.samples >= 1
    assert samples[0].processes[0].pid == program.pid


@has_pidfds
@gives_exit_codes
def test_the_exit_code_can_be_had_after_a_goodbye(
    directory: RunDirectory, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    program = start("import sys; sys.stdin.read(); sys.exit(7)")
    watched = Watched(program.pid)
    _write_capture(directory, ended="finished", pid=program.pid)
    ending = watch(directory, 0, program.pid, program=watched)
    assert (ending.kind, ending.exit_code) == ("goodbye", None)
    program.communicate()
    assert watched.gone(20)
    assert watched.exit_code() == 7
    watched.close()


@has_pidfds
@gives_exit_codes
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("pass", 0),
        ("import sys; sys.exit(7)", 7),
        ("import os; os._exit(255)", 255),
        ("raise ValueError", 1),
        ("import os; os.kill(os.getpid(), 9)", -signal.SIGKILL),
        ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV),
    ],
)
def test_the_exit_code_of_a_process_that_its_parent_collected_is_known(
    start: Callable[..., subprocess.Popen[bytes]], code: str, expected: int
) -> None:
    waits = "import sys; print(__import__('os').getpid(), flush=True); sys.stdin.readline();"
    quiet = "import sys, os; os.dup2(os.open(os.devnull, os.O_WRONLY), 2);"
    parent = start(COLLECTS, waits + quiet + code)
    assert parent.stdout is not None
    assert parent.stdin is not None
    program = Watched(int(parent.stdout.readline()))
    assert not program.gone()
    assert program.exit_code() is None, "the living have none"
    parent.communicate(b"\n")
    assert program.gone(10)
    assert program.exit_code() == expected
    program.close()


@has_pidfds
@pytest.mark.skipif(not telemetry.has_proc(), reason="needs /proc")
@pytest.mark.parametrize(("code", "expected"), [("raise SystemExit(7)", 7), ("", 0)])
def test_the_exit_code_of_a_process_that_nobody_collected_is_known(
    start: Callable[..., subprocess.Popen[bytes]], code: str, expected: int
) -> None:
    program = start(code)  # this process collects it only at the test's end
    watched = Watched(program.pid)
    assert watched.gone(20)
    assert watched.exit_code() == expected
    watched.close()


@has_pidfds
def test_an_older_kernel_gives_no_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    program = subprocess.Popen([sys.executable, "-c", ""])
    file = os.pidfd_open(program.pid)
    program.wait()
    monkeypatch.setattr(
        "ridgeline.harness.capture.watching._GET_INFO", 0
    )  # a request it does not know
    assert exit_code(file, wait_s=0) is None
    os.close(file)


def test_without_pidfds_a_death_is_noticed_too(
    monkeypatch: pytest.MonkeyPatch, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    program = start("import sys; sys.stdin.read()")
    watched = Watched(program.pid)
    assert not watched.gone(0.01)
    program.kill()
    assert watched.gone(20), "dead, though nobody has collected it"
    assert watched.exit_code() is None


def test_signals_that_end_the_program_do_not_end_its_watcher(
    directory: RunDirectory, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    program = start("import sys; sys.stdin.read()")
    watcher = start(
        f"""
from pathlib import Path
from ridgeline.harness.capture.watching import ignore_signals, watch
from ridgeline.records.run_directory import RunDirectory
ignore_signals()
print("ready", flush=True)
print(watch(RunDirectory(Path({str(directory.path)!r})), 0, {program.pid}).kind)
"""
    )
    assert watcher.stdout is not None
    assert watcher.stdout.readline() == b"ready\n"
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        watcher.send_signal(number)
    time.sleep(0.05)
    assert watcher.poll() is None
    program.kill()
    assert watcher.communicate(timeout=20)[0] == b"death\n"
    assert watcher.returncode == 0
