"""Variations of a studied model: sweeps over a size, the largest batch that fits, and generation.

A sweep counts and times the model at each size and fits laws. It then predicts the next size and
measures it too, so that the laws are tested on a point they were not fitted to.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Literal

import torch

from ridgeline.cost.study.running import Options, Say, can_run, make_step, time_step
from ridgeline.cost.study.target import Dimension, Prepared, quiet_stdout, resize_inputs
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.measure.generation import time_generation
from ridgeline.records.latency import Generation
from ridgeline.records.model import Fit, Law, Sweep, SweepPoint
from ridgeline.statistics.law import fit_law, predict

QUANTITIES = {"flops": "FLOP", "peak_bytes": "B", "median_ms": "ms"}


def parse_sweep(text: str) -> tuple[Dimension, tuple[int, ...]]:
    name, equals, values = text.partition("=")
    sizes = tuple(int(v) for v in values.split(",") if v.strip().isdecimal() and int(v) > 0)
    if name not in ("batch", "seq") or not equals or len(sizes) != len(values.split(",")):
        raise UsageError(
            f"--sweep {text!r} is not understood", "write batch=1,2,4,8 or seq=128,256,512"
        )
    if len(set(sizes)) < 2:
        raise UsageError(
            "--sweep needs at least two sizes to fit a law", "for example batch=1,2,4,8"
        )
    dimension: Dimension = "batch" if name == "batch" else "seq"
    return dimension, tuple(sorted(set(sizes)))


def sweep(
    dimension: Dimension, sizes: tuple[int, ...], point_at: Callable[[int], SweepPoint]
) -> Sweep:
    measured: list[SweepPoint] = []
    notes: list[str] = []
    failure: RidgelineError | None = None
    for size in sizes:
        try:
            measured.append(point_at(size))
        except RidgelineError as error:  # a size that fails is missing from the table
            notes.append(f"{dimension} {size}: {error.message}")
            failure = error
    if len(measured) < 2 and failure is not None:
        raise failure
    points = tuple(measured)
    notes += [f"{dimension} {p.size}: {p.note}" for p in points if p.note]
    laws = _laws(points)
    next_size = 2 * sizes[-1] - sizes[-2] if _evenly_spaced(sizes) else 2 * sizes[-1]
    predicted = {name: predict(law, next_size) for name, law in laws.items()}
    observed: dict[str, float] = {}
    try:
        check = point_at(next_size)
    except RidgelineError as error:
        notes.append(f"{dimension} {next_size} could not be tried: {error.message}")
    else:
        observed = {n: v for n in QUANTITIES if (v := getattr(check, n)) is not None}
        if check.note:
            notes.append(f"{dimension} {next_size}: {check.note}")
    return Sweep(
        dimension=dimension,
        points=points,
        laws=laws,
        next_size=next_size,
        predicted=predicted,
        observed=observed,
        notes=tuple(notes),
    )


def _evenly_spaced(sizes: tuple[int, ...]) -> bool:
    steps = {b - a for a, b in pairwise(sizes)}
    return len(sizes) > 2 and len(steps) == 1


def _laws(points: tuple[SweepPoint, ...]) -> dict[str, Law]:
    laws: dict[str, Law] = {}
    for name, unit in QUANTITIES.items():
        known = [(p.size, getattr(p, name)) for p in points if getattr(p, name) is not None]
        if len(known) >= 2:
            sizes, values = zip(*known, strict=True)
            laws[name] = fit_law(sizes, values, unit=unit)
    return laws


MAX_PASSES = 60
MAX_BATCH = 2**22


def largest_batch(
    peak_of: Callable[[int], int], budget_bytes: int, mode: Literal["inference", "training"]
) -> Fit:
    """Return the largest batch whose predicted peak, `peak_of(batch)`, is within the budget. The
    peak grows almost linearly with the batch, so a line between the largest batch that fits and the
    smallest that does not leads to the border in a few passes."""
    tried: dict[int, int] = {}

    def peak(batch: int) -> int:
        if batch not in tried:
            if len(tried) >= MAX_PASSES:
                raise RidgelineError(f"no border found in {MAX_PASSES} passes")
            tried[batch] = peak_of(batch)
        return tried[batch]

    fits, fails = 0, 1
    while peak(fails) <= budget_bytes:
        fits = fails
        if fits >= MAX_BATCH:
            break
        fails = _beyond(tried, fits, budget_bytes)
    halving = False
    while fails - fits > 1 and fits < MAX_BATCH:
        width = fails - fits
        middle = (fits + fails) // 2 if halving else _between(tried, fits, fails, budget_bytes)
        if peak(middle) <= budget_bytes:
            fits = middle
        else:
            fails = middle
        # If memory grows in steps, the line may miss. After a poor step, halve the interval.
        halving = not halving and fails - fits > width // 2
    return Fit(
        budget_bytes=budget_bytes,
        mode=mode,
        batch=fits,
        peak_bytes=tried.get(fits, 0),
        next_batch=fails if fits < MAX_BATCH else 0,
        next_peak_bytes=tried.get(fails, 0) if fits < MAX_BATCH else 0,
        passes=len(tried),
    )


def _beyond(tried: dict[int, int], fits: int, budget: int) -> int:
    """Return a batch that should be just too large, by a line through the last two tried."""
    smaller = [b for b in tried if b < fits]
    if smaller:
        known = max(smaller)
        slope = (tried[fits] - tried[known]) / (fits - known)
        if slope > 0:
            guess = fits + int((budget - tried[fits]) / slope) + 1
            return min(max(guess, fits + 1), MAX_BATCH)
    return min(fits * 2, MAX_BATCH)


def _between(tried: dict[int, int], fits: int, fails: int, budget: int) -> int:
    if fits in tried:
        slope = (tried[fails] - tried[fits]) / (fails - fits)
        guess = fits + int((budget - tried[fits]) / slope) if slope > 0 else fits
        if fits < guess < fails:
            return guess
        if guess <= fits:
            return fits + 1
        return fails - 1
    return (fits + fails) // 2


def sweep_model(prepared: Prepared, options: Options, host: torch.device, say: Say) -> Sweep:
    assert options.sweep is not None
    dimension, sizes = options.sweep

    def point_at(size: int) -> SweepPoint:
        say(f"{dimension} {size}")
        args, kwargs = resize_inputs(prepared.args, prepared.kwargs, dimension, size, virtual=True)
        account = prepared.account(
            training=options.training, optimizer=options.optimizer, args=args, kwargs=kwargs
        )
        flops = sum(account.cost.phases[p].flops for p in account.cost.phases)
        runs, missing = can_run(prepared, options, account.memory, host)
        median = None
        if runs and options.timed:
            args, kwargs = resize_inputs(prepared.args, prepared.kwargs, dimension, size)
            step = make_step(prepared, options, args, kwargs)
            median = time_step(prepared, step, host, options, 1.0).summary.median_ns / 1e6
        return SweepPoint(
            size=size,
            flops=flops,
            peak_bytes=account.memory.peak_bytes,
            median_ms=median,
            note=missing,
        )

    return sweep(dimension, sizes, point_at)


def check_variations(prepared: Prepared, options: Options) -> None:
    """Refuse variations that the inputs do not allow, before anything takes long."""
    tensors = [a for a in (*prepared.args, *prepared.kwargs.values()) if torch.is_tensor(a)]
    seq = options.sweep is not None and options.sweep[0] == "seq"
    if seq and not any(t.dim() in (2, 3) for t in tensors):
        raise UsageError(
            "--sweep seq= needs an input of shape [batch, sequence] or [batch, sequence, width]",
            "use --sweep batch=…",
        )
    if options.generate:
        _prompt(prepared)


def _prompt(prepared: Prepared) -> torch.Tensor:
    for value in (*prepared.args, *prepared.kwargs.values()):
        if isinstance(value, torch.Tensor) and value.dim() == 2 and not value.is_floating_point():
            return value
    raise UsageError("--generate needs token ids as input", "for example --input 1x128:int64")


def fit_batch(prepared: Prepared, options: Options, say: Say) -> Fit:
    def peak_of(batch: int) -> int:
        say(f"predicting batch {batch}")
        args, kwargs = resize_inputs(prepared.args, prepared.kwargs, "batch", batch, virtual=True)
        account = prepared.account(
            training=options.training, optimizer=options.optimizer, args=args, kwargs=kwargs
        )
        return account.memory.peak_bytes

    return largest_batch(peak_of, options.fit_bytes, options.mode)


def time_tokens(
    prepared: Prepared, options: Options, host: torch.device, missing: str, say: Say
) -> Generation:
    if missing:
        raise RidgelineError(f"generation was not timed: {missing}")
    prompt = _prompt(prepared)
    say(f"generating {options.generate} tokens")
    try:
        with quiet_stdout():
            return time_generation(
                prepared.model, prompt, options.generate, str(host), 2 * options.budget_s
            )
    except RidgelineError:
        raise
    except (Exception, SystemExit) as error:
        raise prepared.explained(error) from error
