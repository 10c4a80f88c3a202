"""Rounds: every arm once, in an order drawn anew each time.

The unit of everything that is said afterwards. Interleaved, a machine that drifts or stalls hits
all arms alike; shuffled, no arm gains by its place. Timing one arm fully and then the other called
identical code different in 41 % of runs (Welch, a busy 2-core host), rounds in 5 %.
"""

from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from msgspec import Struct

from ridgeline.measure.clock import Reading
from ridgeline.measure.deadline import BudgetEnded

Stopped = Literal["decided", "budget", "all rounds", "interrupted"]


class Block(Struct, frozen=True):
    """One arm in one round."""

    reading: Reading
    calls: int
    throttled: str = ""
    """Why the device held its clocks down meanwhile; "" where it did not."""


class Round(Struct, frozen=True):
    blocks: tuple[Block, ...]
    """By arm."""
    positions: tuple[int, ...]
    """By arm: its place in the round, from 0."""
    process: int
    """Which set of processes it ran in."""

    @property
    def throttled(self) -> str:
        return next((block.throttled for block in self.blocks if block.throttled), "")


Shot = Callable[[], Block]
Decide = Callable[[Sequence[Round]], bool]


class Rounds:
    """The rounds so far. Goes on across sets of processes: `run` may be called again."""

    def __init__(self, seed: int, now_ns: Callable[[], int]) -> None:
        self.taken: list[Round] = []
        self.elapsed_ns = 0
        self._random = np.random.default_rng(seed)
        self._now_ns = now_ns

    def run(
        self,
        shots: Sequence[Shot],
        *,
        until: Sequence[int],
        limit_ns: float,
        decide: Decide,
        process: int = 0,
        on_round: Callable[[int], None] = lambda taken: None,
    ) -> Stopped:
        """Take rounds up to the last of `until`, or until the limit; `decide` is asked at each of
        `until` and may end it. A round that would end beyond the limit is not begun. What was taken
        before Ctrl-C stays."""
        start, begun_with = self._now_ns(), len(self.taken)
        spent = self.elapsed_ns
        try:
            while len(self.taken) < until[-1]:
                elapsed = self._now_ns() - start
                # By the mean round, not the longest: one stall would end a run far from its limit.
                if elapsed + elapsed / max(len(self.taken) - begun_with, 1) > limit_ns:
                    return "budget"
                self.taken.append(self._round(shots, process))
                self.elapsed_ns = spent + self._now_ns() - start
                on_round(len(self.taken))
                if len(self.taken) in until and decide(self.taken):
                    return "decided"
        except KeyboardInterrupt:
            return "interrupted"
        except BudgetEnded:  # in the middle of a round, which is lost
            return "budget"
        return "all rounds"

    def _round(self, shots: Sequence[Shot], process: int) -> Round:
        order = self._random.permutation(len(shots))
        blocks: dict[int, Block] = {}
        for arm in order:
            blocks[int(arm)] = shots[int(arm)]()
        positions = np.argsort(order)
        return Round(
            tuple(blocks[arm] for arm in range(len(shots))),
            tuple(int(place) for place in positions),
            process,
        )
