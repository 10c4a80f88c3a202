"""How often `ridgeline trace` computes what its analyses share, and what the command costs.

    python benchmarks/trace_work.py                 a trace made here: 20 steps of 400 operators
    python benchmarks/trace_work.py run.json.gz     your trace; several are ranks of one job
    python benchmarks/trace_work.py --run DIR       also the concluding of a recorded run

Two things are measured for the same command, `ridgeline trace --json --no-cache FILE…`:

- calls: one run in this process, with a profile hook that counts calls of the functions below;
- processor time (user + sys) of the whole command: the least and the median of `--repeat` runs.
  Other work on the machine changes processor time less than it changes wall time.

With `--run` the processor time of two things is measured in this process, each after a first time
that imports what it needs: concluding the run, and reading what was stored of its conclusion.
"""

import argparse
import contextlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import FrameType
from typing import Any

PIECES: dict[str, tuple[str, ...]] = {
    "studies of a trace": ("study_one",),
    "steps": ("steps_of",),
    "spans of steps": ("step_spans",),
    "busy spans": ("busy_spans",),
    "user's functions around frames": ("Places._own_above",),
    "Python functions by thread": ("Places._by_lane",),
    "threads that drive the device": ("driving_lanes",),
    "launch moments": ("launched",),
    "spans of phases": ("phase_spans",),
    "states of a host thread": ("states_of",),
    "synchronising calls": ("sync_spans",),
    "idle gaps": ("idle_gaps",),
    "critical paths": ("_walked", "walked_path"),
    "module trees": ("module_paths",),
    "forward operators of autograd nodes": ("forward_of",),
    "counts of operators' work": ("count_work",),
    "rooflines": ("roofline",),
    "operators' own time": ("own_time", "_times"),
    "nesting of a table": ("nested",),
    "names looked at": ("Trace.names_where",),
}
"""Piece by the qualified names of the functions in `ridgeline.trace` that compute it."""


def counted(files: list[Path]) -> Counter[str]:
    """Run the command in this process; return how often each function of ridgeline.trace ran."""
    from ridgeline.cli import main

    calls: Counter[str] = Counter()

    def hook(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and "/ridgeline/trace/" in code.co_filename.replace(os.sep, "/"):
            calls[code.co_qualname] += 1

    arguments, sys.argv = sys.argv, ["ridgeline", "trace", "--json", "--no-cache", *map(str, files)]
    threading.setprofile(hook)
    sys.setprofile(hook)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
            main()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
        sys.argv = arguments
    return calls


def processor_s(files: list[Path]) -> float:
    """Return the user and system time of one run of the command, imports included."""
    command = [sys.executable, "-m", "ridgeline", "trace", "--json", "--no-cache"]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([*command, *map(str, files)], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def concluding_s(run: Path, repeat: int) -> tuple[float, float]:
    """Return the least processor time of concluding a run, and of reading its stored case."""
    from ridgeline.diagnosis.conclusion import concluded_case
    from ridgeline.diagnosis.stored_case import store_case, stored_case
    from ridgeline.records.run_directory import RunDirectory

    directory = RunDirectory(run)
    summary, case = concluded_case(directory)
    if case is None:
        raise SystemExit(f"{run}: the run has no case")
    store_case(directory, summary, case)

    def least_s(work: Callable[[], object]) -> float:
        times = []
        for _ in range(repeat + 1):
            began = time.process_time()
            work()
            times.append(time.process_time() - began)
        return min(times[1:])

    return least_s(lambda: concluded_case(directory)), least_s(lambda: stored_case(directory))


def make_trace(path: Path, steps: int = 20, operators: int = 400) -> None:
    """Write a trace with steps, Python functions, operators with shapes, launches and kernels."""
    events: list[dict[str, Any]] = []

    def add(cat: str, name: str, ts: float, dur: float, tid: int, pid: int, **args: Any) -> None:
        events.append(
            {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "tid": tid, "pid": pid,
             "args": args}
        )  # fmt: skip

    length = operators * 20 + 200
    for step in range(steps):
        start = step * length
        add("user_annotation", f"ProfilerStep#{step}", start, length - 1, 100, 100)
        add("python_function", "train.py(10): train_step", start, length - 1, 100, 100)
        for number in range(operators):
            at, which = start + 100 + number * 20, step * operators + number + 1
            shape = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}
            add("python_function", f"nn.Module: Linear_{number % 8}", at - 2, 18, 100, 100)
            add("cpu_op", "aten::mm", at, 12, 100, 100, **{"External id": which, **shape})
            add("cuda_runtime", "cudaLaunchKernel", at + 4, 5, 100, 100, correlation=which)
            add("kernel", f"gemm_{number % 5}", at + 14, 8, 7, 0, device=0, stream=7,
                correlation=which)  # fmt: skip
            if number % 50 == 49:
                add("cuda_runtime", "cudaStreamSynchronize", at + 13, 6, 100, 100,
                    correlation=10**7 + which)  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="a trace, or the ranks of one job")
    parser.add_argument("--repeat", type=int, default=5, help="runs whose processor time is taken")
    parser.add_argument("--run", type=Path, metavar="DIR", help="a recorded run to conclude")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        files = options.files
        if not files:
            files = [Path(folder) / "made.json"]
            make_trace(files[0])
        processor_s(files)  # the first run writes bytecode
        times = [processor_s(files) for _ in range(options.repeat)]
        calls = counted(files)
    named = files[0].name if len(files) == 1 else f"{len(files)} ranks ({files[0].parent.name})"
    print(f"{named}: Python {sys.version.split()[0]}, {os.cpu_count()} cores")
    print(
        f"  processor time {min(times):.2f} s least, {median(times):.2f} s median of {len(times)}"
    )
    print(f"  {sum(calls.values()):,} calls of functions in ridgeline.trace, of which")
    for piece, names in PIECES.items():
        print(f"  {sum(calls[name] for name in names):8,}  {piece}")
    if options.run is not None:
        concluding, reading = concluding_s(options.run, options.repeat)
        print(f"{options.run.name}: concluding {1e3 * concluding:.1f} ms of processor time,")
        print(f"  reading what was concluded {1e3 * reading:.1f} ms")
    return 0


if __name__ == "__main__":
    sys.exit(main())
