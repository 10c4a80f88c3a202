"""Steps as a program would leave them, with noise of a fixed seed."""

from collections.abc import Mapping, Sequence

import numpy as np

from ridgeline.records.run import Phase, Step, StepWindow

MS = 1_000_000
BASE: dict[Phase, float] = {
    "input": 10.0, "transfer": 2.0, "forward": 30.0, "backward": 45.0, "optimizer": 8.0,
}  # fmt: skip
"""Milliseconds of the phases of a step of 100 ms; 5 are in none."""


def step(
    index: int,
    phases: Mapping[Phase, float] = BASE,
    *,
    ms: float | None = None,
    window: StepWindow = "light",
    device: bool = False,
    compile_ms: float = 0.0,
    samples: int = 32,
    at_ms: float | None = None,
) -> Step:
    held = {phase: round(value * MS) for phase, value in phases.items()}
    total = round((ms if ms is not None else sum(phases.values()) + 5.0) * MS)
    start = round((at_ms if at_ms is not None else index * 100.0) * MS)
    return Step(
        index=index, start_ns=start, dur_ns=total, window=window, host=held,
        device_ns=total if device else None, device=held if device else {},
        compile_ns=round(compile_ms * MS), samples=samples,
    )  # fmt: skip


def noisy(
    count: int, *, first: int = 0, seed: int = 1, spread: float = 0.02, device: bool = False,
    phases: Mapping[Phase, float] = BASE, correlation: float = 0.0,
) -> list[Step]:  # fmt: skip
    """Light steps whose every phase is longer or shorter together."""
    factors = noise(count, seed, spread, correlation)
    return [
        step(first + i, {p: v * f for p, v in phases.items()}, ms=(sum(phases.values()) + 5) * f,
             device=device)
        for i, f in enumerate(factors)
    ]  # fmt: skip


def noise(count: int, seed: int, spread: float, correlation: float = 0.0) -> Sequence[float]:
    drawn = np.random.default_rng(seed).normal(size=count + 50)
    for i in range(1, drawn.size):
        drawn[i] = correlation * drawn[i - 1] + (1 - correlation**2) ** 0.5 * drawn[i]
    return [float(x) for x in 1 + spread * drawn[50:]]
