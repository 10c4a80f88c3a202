"""All that the rounds of a comparison say: the control, a verdict on each candidate, the machine.

One function, used by the command at each look, by `selftest` and by the benchmarks, so that the
figures measured there hold for what is shipped.

The floor, below which no candidate is called different, is how far apart identical code looked.
Half the width of the control's interval would be the other choice. Measured on 3,000 simulated
comparisons of 60 rounds, sigma 0.10: with half the width 86 % of 5 % effects were called (58 %
where samples stall), because the control has one copy to compare with and its interval is wider
than the candidates' own; with the distance found, 93 % (73 %); with no floor, 93 % (74 %).
Identical code was called different in 1.6, 4.1 and 4.4 %. The interval guards against chance
already; the distance found guards against what is no chance, and the width does not.
"""

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.records.comparison import Control, DecidedBy, Drift, Estimate, OrderEffect
from ridgeline.records.facts import Verdict
from ridgeline.statistics.drift import drift
from ridgeline.statistics.holm import holm_alphas
from ridgeline.statistics.order import order_effect
from ridgeline.statistics.paired import paired_ratio
from ridgeline.statistics.verdict import differs, judge

CONTROL_SHARE = 0.2
"""Of the level, for "identical code differs": 1 % at 5 %. At 5 % every twentieth comparison would
be thrown away for nothing."""


class RoundTable(Struct, frozen=True):
    """The rounds so far: arms[0] is the baseline, arms[1] the control, the rest are candidates."""

    samples: NDArray[np.float64]
    """(rounds, arms), nanoseconds a call."""
    positions: NDArray[np.integer]
    """(rounds, arms), the place of each arm within its round, from 0."""
    process: NDArray[np.integer] | None = None
    """(rounds,), the set of processes the round ran in."""
    names: tuple[str, ...] = ()
    """Of the arms, for sentences."""

    def checked(self) -> "RoundTable":
        shape = self.samples.shape
        if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
            raise ValueError(f"rounds need a baseline and a control at least, not {shape}")
        if self.positions.shape != shape:
            raise ValueError(f"{shape} samples need as many places, not {self.positions.shape}")
        if (np.sort(self.positions, axis=1) != np.arange(shape[1])).any():
            raise ValueError("the places of a round are 0, 1, 2 … in some order")
        if self.names and len(self.names) != shape[1]:
            raise ValueError(f"{shape[1]} arms need as many names, not {len(self.names)}")
        return self


class Analysis(Struct, frozen=True):
    """What the rounds say at one look; estimates, verdicts and whys are the candidates'."""

    control: Control
    estimates: tuple[Estimate, ...]
    verdicts: tuple[Verdict, ...]
    whys: tuple[str, ...]
    drift: Drift
    order: OrderEffect
    decided_by: tuple[DecidedBy, ...] = ()
    """Which measure decided each verdict; "" for UNDECIDED."""
    processor_estimates: tuple[Estimate, ...] = ()
    """The ratios by processor time; empty if processor time may not be used (`processor_time`)."""


def analyse(table: RoundTable, *, alpha: float, threshold: float, seed: int = 0) -> Analysis:
    """`alpha` is the level of this look for all candidates together (Holm shares it out),
    `threshold` the share that matters."""
    samples = table.checked().samples
    base, process = samples[:, :2], table.process
    aa = paired_ratio(base[:, 0], base[:, 1], seed=seed, process=process)
    shown = aa.estimate(alpha)
    control = Control(
        estimate=shown,
        floor=max(shown.ratio, 1 / shown.ratio) - 1,
        differs=differs(aa.estimate(alpha * CONTROL_SHARE), threshold=threshold),
    )
    ratios = [
        paired_ratio(base, samples[:, arm], seed=seed, process=process)
        for arm in range(2, samples.shape[1])
    ]
    levels = holm_alphas([ratio.p_value for ratio in ratios], alpha)
    estimates = [ratio.estimate(level) for ratio, level in zip(ratios, levels, strict=True)]
    judged = [judge(estimate, control, threshold=threshold) for estimate in estimates]
    return Analysis(
        control=control,
        estimates=tuple(estimates),
        verdicts=tuple(verdict for verdict, _ in judged),
        whys=tuple(why for _, why in judged),
        decided_by=tuple("" if verdict == "UNDECIDED" else "clock" for verdict, _ in judged),
        drift=drift(np.exp(np.log(base).mean(axis=1))),
        order=order_effect(samples, table.positions, names=table.names, process=process, seed=seed),
    )
