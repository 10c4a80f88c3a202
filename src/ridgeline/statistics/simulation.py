"""Simulated timings of a busy machine, for `selftest`, benchmarks and tests.

All samples come from one series in time: an AR(1) process of the logarithms (a lag-1 correlation of
0.45 and a spread of 0.10 were measured on a busy 2-core host), a drift that is half a straight line
and half a random walk, and stalls. The variants take their turns in this series.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ridgeline.statistics.analysis import RoundTable

Floats = NDArray[np.float64]

_TYPICAL_NS = 1e7
_TIME_SLICE_NS = 4e6  # a process runs 3 to 6 ms before others of its priority get their turn
_STALL_FACTORS = (1.3, 4.0)  # a stalled sample takes 30 to 300 % longer


def simulated_rounds(
    rounds: int,
    variants: int = 3,
    *,
    effects: Sequence[float] = (),
    sigma: float = 0.10,
    autocorrelation: float = 0.45,
    drift: float = 0.2,
    stalls: float = 0.0,
    seed: int,
) -> RoundTable:
    """Return simulated rounds with every variant once a round, in shuffled order. Variant i takes
    `effects[i]` times as long as the baseline (by default 1). `drift` is the share by which the
    level moves over the run; `stalls` is the share of samples that stall."""
    factors = np.ones(variants) if not effects else np.asarray(effects, np.float64)
    if factors.shape != (variants,):
        raise ValueError(f"{variants} variants need as many effects, not {factors.size}")
    rng = np.random.default_rng(seed)
    order = rng.permuted(np.tile(np.arange(variants), (rounds, 1)), axis=1)
    positions = np.argsort(order, axis=1)
    series = _series(rng, rounds * variants, sigma, autocorrelation, drift, stalls)
    samples = np.take_along_axis(series.reshape(rounds, variants), positions, axis=1) * factors
    return RoundTable(samples=samples, positions=positions, process=None)


def simulated_crowd(
    rounds: int,
    variants: int = 3,
    *,
    effects: Sequence[float] = (),
    taken: float,
    sigma: float = 0.03,
    seed: int,
) -> tuple[RoundTable, RoundTable]:
    """Return simulated rounds by wall time and by processor time, on a machine where other programs
    hold the processors for a share `taken` of the time. Processor time has some noise of its own,
    from caches that others emptied. After every few milliseconds of processor time others may have
    their turn."""
    processor = simulated_rounds(
        rounds, variants, effects=effects, sigma=sigma, drift=0.1, stalls=0.02, seed=seed
    )
    rng = np.random.default_rng([seed, 1])
    mean_turn_ns = taken / (1 - taken) * _TIME_SLICE_NS
    turns = rng.poisson(processor.samples / _TIME_SLICE_NS)
    waited = rng.gamma(np.maximum(turns, 1e-9), mean_turn_ns)
    wall = RoundTable(samples=processor.samples + waited, positions=processor.positions)
    return wall, processor


def sequential_samples(
    count: int,
    *,
    effect: float = 1.0,
    sigma: float = 0.10,
    autocorrelation: float = 0.45,
    drift: float = 0.2,
    stalls: float = 0.0,
    seed: int,
) -> tuple[Floats, Floats]:
    """Return `count` samples of one variant and then `count` of another: timing without rounds."""
    rng = np.random.default_rng(seed)
    series = _series(rng, 2 * count, sigma, autocorrelation, drift, stalls)
    return series[:count], series[count:] * effect


def _series(
    rng: np.random.Generator,
    count: int,
    sigma: float,
    autocorrelation: float,
    drift: float,
    stalls: float,
) -> Floats:
    steps = rng.normal(size=count)
    steps[1:] *= np.sqrt(1 - autocorrelation**2)
    level = np.empty(count)
    carried = 0.0
    for at, step in enumerate(steps.tolist()):
        carried = autocorrelation * carried + step
        level[at] = carried
    level *= sigma
    level += rng.choice([-drift, drift]) * np.linspace(0, 1, count)
    level += np.cumsum(rng.normal(size=count)) * drift / (2 * np.sqrt(count))
    stalled = rng.random(count) < stalls
    level[stalled] += np.log(rng.uniform(*_STALL_FACTORS, size=int(stalled.sum())))
    series: Floats = _TYPICAL_NS * np.exp(level)
    return series
