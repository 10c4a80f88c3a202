"""Measure how fast memory snapshots are read, and whether the answer is true.

    python benchmarks/memory_snapshots.py --mb 20 200
    python benchmarks/memory_snapshots.py --mb 200 --keep /tmp/snapshots
    python benchmarks/memory_snapshots.py --mutants 2000

A simulated caching allocator runs a GPT's training and records what torch records, so that the
peak and what it is for are known. The snapshots are not from a GPU: their stacks are as deep, and
their events as many, as in real ones. Each is studied in a process of its own, as the command does.

`--mutants` damages a small snapshot in that many ways: each must be read, or refused in a sentence,
within 10 s and 1 GiB.
"""

import argparse
import json
import os
import pickle
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "tests/unit/memory"))

from hostile_pickles import hostile, mutants  # noqa: E402
from simulated_allocator import (  # noqa: E402
    Frame,
    Gpt,
    SimulatedAllocator,
    snapshot,
    trained,
    truth,
    write,
)

from ridgeline.errors import RidgelineError  # noqa: E402
from ridgeline.memory.snapshot import read_snapshot  # noqa: E402

LAUNCHER_FRAMES: tuple[Frame, ...] = tuple(
    (f"/opt/venv/lib/python3.11/site-packages/trainer/{name}.py", 40 + number, name)
    for number, name in enumerate(
        ("launch", "cli", "main", "run", "fit", "fit_loop", "epoch", "advance", "training_batch",
         "closure", "wrapper", "strategy", "training_step", "accelerator", "precision", "calls")
    )
)  # fmt: skip
"""Frames of a launcher and a trainer below the script's own: real stacks are 20 to 40 deep."""
STEPS_AT_A_TIME = 20
MAX_S, MAX_BYTES = 5.0, 10**9
MAX_MUTANT_S, MAX_MUTANT_KIB = 10.0, 1 << 20
_STUDY = """
import json, resource, sys, time
from pathlib import Path
begin = time.perf_counter()
from ridgeline.memory.study import study_snapshot
device = study_snapshot(Path(sys.argv[1])).devices[0]
wall = time.perf_counter() - begin
usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
print(json.dumps({
    "wall_s": wall, "cpu_s": sum(u.ru_utime + u.ru_stime for u in usage),
    "bytes": max(u.ru_maxrss for u in usage) * 1024, "events": device.events,
    "peak": device.peak.bytes, "kinds": {k.value: v for k, v in device.peak.by_kind.items()},
    "at_ns": device.peak.at_ns}))
"""


def made(path: Path, megabytes: float, layers: int, stacks: str) -> Gpt:
    """Write a snapshot of about this size; return the program that it is of."""
    memory = SimulatedAllocator(has_native_frames=stacks == "all")
    gpt = Gpt(memory, layers=layers, outer=LAUNCHER_FRAMES, has_loop=False)
    gpt.build()
    steps = 0
    while True:
        gpt.train(STEPS_AT_A_TIME, first=steps)
        steps += STEPS_AT_A_TIME
        if steps == STEPS_AT_A_TIME:
            size = write(path, snapshot(memory)).stat().st_size
            wanted = int(megabytes * 1e6 / size * STEPS_AT_A_TIME)
        if steps >= wanted:
            write(path, snapshot(memory))
            return gpt


def measured(path: Path, gpt: Gpt, runs: int) -> dict[str, object]:
    """Study a snapshot in processes of its own; return the fastest, and whether it is true."""
    best: dict[str, object] = {}
    for _ in range(runs):
        done = subprocess.run(
            [sys.executable, "-c", _STUDY, str(path)], capture_output=True, text=True, check=True
        )
        found = json.loads(done.stdout)
        if not best or found["wall_s"] < best["wall_s"]:
            best = found
    best["file_bytes"] = path.stat().st_size
    best["peak_is_true"] = best["peak"] == gpt.memory.peak
    best["kinds_are_true"] = best["kinds"] == truth(gpt.memory)
    best["moment_is_true"] = (
        best["at_ns"] == (gpt.memory.peak_us - gpt.memory.events[0]["time_us"]) * 1000
    )
    return best


def damaged(count: int, folder: Path) -> bool:
    """Read mutants and hostile pickles, each in a child; print what came of them."""
    good = pickle.dumps(snapshot(trained(2, layers=2).memory), protocol=4)
    path, refused, slowest = folder / "mutant.pickle", 0, 0.0
    for data in mutants(good, count):
        path.write_bytes(data)
        begin = time.perf_counter()
        try:
            read_snapshot(path)
        except RidgelineError as error:
            refused += "\n" not in error.message
        slowest = max(slowest, time.perf_counter() - begin)
    canary = folder / "canary"
    named = dict(hostile(f"touch {canary}"))
    stopped = 0
    for data in named.values():
        path.write_bytes(data)
        try:
            read_snapshot(path)
        except RidgelineError:
            stopped += 1
    most = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(f"mutants: {count - refused:,} read, {refused:,} refused in a sentence, of {count:,}; "
          f"the slowest {slowest:.2f} s; the largest child {most / 1024:.0f} MiB")  # fmt: skip
    print(f"hostile: {stopped} of {len(named)} refused; canary made: {canary.exists()}")
    is_bounded = slowest <= MAX_MUTANT_S and most <= MAX_MUTANT_KIB
    return is_bounded and stopped == len(named) and not canary.exists()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mb", type=float, nargs="*", default=[20.0, 200.0])
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--stacks", choices=["python", "all"], default="all")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--mutants", type=int, default=0)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        if options.mutants:
            return 0 if damaged(options.mutants, Path(scratch)) else 1
        is_good = True
        for megabytes in options.mb:
            name = f"gpt-{megabytes:g}mb-{options.stacks}.pickle"
            path = (options.keep or Path(scratch)) / name
            gpt = made(path, megabytes, options.layers, options.stacks)
            found = measured(path, gpt, options.runs)
            del gpt
            is_true = all(found[f"{what}_true"] for what in ("peak_is", "kinds_are", "moment_is"))
            verdict = "true" if is_true else "NOT true"
            print(f"{found['file_bytes'] / 1e6:,.0f} MB, {found['events']:,} events, stacks "
                  f"{options.stacks}: {found['wall_s']:.2f} s wall, {found['cpu_s']:.2f} s of "
                  f"processor time, {found['bytes'] / 1e9:.2f} GB; peak, moment and kinds are "
                  f"{verdict}; load {os.getloadavg()[0]:.1f}")  # fmt: skip
            is_good &= is_true
            if megabytes <= 200:
                is_good &= found["cpu_s"] <= MAX_S and found["bytes"] <= MAX_BYTES
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
