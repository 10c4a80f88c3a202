"""Work of ours in a copy of the process, which leaves the process as it was."""

import ctypes
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from ridgeline.harness.trials.process_memory import FamilyMemory
from ridgeline.harness.usercode import forked_work
from ridgeline.harness.usercode.forked_work import (
    DirectWork,
    ForkedWork,
    RaisedInFork,
    SharedStore,
    error_text,
)
from tests.unit.harness.usercode.asked_of_system import MAPPED

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere work is done here")


@pytest.fixture
def copies(tmp_path: Path) -> ForkedWork:
    return ForkedWork(torch, tmp_path / forked_work.FORK_MARK)


def test_an_answer_comes_back_and_nothing_else(copies: ForkedWork) -> None:
    held = [1]

    def work() -> tuple[int, list[float]]:
        held.append(2)
        print("not to be seen", flush=True)
        return os.getpid(), torch.arange(3.0).tolist()

    pid, numbers = copies.run(work)
    assert pid != os.getpid()
    assert numbers == [0.0, 1.0, 2.0]
    assert held == [1]


def test_what_it_prints_is_not_the_programs(
    copies: ForkedWork, capfd: pytest.CaptureFixture[str]
) -> None:
    copies.run(lambda: os.write(1, b"of the copy\n"))
    assert capfd.readouterr().out == ""


def test_an_error_keeps_its_kind_and_its_words(copies: ForkedWork) -> None:
    with pytest.raises(RaisedInFork) as error:
        copies.run(lambda: {}["weight"])
    assert error_text(error.value) == "KeyError: 'weight'"
    assert error_text(ValueError("of here")) == "ValueError: of here"


def test_a_copy_that_dies_is_an_error_and_not_the_programs_end(copies: ForkedWork) -> None:
    with pytest.raises(RaisedInFork, match="died"):
        copies.run(lambda: os.kill(os.getpid(), 9))
    assert copies.run(lambda: 3) == 3


def test_a_copy_that_hangs_is_ended_and_the_work_done_here(
    copies: ForkedWork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forked_work, "FORK_TIMEOUT_S", 0.2)
    main = os.getpid()

    def work() -> int:
        if os.getpid() != main:
            time.sleep(60)
        return os.getpid()

    began = time.monotonic()
    assert copies.run(work) == main
    assert copies.run(os.getpid) == main  # not tried again
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    "error", [OSError("Cannot allocate memory"), RuntimeError("can't fork at interpreter shutdown")]
)
def test_where_no_copy_can_be_made_the_work_is_done_here(
    error: Exception, copies: ForkedWork, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fork() -> int:
        raise error

    open_before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "fork", fork)
    assert copies.run(os.getpid) == os.getpid()
    assert not (tmp_path / forked_work.FORK_MARK).exists()
    assert len(os.listdir("/proc/self/fd")) == open_before


def test_a_program_with_thousands_of_open_files_can_be_copied(copies: ForkedWork) -> None:
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 1_500:
        pytest.skip("the system allows fewer")
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_100)]
    try:
        assert copies.run(os.getpid) != os.getpid()
    finally:
        for one in held:
            os.close(one)


def test_operators_that_share_their_work_over_threads_run_in_it(copies: ForkedWork) -> None:
    """Threads that helped before the copy was made are not in it."""
    large = torch.randn(512, 512)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        here = (large @ large).sum().item()
        found, threads = copies.run(lambda: ((large @ large).sum().item(), torch.get_num_threads()))
    finally:
        torch.set_num_threads(before)
    assert found == pytest.approx(here, rel=1e-4)
    assert threads == 2


def test_it_computes_as_the_program_does_where_it_is_asked(copies: ForkedWork) -> None:
    x = torch.randn(4, 4)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        found = copies.run(lambda: ((x @ x).dtype, torch.is_grad_enabled()))
    assert found == (torch.bfloat16, False)
    with torch.inference_mode():
        assert copies.run(lambda: (x @ x).is_inference())


def test_what_one_copy_puts_down_another_finds(copies: ForkedWork) -> None:
    shelf = SharedStore()
    copies.run(lambda: shelf.put({"first": torch.arange(3.0)}))
    copies.run(lambda: shelf.put({"second": torch.ones(2)}))
    shelf.put({"here": torch.zeros(1)})

    def read() -> dict[str, list[float]]:
        return {name: one.tolist() for each in shelf.all() for name, one in each.items()}

    expected = {"here": [0.0], "first": [0.0, 1.0, 2.0], "second": [1.0, 1.0]}
    assert copies.run(read) == read() == expected
    shelf.clear()
    assert list(shelf.all()) == []


def test_while_a_copy_is_there_nothing_is_counted(copies: ForkedWork, tmp_path: Path) -> None:
    """8 MB of it would be the program's."""
    family, mark = FamilyMemory(), tmp_path / forked_work.FORK_MARK
    guarded = FamilyMemory(fork_mark=mark)

    def work() -> tuple[int, int, bool]:
        kept = torch.ones(2**20, dtype=torch.float64)
        family.look(os.getppid())
        guarded.look(os.getppid())
        return family.others_bytes, guarded.looks, mark.exists() and bool(kept.numel())

    counted, looks, marked = copies.run(work)
    assert counted > 8e6
    assert marked
    assert looks == 0
    assert not mark.exists()


PROGRAM = (
    MAPPED
    + """
import sys
from pathlib import Path
from ridgeline.harness.usercode.forked_work import ForkedWork, DirectWork

first = mapped(12)  # what is imported frees less
here = DirectWork() if sys.argv[1] == "here" else ForkedWork(torch, Path(sys.argv[2]))
here.run(lambda: float(torch.ones(3 * 2**20).double().sum()))
print(first, mapped(12))
"""
)


@pytest.mark.parametrize(("where", "expected"), [("aside", "True True"), ("here", "True False")])
def test_what_it_frees_does_not_alter_how_the_program_gets_its_memory(
    where: str, expected: str, tmp_path: Path
) -> None:
    """The C library keeps pieces as large as the largest that was freed. In the process itself the
    work does alter it: this is what the copy is for."""
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("another C library")
    environment = {name: os.environ[name] for name in os.environ if name != "LD_PRELOAD"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, where, str(tmp_path / "mark")],
        capture_output=True, text=True, check=True, env=environment,
    )  # fmt: skip
    assert done.stdout.strip() == expected


def test_here_it_is_simply_done() -> None:
    assert DirectWork().run(os.getpid) == os.getpid()
