"""Windows whose truth is known, each judged as a comparison of its own, and counted.

A window holds one candidate: the several that a self-test times in the same rounds are no family
of guesses, so Holm has no part in it.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.comparison.options import Say
from ridgeline.records.facts import Verdict
from ridgeline.records.selftest import Bench, Procedure, Source, Tally
from ridgeline.statistics.noise import sequential_samples, simulated_rounds
from ridgeline.statistics.rate import wilson
from ridgeline.statistics.rounds import RoundTable, analyse
from ridgeline.statistics.welch import welch_p_value

Floats = NDArray[np.float64]

ALPHA = 0.05
THRESHOLD = 0.02
EFFECTS = (0.0, 0.02, 0.05, 0.10)
"""By how much the candidates are really slower."""
SIMULATED_ROUNDS = 60
SIMULATED_RUNS = (400, 60, 60, 60)
"""Of each effect. A window of 60 rounds takes 12 ms to judge: 7 s in all."""
SIMULATED_NOISE = "simulated: AR(1) of 0.45, spread 10 %, 20 % drift"


class Window(Struct, frozen=True):
    """Rounds of a baseline, its control and one candidate, and the same two one after the other."""

    effect: float
    rounds: RoundTable
    first: Floats
    second: Floats
    """Samples of the baseline, all before those of the candidate."""


class Judged(Struct, frozen=True):
    """What both procedures said of a window."""

    effect: float
    rounds: Verdict
    sequence: Verdict
    log_ratio: float
    """The rounds' estimate."""
    control_differs: bool


def judge(window: Window, seed: int = 0) -> Judged:
    found = analyse(window.rounds, alpha=ALPHA, threshold=THRESHOLD, seed=seed)
    return Judged(
        window.effect,
        found.verdicts[0],
        one_after_the_other(window.first, window.second),
        math.log(found.estimates[0].ratio),
        found.control.differs,
    )


def one_after_the_other(first: Floats, second: Floats) -> Verdict:
    """A fully, then B, Welch's t test: what rounds replace. It cannot say SAME."""
    if welch_p_value(first, second) >= ALPHA:
        return "UNDECIDED"
    return "FASTER" if float(second.mean()) < float(first.mean()) else "SLOWER"


def count(judged: Sequence[Judged], *, source: Source, noise: str, rounds: int) -> Bench:
    """`rounds` in each window. Effects appear in the order of their size."""
    tallies = []
    for effect in sorted({j.effect for j in judged}):
        of_effect = [j for j in judged if j.effect == effect]
        seen = math.expm1(-sum(j.log_ratio for j in of_effect) / len(of_effect))
        tallies += [
            tally("ridgeline", effect, [j.rounds for j in of_effect], seen),
            tally("sequential Welch", effect, [j.sequence for j in of_effect]),
        ]
    return Bench(
        source=source,
        noise=noise,
        rounds=rounds,
        tallies=tuple(tallies),
        controls_differ=sum(j.control_differs for j in judged if j.effect == 0.0),
    )


def tally(
    procedure: Procedure, effect: float, verdicts: Sequence[Verdict], seen: float | None = None
) -> Tally:
    said = Counter(verdicts)
    called = said["SLOWER"] + (said["FASTER"] if effect == 0.0 else 0)
    return Tally(
        procedure=procedure,
        effect=effect,
        windows=len(verdicts),
        faster=said["FASTER"],
        slower=said["SLOWER"],
        same=said["SAME"],
        undecided=said["UNDECIDED"],
        called=wilson(called, len(verdicts)),
        seen=seen,
    )


def one_candidate(table: RoundTable, arm: int) -> RoundTable:
    """The rounds as if only this candidate had run beside the baseline and its control."""
    columns = [0, 1, arm]
    places = table.positions[:, columns]
    return RoundTable(
        samples=table.samples[:, columns],
        positions=np.argsort(np.argsort(places, axis=1), axis=1),
        process=table.process,
    )


def simulated(seed: int, say: Say, runs: Sequence[int] = SIMULATED_RUNS) -> Bench:
    """The same on noise that is the same everywhere. One run's noise serves all effects."""
    judged = []
    for at, window in enumerate(_simulated_windows(seed, runs), start=1):
        say(f"simulated noise: window {at} of {sum(runs)}")
        judged.append(judge(window, seed))
    return count(judged, source="simulated", noise=SIMULATED_NOISE, rounds=SIMULATED_ROUNDS)


def _simulated_windows(seed: int, runs: Iterable[int]) -> Iterator[Window]:
    for effect, number in zip(EFFECTS, runs, strict=True):
        slower = 1.0 + effect
        for run in range(number):
            own = seed * 100_000 + run
            rounds = simulated_rounds(SIMULATED_ROUNDS, effects=(1.0, 1.0, slower), seed=own)
            pair = sequential_samples(SIMULATED_ROUNDS, effect=slower, seed=own)
            yield Window(effect, rounds, *pair)
