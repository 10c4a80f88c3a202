"""What the sampler sees of a program, and what the program sees of it: nothing."""

import os
import random
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest

from ridgeline.harness.capture import stack_sampling
from ridgeline.harness.capture import stack_sampling as sampling
from ridgeline.harness.capture.stack_sampling import Sampler, ThreadTime
from ridgeline.records.run import MAX_STACK_FRAMES, OMITTED_FRAMES, OTHER_STACKS, Sampled

HERE = __file__
MS = 1_000_000


def sampled(work: Callable[[], object], interval_ns: int = 2 * MS) -> Counter[tuple[str, ...]]:
    """The stacks seen while `work` ran, with their counts."""
    written: list[bytes] = []
    sampler = Sampler(written.append, interval_ns=interval_ns)
    sampler.start()
    work()
    sampler.stop()
    assert sampler.problem == ""
    return stacks_of(written)


def stacks_of(lines: list[bytes]) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for line in lines:
        record = msgspec.json.decode(line, type=Sampled)
        assert record.samples == sum(times for _, times in record.stacks)
        found.update(dict(record.stacks))
    return found


def line_of(mark: str) -> int:
    lines = Path(HERE).read_text().splitlines()
    return next(n for n, text in enumerate(lines, 1) if text.endswith(f"# {mark}"))


def burn(seconds: float = 0.3) -> int:
    end, count = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        count += len([i for i in range(200)])  # noqa: C416 # BURN
    return count


def nap() -> None:
    time.sleep(0.3)  # NAP


def hold_the_lock() -> int:
    return sum(range(5_000_000))  # HOLD


def test_a_busy_function_gets_most_samples() -> None:
    seen = sampled(burn)
    inside = sum(n for stack, n in seen.items() if any(":burn" in frame for frame in stack[-2:]))
    assert inside > 0.8 * seen.total()


def test_a_sleep_is_the_time_of_the_line_that_sleeps() -> None:
    stack, times = sampled(nap).most_common(1)[0]
    assert stack[-1] == f"{HERE}:{line_of('NAP')}:nap"
    assert times > 20


def test_a_call_that_keeps_the_interpreter_lock_weighs_its_whole_time() -> None:
    """`sum` over a range keeps the interpreter's lock: it is seen once or twice, not 100 times."""
    took: list[float] = []

    def work() -> None:
        time.sleep(0.02)
        for _ in range(3):
            began = time.monotonic()
            hold_the_lock()
            took.append(time.monotonic() - began)
            time.sleep(0.02)

    seen = sampled(work)
    held = sum(n for stack, n in seen.items() if stack[-1].endswith(":hold_the_lock"))
    assert held * 0.002 > 0.7 * sum(took)


class System:
    """A thread's clocks as the test wants them: nanoseconds since it began."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.wall = self.processor = self.in_line = 0
        monkeypatch.setattr(stack_sampling, "monotonic_ns", lambda: self.wall)
        monkeypatch.setattr(ThreadTime, "_processor_ns", lambda _: self.processor)
        monkeypatch.setattr(ThreadTime, "_queued_ns", lambda _: self.in_line)
        monkeypatch.setattr(stack_sampling, "sleep", self.second_look)
        self.runs = True

    def second_look(self, seconds: float) -> None:
        self.wall += 100_000
        self.processor += 100_000 * self.runs

    def passes(self, work_ms: int, wait_ms: int, runs: bool) -> None:
        self.runs = runs
        self.wall += (work_ms + wait_ms) * MS
        self.processor += work_ms * MS


def test_processor_time_goes_to_lines_seen_computing_however_often_the_thread_slept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = System(monkeypatch)
    thread = ThreadTime(threading.get_ident(), None, 0)
    for at in range(100):
        runs = at % 10 == 0
        system.passes(8, 2, runs)
        thread.add((1,) if runs else (2,))
    spent = thread.settle()
    assert spent[1,] / sum(spent.values()) == pytest.approx(0.8, abs=0.01)
    assert sum(spent.values()) == pytest.approx(1000 * MS, rel=0.02)
    assert thread.settle() == {}


def test_time_in_the_run_queue_counts_as_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = System(monkeypatch)
    thread = ThreadTime(threading.get_ident(), None, 0)
    for at in range(100):
        system.passes(3, 7, at % 2 == 0)
        system.in_line += 5 * MS
        thread.add((at % 2,))
    spent = thread.settle()
    assert spent[0,] / sum(spent.values()) == pytest.approx(0.8, abs=0.01)


def test_if_all_samples_are_of_one_kind_they_take_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    system = System(monkeypatch)
    thread = ThreadTime(threading.get_ident(), None, 0)
    system.passes(6, 4, False)
    thread.add((7,))
    assert thread.settle() == {(7,): 10 * MS}


def test_the_programs_switch_interval_is_restored() -> None:
    own = sys.getswitchinterval()
    inside: list[int] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            os._exit(sys.getswitchinterval() != own)
        inside.append(os.waitpid(child, 0)[1])

    sampled(fork)
    assert inside == [0]
    assert sys.getswitchinterval() == own
    sampled(lambda: sys.setswitchinterval(0.02))
    assert sys.getswitchinterval() == 0.02
    sys.setswitchinterval(own)


def test_the_samplers_own_thread_is_in_no_sample() -> None:
    assert not [f for stack in sampled(burn) for f in stack if f.startswith(sampling.__file__)]


def test_the_programs_threads_and_random_streams_are_as_before() -> None:
    states = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index,union-attr]
    threads = threading.enumerate()
    during: list[list[threading.Thread]] = []
    sampled(lambda: (burn(0.1), during.append(threading.enumerate())))
    assert during == [threads]
    assert random.getstate() == states[0]
    assert np.random.get_state()[1].tolist() == states[1]  # type: ignore[index,union-attr]


def test_a_deep_stack_keeps_both_ends() -> None:
    def down(levels: int) -> None:
        if levels:
            return down(levels - 1)
        return nap()

    stack, _ = sampled(lambda: down(150)).most_common(1)[0]
    assert len(stack) == MAX_STACK_FRAMES
    assert stack[-1].endswith(":nap")
    assert OMITTED_FRAMES in stack
    assert "down" not in stack[0]


def test_equal_functions_in_two_files_are_told_apart(tmp_path: Path) -> None:
    """Code objects compare equal whatever their file."""
    made = []
    for name in ("one.py", "two.py"):
        space: dict[str, Callable[[], None]] = {}
        source = "import time\ndef wait():\n    time.sleep(0.1)\n"
        exec(compile(source, str(tmp_path / name), "exec"), space)  # type: ignore[arg-type]
        made.append(space["wait"])
    seen = sampled(lambda: [wait() for wait in made])
    files = {stack[-1].rsplit(":", 2)[0] for stack in seen if stack[-1].endswith(":wait")}
    assert files == {str(tmp_path / "one.py"), str(tmp_path / "two.py")}


def test_a_file_name_that_is_not_text_is_escaped() -> None:
    space: dict[str, Callable[[], None]] = {}
    exec(compile("import time\ndef f(): time.sleep(0.1)", "a\udcff.py", "exec"), space)  # type: ignore[arg-type]
    assert any(stack[-1].startswith("a\\udcff.py:2:") for stack in sampled(space["f"]))


def test_a_thread_that_trains_is_watched_and_main_waiting_for_it_is_not() -> None:
    written: list[bytes] = []
    sampler = Sampler(written.append, interval_ns=2 * MS)
    sampler.start()

    def train() -> None:
        sampler.watch_this_thread()
        burn()

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    sampler.stop()
    seen = stacks_of(written)
    training = sum(n for stack, n in seen.items() if any(f.endswith(":burn") for f in stack))
    assert training > 0.7 * seen.total()


def test_stacks_beyond_the_bound_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MAX_STACKS", 3)
    names = [f"f{i}" for i in range(12)]
    space: dict[str, Callable[[], None]] = {}
    source = "import time\n" + "\n".join(f"def {n}(): time.sleep(0.02)" for n in names)
    exec(compile(source, "many.py", "exec"), space)  # type: ignore[arg-type]
    seen = sampled(lambda: [space[name]() for name in names])
    assert seen[OTHER_STACKS,] > 0
    assert len(seen) <= 4


def test_a_full_file_still_says_how_much_was_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "MAX_FILE_BYTES", sampling._RESERVED_BYTES)
    seen = sampled(burn)
    assert set(seen) == {(OTHER_STACKS,)}
    assert seen.total() > 20


def test_a_forked_child_is_not_sampled(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path, interval_ns=2 * MS)
    sampler.start()
    burn(0.1)
    child = os.fork()
    if not child:
        sampler.stop()
        os._exit(len(os.listdir("/proc/self/task")) - 1 + 2 * len(list(tmp_path.iterdir())))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    sampler.stop()
    assert [path.name for path in tmp_path.iterdir()] == [f"python-{os.getpid()}.jsonl"]


def test_if_nothing_can_be_written_the_program_goes_on(tmp_path: Path) -> None:
    sampler = Sampler(tmp_path / "gone", interval_ns=2 * MS)
    sampler.start()
    burn(0.05)
    sampler.stop()
    assert "FileNotFoundError" in sampler.problem


@pytest.mark.parametrize(("end", "code"), [("", 0), ("raise SystemExit(7)", 7)])
def test_an_interpreter_that_exits_neither_hangs_nor_loses_samples(
    tmp_path: Path, end: str, code: int
) -> None:
    program = f"""
import time
from pathlib import Path
from ridgeline.harness.capture.stack_sampling import Sampler
Sampler(Path({str(tmp_path)!r})).start()
time.sleep(0.2)
{end}
"""
    done = subprocess.run([sys.executable, "-c", program], timeout=60, capture_output=True)
    assert (done.returncode, done.stderr) == (code, b"")
    (file,) = tmp_path.iterdir()
    assert "<string>:6:<module>" in {s[-1] for s in stacks_of(file.read_bytes().splitlines())}


def test_lines_are_written_while_the_sampler_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling, "FLUSH_INTERVAL_NS", 50 * MS)
    sampler = Sampler(tmp_path, "worker", 3, interval_ns=2 * MS)
    sampler.start()
    burn()
    (file,) = tmp_path.iterdir()
    first = msgspec.json.decode(file.read_bytes().splitlines()[0], type=Sampled)
    sampler.stop()
    assert (first.pid, first.process, first.worker) == (os.getpid(), "worker", 3)
    assert first.interval_ns == 2 * MS


def test_sampling_ends_once_the_window_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling, "FLUSH_INTERVAL_NS", 20 * MS)
    written: list[bytes] = []
    sampler = Sampler(written.append, interval_ns=2 * MS, over=lambda: True)
    sampler.start()
    burn()
    sampler.stop()
    assert len(written) == 1
