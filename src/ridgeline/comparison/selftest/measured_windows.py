"""Windows taken on this machine: rounds of all arms, then two of them one after the other, as many
samples of each, so that both procedures meet the same machine."""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ridgeline.comparison.options import Say
from ridgeline.comparison.selftest.windows import EFFECTS, Judged, Window, judge, one_candidate
from ridgeline.comparison.settle import kept
from ridgeline.measure.rounds import Block, Round, Rounds, Shot
from ridgeline.statistics.rounds import RoundTable

Floats = NDArray[np.float64]

LONG, SHORT = 60, 30
"""Rounds in a window: a comparison's usual number, or half of it where too few would fit."""
ENOUGH_WINDOWS = 20
"""Below, the interval of a rate of 5 % reaches beyond 25 %."""


class InTurn(Struct, frozen=True):
    """One arm fully, then the other."""

    first: tuple[Block, ...]
    second: tuple[Block, ...]

    def samples(self, by_events: bool) -> tuple[Floats, Floats]:
        """Nanoseconds a call."""
        first, second = ([per_call(b, by_events) for b in arm] for arm in (self.first, self.second))
        return np.array(first), np.array(second)


class Taken(Struct, frozen=True):
    """Whole windows only."""

    rounds: tuple[tuple[Round, ...], ...]
    sequences: tuple[InTurn, ...]
    stopped: Literal["budget", "interrupted"]


def window_length(limit_ns: float, block_ns: float, arms: int) -> int:
    """The longer windows where enough of them fit."""
    fitting = limit_ns / (LONG * (arms + 2) * max(block_ns, 1.0))
    return LONG if fitting >= ENOUGH_WINDOWS else SHORT


def take(
    shots: Sequence[Shot],
    *,
    length: int,
    limit_ns: float,
    now_ns: Callable[[], int],
    seed: int,
    between: Callable[[], None],
    say: Say,
) -> Taken:
    """Windows until the limit: one at least, however long it takes. Arm 0 is the baseline, arm 2
    the identical candidate. `between` is called between two windows."""
    rounds = Rounds(seed, now_ns)
    windows: list[tuple[Round, ...]] = []
    sequences: list[InTurn] = []
    start = now_ns()
    stopped: Literal["budget", "interrupted"] = "budget"
    try:
        while not windows or (now_ns() - start) * (1 + 1 / len(windows)) <= limit_ns:
            began_with, number = len(rounds.taken), len(windows) + 1
            ended = rounds.run(
                shots,
                until=(began_with + length,),
                limit_ns=math.inf,
                decide=lambda taken: False,
                on_round=lambda taken: say(f"window {number}, round {taken - began_with}"),  # noqa: B023
            )
            if ended == "interrupted":
                raise KeyboardInterrupt
            say(f"window {number}, one after the other")
            sequence = InTurn(*(tuple(shots[a]() for _ in range(length)) for a in (0, 2)))
            windows.append(tuple(rounds.taken[began_with:]))
            sequences.append(sequence)
            between()
    except KeyboardInterrupt:
        if not windows:
            raise
        stopped = "interrupted"
    return Taken(tuple(windows), tuple(sequences), stopped)


def judge_all(taken: Taken, by_events: bool, seed: int, say: Say) -> tuple[list[Judged], int]:
    """Each window with each candidate, and how many rounds were left out. The sequence is the same
    for all: its second arm is scaled by the effect, since to time three more arms would take a
    third of the windows away."""
    judged, discarded = [], 0
    for at, (window, sequence) in enumerate(zip(taken.rounds, taken.sequences, strict=True)):
        say(f"judging window {at + 1} of {len(taken.rounds)}")
        used, left_out, _ = kept(window)
        discarded += left_out
        table = table_of(used, by_events)
        first, second = sequence.samples(by_events)
        for arm, effect in enumerate(EFFECTS, start=2):
            one = Window(effect, one_candidate(table, arm), first, second * (1.0 + effect))
            judged.append(judge(one, seed + at))
    return judged, discarded


def table_of(rounds: Sequence[Round], by_events: bool) -> RoundTable:
    """All arms, as `analyse` takes them."""
    return RoundTable(
        samples=np.array([[per_call(b, by_events) for b in r.blocks] for r in rounds]),
        positions=np.array([r.positions for r in rounds]),
    )


def per_call(block: Block, by_events: bool) -> float:
    """Nanoseconds; by the wall clock where events miss work on another stream."""
    return (block.reading.total_ns if by_events else block.reading.wall_ns) / block.calls
