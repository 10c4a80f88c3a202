import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from ridgeline.harness.trials.process_memory import (
    LOOK_EVERY_S,
    MAX_CORE_SHARE,
    ON_DEVICE,
    FamilyMemory,
    forget_own_peak,
    own_peak_bytes,
)
from ridgeline.harness.trials.session import TrialSession

MB = 2**20


class Proc:
    """A folder like /proc, of processes with memory of their own and memory that they share."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def process(
        self, pid: int, children: str = "", *, peak: int = 0, anon: int = 0, part: int = 0,
        file: int = 0, file_part: int = 0, shm: int = 0, shm_part: int = 0,
    ) -> None:  # fmt: skip
        home = self.root / str(pid)
        (home / "task" / str(pid)).mkdir(parents=True, exist_ok=True)
        (home / "task" / str(pid) / "children").write_text(children)
        self._write(home / "status", VmHWM=peak, RssAnon=anon, RssFile=file, RssShmem=shm)
        self._write(
            home / "smaps_rollup",
            Pss_Anon=part or anon, Anonymous=anon, Pss_File=file_part or file,
            Pss_Shmem=shm_part or shm,
        )  # fmt: skip

    def _write(self, path: Path, **megabytes: int) -> None:
        lines = [f"{name}: {1024 * value} kB" for name, value in megabytes.items()]
        path.write_text("\n".join(["Name: python", *lines, "Threads: 1"]))


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


def looked(proc: Proc) -> FamilyMemory:
    family = FamilyMemory(proc.root)
    family.look(1)
    return family


def test_a_program_alone_has_its_own_peak(proc: Proc) -> None:
    proc.process(1, peak=500, anon=400)
    assert looked(proc).peak_bytes(550 * MB, 0) == 550 * MB


def test_pages_that_a_fork_shares_are_counted_once(proc: Proc) -> None:
    proc.process(1, "2 3", peak=1000, anon=900, part=300)
    proc.process(2, peak=950, anon=900, part=300)
    proc.process(3, peak=950, anon=900, part=300)
    assert looked(proc).peak_bytes(1000 * MB, 0) == 1000 * MB


def test_what_workers_have_of_their_own_is_added_those_of_workers_too(proc: Proc) -> None:
    proc.process(1, "2", peak=1000, anon=900, part=450)
    proc.process(2, "3", anon=1000, part=550)  # 450 shared, 100 its own
    proc.process(3, anon=70)
    assert looked(proc).peak_bytes(1000 * MB, 0) == 1170 * MB


def test_files_shared_with_strangers_do_not_hide_a_buffer(proc: Proc) -> None:
    proc.process(1, "2", peak=1000, anon=500, file=300, file_part=10)
    proc.process(2, anon=100, file=300, file_part=10, shm=40)
    assert looked(proc).peak_bytes(1000 * MB, 0) == 1140 * MB


def test_a_later_peak_of_the_program_stands_beside_what_the_others_have_at_its_end(
    proc: Proc,
) -> None:
    proc.process(1, "2", peak=600, anon=500)
    proc.process(2, anon=900)  # a compiler
    family = FamilyMemory(proc.root, clock=iter([0.0, 1.0]).__next__, spent=lambda: 0.0)
    family.look(1)
    proc.process(1, "3", peak=700, anon=500)
    proc.process(3, anon=50)
    family.look(1)
    assert family.peak_bytes(720 * MB, 60 * MB) == 1500 * MB
    assert family.peak_bytes(1600 * MB, 60 * MB) == 1660 * MB


def test_a_process_that_ends_meanwhile_and_one_that_is_not_there_add_nothing(
    proc: Proc, tmp_path: Path
) -> None:
    proc.process(1, "2", peak=600, anon=500)
    assert looked(proc).peak_bytes(600 * MB, 0) == 600 * MB
    assert FamilyMemory(tmp_path / "none").peak_bytes(0, 0) == 0
    family = FamilyMemory(tmp_path / "none")
    family.look(1)
    assert family.peak_bytes(0, 0) == 0


@pytest.mark.parametrize(
    ("cost", "a_second"), [(0.0, 1 / LOOK_EVERY_S), (0.01, MAX_CORE_SHARE / 0.01)]
)
def test_looks_are_five_a_second_and_fewer_where_each_takes_long(
    cost: float, a_second: float, proc: Proc
) -> None:
    proc.process(1, peak=1)
    now = spent = 0.0

    def work() -> float:  # asked before and after a look
        nonlocal spent
        spent += cost
        return spent

    family = FamilyMemory(proc.root, lambda: now, work)
    for _ in range(2000):
        now += 0.005
        family.look(1)
    assert family.looks == pytest.approx(10 * a_second, rel=0.1)


def test_a_program_that_works_on_a_device_is_not_looked_at_any_more(
    proc: Proc, tmp_path: Path
) -> None:
    proc.process(1, "2", peak=600, anon=500)
    proc.process(2, anon=900)
    said = tmp_path / "said"
    family = FamilyMemory(proc.root, iter([0.0, 1.0, 2.0]).__next__, lambda: 0.0, until=(said,))
    family.look(1)
    assert family.looks == 1
    said.touch()
    family.look(1)
    said.unlink()  # once is enough
    family.look(1)
    assert family.looks == 1


@pytest.mark.parametrize("cuda", [True, False])
def test_a_program_says_where_its_timed_steps_begin_that_it_works_on_a_device(
    cuda: bool, tmp_path: Path
) -> None:
    torch = SimpleNamespace(cuda=SimpleNamespace(is_initialized=lambda: cuda))
    session = TrialSession.__new__(TrialSession)
    session._torch, session.directory = torch, tmp_path
    session._mark_device()
    assert (tmp_path / ON_DEVICE).exists() == cuda


def test_the_peak_of_a_process_is_known_to_itself() -> None:
    before = own_peak_bytes()
    held = bytearray(os.urandom(1)) * (before + 64 * MB)
    assert own_peak_bytes() >= before + 32 * MB
    del held
    assert own_peak_bytes() >= before + 32 * MB  # a peak stays


def test_a_peak_can_be_forgotten() -> None:
    held = bytearray(os.urandom(1)) * (256 * MB)
    peak = own_peak_bytes()
    del held
    forget_own_peak()
    if own_peak_bytes() == peak:
        pytest.skip("this system keeps it")
    assert own_peak_bytes() < peak - 128 * MB


def test_where_a_peak_cannot_be_forgotten_it_stays(tmp_path: Path) -> None:
    forget_own_peak(tmp_path)


def test_without_proc_the_system_is_asked(tmp_path: Path) -> None:
    assert own_peak_bytes(tmp_path) > MB
