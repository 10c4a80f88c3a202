"""Row 18: every limit is real, and a long program keeps nothing of ours."""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from reliability.arms import ridgeline
from reliability.outcome import python, start, surroundings
from reliability.row import Asked, Row, each

STEPS = 100_000
GROWTH_BYTES = 10 * 1024 * 1024
OVER = 1.05
SOAK = f"""
import gc, os, sys, threading, time, torch
torch.set_num_threads(1)
w = torch.nn.Parameter(torch.zeros(1)); o = torch.optim.SGD([w], 0.1)
def step(): w.grad = None; (w * 2).backward(); o.step()
def state():
    rss = int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    tasks, files = (len(os.listdir("/proc/self/" + what)) for what in ("task", "fd"))
    return rss, threading.active_count(), tasks, files
for i in range(3): step()
start, began, middle = state(), time.monotonic(), None
for i in range({STEPS}):
    step()
    if middle is None and i >= {STEPS} // 4 and time.monotonic() - began > 4:
        gc.collect(); middle = state()
gc.collect()
print(*start, *(middle or state()), *state())
"""
MIDDLE = SOAK.replace(str(STEPS), "40000")
SHORT = SOAK.replace(str(STEPS), "3000").replace("began > 4", "began > 400")


def run(asked: Asked) -> list[Row]:
    base = Path(tempfile.mkdtemp(prefix="reliability-"))
    cases: dict[str, Callable[[Path], list[str]]] = {
        "soak": soak,
        "soak --full": soak_full,
        "windows": windows,
        "steps to trace": steps_to_trace,
        "stop after": stop_after,
        "steps file": steps_file,
        "telemetry file": telemetry_file,
        "samples file": samples_file,
        "long names": long_names,
    }
    row = Row(18, "every limit is real", least=len(cases))

    def one(name: str) -> list[str]:
        folder = base / name.replace(" ", "-")
        folder.mkdir()
        return cases[name](folder)

    each(row, list(cases), one, asked, str)
    shutil.rmtree(base, ignore_errors=True)
    return [row]


def trained(folder: Path, source: str, *options: str) -> tuple[list[int], Path]:
    """Runs it; the numbers it printed and its run's directory."""
    (folder / "soak.py").write_text(source)
    command = [*ridgeline(), "run", "-q", *options, "soak.py"]
    done = start(command, folder, surroundings(), patience=180)
    assert done.code == 0, (done.code, done.err[-500:])
    (directory,) = (folder / ".ridgeline/runs").iterdir()
    return [int(word) for word in done.out.split()], directory


def rows_of(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (directory / "steps.jsonl").read_text().splitlines()]


def soak(folder: Path) -> list[str]:
    # torch's profiler keeps a thread of its own once it was used, with or without us
    return grown(trained(folder, SOAK)[0], of_the_profiler=1)


def soak_full(folder: Path) -> list[str]:
    numbers, directory = trained(folder, MIDDLE, "--full", "--trace-steps", "0")
    rows = len(rows_of(directory))
    found = grown(numbers)
    if not 40_000 <= rows <= 40_010:
        found.append(f"{rows} rows of 40,003 steps")
    return found


def grown(numbers: list[int], of_the_profiler: int = 0) -> list[str]:
    """RSS from the middle, where the windows are over, to the end; threads and files from start."""
    begin, middle, end = numbers[:4], numbers[4:8], numbers[8:]
    found = []
    if end[0] - middle[0] > GROWTH_BYTES:
        found.append(f"RSS grew by {(end[0] - middle[0]) / 2**20:.1f} MiB after the windows")
    names = ("threads of Python", "threads", "open files")
    for name, before, after in zip(names, begin[1:], end[1:], strict=True):
        if after - before > (of_the_profiler if name == "threads" else 0):
            found.append(f"{name}: {before} at the start, {after} at the end")
    return found


def windows(folder: Path) -> list[str]:
    """The default windows end: steps beyond them leave no row."""
    _, directory = trained(folder, MIDDLE, "--steps", "10")
    rows = rows_of(directory)
    kinds = [row.get("window", "light") for row in rows]
    found = []
    if len(rows) > 30_000:
        found.append(f"{len(rows)} rows: the windows did not end")
    if kinds.count("traced") != 3:
        found.append(f"{kinds.count('traced')} traced steps, not 3")
    return found


def steps_to_trace(folder: Path) -> list[str]:
    _, directory = trained(folder, SHORT, "--trace-steps", "5")
    traced = sum(row.get("window") == "traced" for row in rows_of(directory))
    return [] if traced == 5 else [f"{traced} traced steps, not 5"]


def stop_after(folder: Path) -> list[str]:
    (folder / "soak.py").write_text(SHORT)
    command = [*ridgeline(), "run", "-q", "--stop-after", "20", "soak.py"]
    done = start(command, folder, surroundings())
    (directory,) = (folder / ".ridgeline/runs").iterdir()
    steps = len(rows_of(directory))
    good = (done.code, done.out, steps) == (0, b"", 20)
    return [] if good else [f"ended {done.code} after {steps} steps: {done.err[-300:]!r}"]


def within(folder: Path, code: str) -> list[str]:
    done = start([python(), "-c", code], folder, surroundings())
    return [] if done.code == 0 else [done.err.decode()[-600:]]


def steps_file(folder: Path) -> list[str]:
    """Its cap is a million rows; here lowered, since those are 300 MB."""
    return within(
        folder,
        f"""
from pathlib import Path
from ridgeline.harness.capture import recording
from ridgeline.records.run import Step
recording.MAX_ROWS = 20_000
made = recording.Journal(Path("."), 0)
for i in range(30):
    made.add([Step(index=i * 1000 + k, start_ns=0, dur_ns=1) for k in range(1000)]); made.flush(i)
rows = len(Path("steps.jsonl").read_text().splitlines())
assert rows <= 20_000 * {OVER} and made.full, rows
""",
    )


def telemetry_file(folder: Path) -> list[str]:
    return within(
        folder,
        f"""
from pathlib import Path
from ridgeline.harness.capture import watching
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run import ProcessSample, Telemetry
made = watching._Journal(RunDirectory(Path(".")), Path("telemetry.jsonl"))
many = tuple(ProcessSample(pid=10**6 + k, rss_bytes=10**9, threads=9) for k in range(3000))
for i in range(400): made.keep(Telemetry(at_ns=i, processes=many), i * 10**9)
made.flush(10**12)
size = Path("telemetry.jsonl").stat().st_size
assert size <= watching.MAX_TELEMETRY_BYTES * {OVER}, size
assert size >= watching.MAX_TELEMETRY_BYTES / 2 and made.problem, (size, made.problem)
""",
    )


def samples_file(folder: Path) -> list[str]:
    """The sampler's cap of bytes, lowered to what a few seconds give."""
    return within(
        folder,
        f"""
import time
from pathlib import Path
from ridgeline.harness.capture import stack_sampling
stack_sampling.MAX_FILE_BYTES = 20_000
made = stack_sampling.Sampler(Path("."))
made.start()
end = time.monotonic() + 6
while time.monotonic() < end: [eval(f"sum(range({{n}}))") for n in range(200)]
made.stop()
size = sum(p.stat().st_size for p in Path(".").glob("python-*.jsonl"))
assert 0 < size <= 20_000 * {OVER} + 20_000, size
""",
    )


def long_names(folder: Path) -> list[str]:
    """A code of 200 kB and a thousand arguments leave a small run.json and a short name."""
    code = "x = '" + "a" * 100_000 + "'"
    words = [f"--option-{i}=" + "v" * 100 for i in range(400)]
    done = start([*ridgeline(), "run", "-q", "-c", code, *words], folder, surroundings())
    (directory,) = (folder / ".ridgeline/runs").iterdir()
    size = (directory / "run.json").stat().st_size
    good = done.code == 0 and len(directory.name) < 80 and size < 100_000
    return [] if good else [f"ended {done.code}, {directory.name[:100]}, run.json {size} bytes"]
