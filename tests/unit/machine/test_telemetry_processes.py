"""The processes of a program: a made-up /proc for what is rare, real children for the rest."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ridgeline.machine import telemetry
from ridgeline.machine.telemetry import PortableProcessTree, ProcessTree


class MadeUpProc:
    """Files as Linux writes them, for a few processes."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.newest = 0
        (root / "self").mkdir()

    def put(self, pid: int, parent: int, *, name: str = "python", **facts: int | str) -> None:
        told = {"state": "S", "faults": 0, "user": 0, "system": 0, "threads": 1, "start": pid}
        told |= facts
        fields = [
            told["state"], parent, *[0] * 7, told["faults"], 0, told["user"], told["system"],
            *[0] * 4, told["threads"], 0, told["start"], *[0] * 29, 0, 0, 0,
        ]  # fmt: skip
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(map(str, fields))}\n")
        (folder / "statm").write_text("900 25 10 1 0 50 0\n")
        (folder / "io").write_text("rchar: 9\nread_bytes: 4096\nwrite_bytes: 512\n")
        self.say_newest(max(pid, self.newest))

    def say_newest(self, pid: int) -> None:
        self.newest = pid
        (self.root / "loadavg").write_text(f"0.1 0.2 0.3 1/90 {pid}\n")

    def drop(self, pid: int) -> None:
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()


@pytest.fixture
def proc(tmp_path: Path) -> MadeUpProc:
    made = MadeUpProc(tmp_path)
    made.put(1, 0)
    made.put(10, 1)
    made.put(11, 10)
    made.put(12, 11)
    made.put(20, 1)
    return made


def _pids(tree: ProcessTree) -> list[int]:
    return [sample.pid for sample in tree.sample()]


def test_all_descendants_belong_to_the_program_and_nobody_else(proc: MadeUpProc) -> None:
    samples = ProcessTree(10, proc=str(proc.root)).sample()
    assert [(s.pid, s.worker) for s in samples] == [(10, False), (11, True), (12, True)]


def test_a_child_with_a_lower_id_than_its_parent_is_found(proc: MadeUpProc) -> None:
    proc.put(5, 6)  # ids have started again from the bottom
    proc.put(6, 12)
    assert set(_pids(ProcessTree(10, proc=str(proc.root)))) == {5, 6, 10, 11, 12}


def test_counters_are_read_from_a_name_with_brackets_and_spaces(proc: MadeUpProc) -> None:
    second = os.sysconf("SC_CLK_TCK")
    proc.put(
        10, 1, name="a) b (c", user=3 * second, system=second // 2, faults=7, threads=9, start=10
    )
    (sample, *_) = ProcessTree(10, proc=str(proc.root)).sample()
    assert (sample.cpu_s, sample.major_faults, sample.threads) == (3.5, 7, 9)
    assert sample.rss_bytes == 25 * os.sysconf("SC_PAGE_SIZE")
    assert (sample.read_bytes, sample.write_bytes) == (4096, 512)


def test_workers_of_a_loader_are_known_by_the_name_of_their_thread(proc: MadeUpProc) -> None:
    proc.put(11, 10, name=telemetry.LOADER_THREAD)
    samples = ProcessTree(10, proc=str(proc.root)).sample()
    assert [(s.pid, s.loader) for s in samples] == [(10, False), (11, True), (12, False)]


def test_shared_pages_are_divided_only_if_asked_and_only_for_small_processes(
    proc: MadeUpProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    (proc.root / "11" / "smaps_rollup").write_text("Rss: 900 kB\nPss:             40 kB\n")
    tree = ProcessTree(10, proc=str(proc.root))
    assert [s.pss_bytes for s in tree.sample()] == [0, 0, 0]
    assert [s.pss_bytes for s in tree.sample(shared=True)] == [0, 40 * 1024, 0]
    monkeypatch.setattr(telemetry, "MAX_PSS_RESIDENT_BYTES", 1)
    assert [s.pss_bytes for s in tree.sample(shared=True)] == [0, 0, 0]


def test_new_workers_are_found_and_ended_ones_skipped(proc: MadeUpProc) -> None:
    tree = ProcessTree(10, proc=str(proc.root))
    assert _pids(tree) == [10, 11, 12]
    proc.put(30, 10)
    proc.drop(12)
    assert _pids(tree) == [10, 11, 30]


def test_a_worker_whose_parent_died_is_still_the_programs(proc: MadeUpProc) -> None:
    tree = ProcessTree(10, proc=str(proc.root))
    tree.sample()
    proc.drop(11)
    proc.put(12, 1)
    proc.say_newest(31)
    assert _pids(tree) == [10, 12]


def test_an_id_used_again_by_a_stranger_is_not_a_worker(proc: MadeUpProc) -> None:
    tree = ProcessTree(10, proc=str(proc.root))
    tree.sample()
    proc.put(12, 20, start=999)
    assert _pids(tree) == [10, 11]
    proc.say_newest(40)
    assert _pids(tree) == [10, 11]


def test_zombie_processes_are_skipped(proc: MadeUpProc) -> None:
    proc.put(11, 10, state="Z")
    assert 11 not in _pids(ProcessTree(10, proc=str(proc.root)))


def test_a_process_that_ends_between_listing_and_reading_is_skipped(proc: MadeUpProc) -> None:
    tree = ProcessTree(10, proc=str(proc.root))
    pids = tree.pids()
    proc.drop(12)
    assert [sample.pid for sample in tree.sample(pids)] == [10, 11]


def test_the_watcher_itself_is_not_a_worker(
    proc: MadeUpProc, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getpid", lambda: 11)  # as where the program is process 1
    assert _pids(ProcessTree(10, proc=str(proc.root))) == [10]


def test_no_such_process_is_no_samples(proc: MadeUpProc) -> None:
    assert ProcessTree(77, proc=str(proc.root)).sample() == ()


@pytest.fixture
def family() -> Iterator[subprocess.Popen[bytes]]:
    """A program with two workers, each with 16 MiB, that have used some processor time."""
    worker = "b = bytes(range(256)) * 65536; sum(range(5_000_000)); print(1, flush=True)"
    code = f"""
import subprocess, sys
work = {worker + "; import sys; sys.stdin.read()"!r}
made = [subprocess.Popen([sys.executable, "-c", work], stdin=subprocess.PIPE,
        stdout=subprocess.PIPE) for _ in range(2)]
for one in made: one.stdout.readline()
print("ready", flush=True)
sys.stdin.read()
"""
    program = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert program.stdout is not None
    assert program.stdin is not None
    assert program.stdout.readline() == b"ready\n"
    yield program
    program.stdin.close()
    program.wait()
    program.stdout.close()


@pytest.mark.skipif(not telemetry.has_proc(), reason="needs /proc")
def test_a_real_program_and_its_workers_are_seen(family: subprocess.Popen[bytes]) -> None:
    program, *workers = ProcessTree(family.pid).sample()
    assert program.pid == family.pid
    assert not program.worker
    assert len(workers) == 2
    assert all(w.worker and w.cpu_s > 0 and w.rss_bytes > 16 << 20 for w in workers)


def test_the_portable_tree_finds_the_same_processes(family: subprocess.Popen[bytes]) -> None:
    program, *workers = PortableProcessTree(family.pid).sample()
    assert program.pid == family.pid
    assert not program.worker
    assert all(w.worker and w.rss_bytes > 16 << 20 for w in workers)
    assert len(workers) == 2


def test_the_portable_tree_has_no_sample_of_an_ended_process() -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    assert PortableProcessTree(gone.pid).sample() == ()
