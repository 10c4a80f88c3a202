"""The tool put to the test on this machine: code that is identical, and code that is known to be
slower, timed as `compare` times it and judged as `compare` judges it, window after window."""

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from time import perf_counter_ns

import numpy as np
import torch
from msgspec import Struct

from ridgeline.comparison.arms import BASELINE
from ridgeline.comparison.blocks import even_calls
from ridgeline.comparison.hosting.host import Host
from ridgeline.comparison.options import Say
from ridgeline.comparison.selftest.injected import Product, Slowed, calibrate, spender, work_of
from ridgeline.comparison.selftest.measured_windows import (
    InTurn,
    judge_all,
    per_call,
    take,
    window_length,
)
from ridgeline.comparison.selftest.windows import ALPHA, EFFECTS, THRESHOLD, count, simulated
from ridgeline.comparison.settle import events_agree
from ridgeline.harness.usercode.workload import Workload
from ridgeline.measure.clock import clock_for
from ridgeline.measure.rounds import Shot
from ridgeline.records.selftest import SelfTest
from ridgeline.statistics.correlation import lag1_correlation

WARMUP_SHARE = 0.1
"""Of the budget: all arms are one kernel, so that the first warms it for the others."""
_CANDIDATES = ("identical", *(f"{effect:.0%} slower" for effect in EFFECTS[1:]))


class Bed(Struct, frozen=True):
    """What is timed, warm: one shot an arm, and what became known on the way."""

    host: Host
    shots: tuple[Shot, ...]
    calibrate: Callable[[], None]
    """Makes the slower ones slower by their shares of what the product takes now."""
    block_ns: float
    by_events: bool
    product: Product


def selftest(device: torch.device, *, budget_s: float, seed: int, say: Say) -> SelfTest:
    """Measure for `budget_s`, then simulate. Raises KeyboardInterrupt only where not one window
    was complete."""
    began = perf_counter_ns()
    bed = lay(device, budget_s, say)
    limit_ns = 1e9 * budget_s - (perf_counter_ns() - began)
    length = window_length(limit_ns, bed.block_ns, len(bed.shots))
    bed.host.begin_rounds()
    taken = take(
        bed.shots,
        length=length,
        limit_ns=limit_ns,
        now_ns=perf_counter_ns,
        seed=seed,
        between=bed.calibrate,
        say=say,
    )
    surroundings = bed.host.end_rounds()
    spent_s = (perf_counter_ns() - began) / 1e9
    stopped = taken.stopped
    judged, discarded = judge_all(taken, bed.by_events, seed, say)
    artificial = None
    if stopped == "budget":
        try:
            artificial = simulated(seed, say)
        except KeyboardInterrupt:
            stopped = "interrupted"
    blocks = [r.blocks[0] for window in taken.rounds for r in window]
    alone = [per_call(block, bed.by_events) for block in blocks]
    low, middle, high = np.quantile(alone, [0.25, 0.5, 0.75])
    return SelfTest(
        measured=count(judged, source="measured", noise="this machine", rounds=length),
        simulated=artificial,
        workload=str(bed.product),
        sample_ns=median(block.reading.wall_ns for block in blocks),
        block_calls=tuple(block.calls for block in taken.rounds[0][0].blocks),
        spread=float((high - low) / middle),
        autocorrelation=_autocorrelation(taken.sequences, bed.by_events),
        alpha=ALPHA,
        threshold=THRESHOLD,
        stopped=stopped,
        budget_s=budget_s,
        spent_s=spent_s,
        seed=seed,
        discarded=discarded,
        surroundings=surroundings,
    )


def lay(device: torch.device, budget_s: float, say: Say) -> Bed:
    """Build the arms and warm them up; the control is the baseline once more, as in `compare`."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    product, clock = Product(device), clock_for(str(device))
    spend = spender(device, clock)
    slowed = tuple(Slowed(product, effect, spend) for effect in EFFECTS[1:])
    calls: tuple[Callable[[], object], ...] = (product, product, *slowed)
    arms = (BASELINE, *_CANDIDATES)
    host = Host()

    def now_slower() -> None:
        calibrate(slowed, work_of(product, device, clock))

    warmed = []
    for arm, call in zip(arms, calls, strict=True):
        say(f"{arm}: warming up")
        host.adopt(arm, Workload(name=arm, function=call))
        warmed.append(host.warm_up(arm, WARMUP_SHARE * budget_s / len(arms)))
        if arm == BASELINE:
            now_slower()
    counts = even_calls([w.steady_ns for w in warmed])
    for arm, each in zip(arms, counts, strict=True):
        host.resize(arm, each)
    names = (BASELINE, BASELINE, *_CANDIDATES)
    return Bed(
        host=host,
        shots=tuple(partial(host.block, arm) for arm in names),
        calibrate=now_slower,
        block_ns=sum(
            w.block_ns * each / w.block_calls for w, each in zip(warmed, counts, strict=True)
        )
        / len(warmed),
        by_events=events_agree([w.events_share for w in warmed]),
        product=product,
    )


def _autocorrelation(sequences: Sequence[InTurn], by_events: bool) -> float:
    """Lag 1 of the baseline's samples one after the other, over all windows."""
    return float(np.mean([lag1_correlation(s.samples(by_events)[0]) for s in sequences]))
