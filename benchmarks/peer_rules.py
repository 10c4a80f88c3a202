"""How peers tell that B is slower than A, each as a function of two series of samples.

Samples are in nanoseconds, all of A before all of B, each about 10 ms long. FASTER and SLOWER are
said of B; UNDECIDED stands for "no difference called". Each rule is ours, written after the peer's
source; what that does is said beside it.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.benchmark import Measurement
from torch.utils.benchmark.utils.common import TaskSpec, trim_sigfig

from ridgeline.records.facts import Verdict
from ridgeline.statistics.samples import average_ranks
from ridgeline.statistics.significance import normal_cdf, welch_p_value

Floats = NDArray[np.float64]

ALPHA = 0.05
PYTEST_LIMIT_PERCENT = 5.0
DO_BENCH_SHARE = 0.02
DO_BENCH_SAMPLES = 10
"""do_bench's 100 ms, in samples of 10 ms."""


def welch(first: Floats, second: Floats) -> Verdict:
    """Welch's t test at 5 %."""
    return _by(welch_p_value(first, second) < ALPHA, bool(second.mean() > first.mean()))


def mann_whitney(first: Floats, second: Floats) -> Verdict:
    """Mann-Whitney's U at 5 %, by its normal approximation with ties and continuity, which 60
    samples of each allow."""
    n, m = first.size, second.size
    ranks = average_ranks(np.concatenate([first, second]))
    u = float(ranks[n:].sum()) - m * (m + 1) / 2
    _, ties = np.unique(ranks, return_counts=True)
    total = n + m
    variance = n * m / 12 * (total + 1 - float((ties**3 - ties).sum()) / (total * (total - 1)))
    away = u - n * m / 2
    score = max(abs(away) - 0.5, 0.0) / math.sqrt(variance) if variance > 0 else 0.0
    return _by(2 * normal_cdf(-score) < ALPHA, away > 0)


def measurement(samples: Floats) -> Measurement:
    """What torch.utils.benchmark's `Timer.blocked_autorange` returns: every block's time."""
    spec = TaskSpec(stmt="call()", setup="pass", num_threads=torch.get_num_threads())
    return Measurement(number_per_run=1, raw_times=(samples / 1e9).tolist(), task_spec=spec)


def torch_intervals(first: Measurement, second: Measurement) -> Verdict:
    """torch.utils.benchmark by its own precision: medians farther apart than the sum of the two
    intervals behind `Measurement.significant_figures` (1.645 standard deviations of the middle
    half, over the root of its number). The library tests nothing; this is what a careful reader
    can take from it."""
    apart = abs(second.median - first.median)
    return _by(apart > _reach(first) + _reach(second), second.median > first.median)


def torch_table(first: Measurement, second: Measurement) -> Verdict:
    """torch.utils.benchmark by its table: `Compare` with `trim_significant_figures` and `colorize`
    prints medians cut to their significant figures, and everything within 1 % of the best in the
    best's colour. Different: other figures and another colour."""
    shown = [trim_sigfig(m.median, m.significant_figures) for m in (first, second)]
    ratio = second.median / first.median
    return _by(shown[0] != shown[1] and max(ratio, 1 / ratio) > 1.01, ratio > 1)


def pytest_benchmark(first: Floats, second: Floats) -> Verdict:
    """pytest-benchmark with `--benchmark-compare-fail=median:5%`: the stored run's median and this
    run's, `current / stored * 100 - 100 > 5` fails. There is no test of significance, and only
    slower can fail. By default it times for 1 s, 100 rounds of 10 ms; here as many as the others
    have."""
    ratio = float(np.median(second) / np.median(first))
    return "SLOWER" if ratio * 100 - 100 > PYTEST_LIMIT_PERCENT else "UNDECIDED"


def do_bench(first: Floats, second: Floats) -> Verdict:
    """triton.testing.do_bench: 25 ms of warm-up, then `100 ms / estimate` calls, each timed alone
    behind a cleared cache, and their mean. It gives one number; two of them, one after the other,
    are compared by eye, here called different beyond 2 %. Ten samples of A, then ten of B."""
    ratio = float(second[:DO_BENCH_SAMPLES].mean() / first[-DO_BENCH_SAMPLES:].mean())
    return _by(max(ratio, 1 / ratio) > 1 + DO_BENCH_SHARE, ratio > 1)


def _reach(found: Measurement) -> float:
    ordered = sorted(found.times)
    middle = np.array(ordered[len(ordered) // 4 : math.ceil(3 * len(ordered) / 4)])
    return max(1.645 * float(middle.std()) / math.sqrt(middle.size), 25e-9)


def _by(different: bool, slower: bool) -> Verdict:
    if not different:
        return "UNDECIDED"
    return "SLOWER" if slower else "FASTER"
