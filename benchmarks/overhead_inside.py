"""What `ridgeline run` adds to a CPU step, timed from inside: a clock around every call of ours.

    OMP_NUM_THREADS=1 python benchmarks/overhead_inside.py

Whole programs side by side (`overhead.py`) differ by 2 % with nothing to tell them apart; the
calls the seams make can be timed one by one. Each timing takes some 0.1 µs, which is left in.
Besides: how often the seams call us once the windows are over.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean, median
from time import perf_counter_ns
from typing import Any

import torch
from overhead_program import small
from overhead_runner import threads

from ridgeline.harness.capture.seams import begin, end
from ridgeline.harness.capture.session import Session
from ridgeline.records.run import Settings
from ridgeline.records.run_directory import RunDirectory

PHASES = ("input", "call", "backward", "optimizer", "zero_grad")
CALLS = ("input_seen", *(f"{phase}_{end}" for phase in PHASES for end in ("begins", "ends")))
STEPS = 1200
FIRST = 33
"""Steps that are all looked at closely, to know the program."""


class Spent:
    def __init__(self) -> None:
        self.ns = 0
        self.calls = 0

    def timed(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any) -> Any:
            began = perf_counter_ns()
            try:
                return call(*arguments)
            finally:
                self.ns += perf_counter_ns() - began
                self.calls += 1

        return wrapped


def taken(settings: Settings, spent: Spent, folder: Path) -> tuple[list[int], list[int], list[int]]:
    """Of each step: its length, the time of our calls, and how many."""
    step = small()
    session = begin(torch, str(RunDirectory.make(folder, "inside").path), settings)
    lengths, ours, calls = [], [], []
    for _ in range(STEPS):
        ns, many, began = spent.ns, spent.calls, perf_counter_ns()
        step()
        lengths.append(perf_counter_ns() - began)
        ours.append(spent.ns - ns)
        calls.append(spent.calls - many)
    end(session, "finished", "")
    return lengths, ours, calls


def main() -> None:
    spent = Spent()
    for name in CALLS:
        setattr(Session, name, spent.timed(getattr(Session, name)))
    with tempfile.TemporaryDirectory() as folder:
        every = Settings(trace_steps=0, full=True)
        lengths, ours, _ = taken(every, spent, Path(folder))
        usual = taken(Settings(), spent, Path(folder))
    later = sum(ours[FIRST:]) / sum(lengths[FIRST:])
    print(f"torch {torch.__version__}, threads {threads()}, {STEPS} steps")
    print(f"step {median(lengths) / 1e6:.2f} ms, of it ours {mean(ours[FIRST:]) / 1e3:.0f} µs")
    print(f"light window: {100 * later:.2f} % of a step")
    print(f"  with its first {FIRST} steps: {100 * sum(ours) / sum(lengths):.2f} %")
    print(f"after the windows: {mean(usual[2][-200:]):.1f} calls of ours a step")


if __name__ == "__main__":
    main()
