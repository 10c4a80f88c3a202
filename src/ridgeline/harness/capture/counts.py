"""What the step in progress has seen.

Calls without gradients or in eval mode are kept apart (`quiet`): in a program that trains they are
evaluation, in one that never does they are its work, and which it is shows only later. Of the other
calls those count that a backward comes to.
"""

import math
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.harness.capture.batches import NOTHING, Amount

MOST_WAITING = 64
"""Calls in a row without a backward: more are no probes."""


class Call(Struct):
    """Of an outermost module, until a backward comes to it."""

    root: int
    given: Amount
    """To the module: where there is no loader."""
    batch: Amount
    """From loaders, handed out since the call before."""
    fetched: int
    """How many batches of the step came before it."""
    first: int
    """Of the autograd nodes it made; `end` is beyond the last. Without any it is never a probe."""
    end: int = 0

    @property
    def samples(self) -> int:
        return max(self.given.samples, self.batch.samples)


class Calls(Struct):
    """Calls of outermost modules, and what they were given."""

    forwards: int = 0
    batches: Amount = NOTHING
    """From loaders."""
    given: dict[int, Amount] = {}
    """To each module: where there is no loader."""
    waiting: list[Call] = []
    """That no backward has come to: those made last, or probes."""
    running: Call | None = None
    asked: bool = False
    """A backward has come: what still waits at the step's end is not of it."""
    fetched: int = 0

    def batch(self, more: Amount) -> None:
        self.batches = _sum(self.batches, more)

    def give(self, root: int, more: Amount) -> None:
        self.given[root] = _sum(self.given.get(root, NOTHING), more)

    def begins(self, root: int, given: Amount, batch: Amount, first: int) -> None:
        """`first`: of the autograd nodes that the call will make."""
        self.fetched += bool(batch.samples)
        self.running = Call(root, given, batch, self.fetched, first, first)
        self.waiting.append(self.running)
        if len(self.waiting) > MOST_WAITING:  # a cell called once a token, a policy once a move
            self._settle([True] * len(self.waiting))

    def ends(self, end: int) -> None:
        if self.running is not None:
            self.running.end, self.running = end, None

    def backward(self, met: Callable[[list[Call]], list[bool]]) -> None:
        """`met`: which of the calls the backward goes through."""
        self.asked = True
        if len(self.waiting) <= 1:  # nearly always: 6 µs a step less
            for call in self.waiting:
                self._take(call)
            self.waiting = []
            return
        found = met(self.waiting)
        # None at all: the way to them is not one that autograd shows.
        nothing = not (any(found) or self.given or self.batches.samples)
        self._settle([True] * len(found) if nothing else found)

    def _settle(self, met: list[bool]) -> None:
        """A batch counts with any call that came after it; what makes no node may have made the
        batch ready for one that does."""
        counts = {call.fetched for call, one in zip(self.waiting, met, strict=True) if one}
        working = {call.fetched for call in self.waiting if call.end > call.first}
        for call, one in zip(self.waiting, met, strict=True):
            if call.fetched in counts or call.fetched not in working:
                self.batch(call.batch)
                call.batch = NOTHING
            if (one or call.end <= call.first) and call.given.samples:
                self.give(call.root, call.given)
                call.given = NOTHING
        held = {call.fetched for call in self.waiting if call.batch.samples}
        self.waiting = [c for c in self.waiting if c.given.samples or c.fetched in held]

    def _take(self, call: Call) -> None:
        if call.batch.samples:
            self.batch(call.batch)
        if call.given.samples:
            self.give(call.root, call.given)

    def absorb(self, other: "Calls") -> None:
        """`other` came before: its batches have the lower numbers, and no two have the same. The
        calls are copied, for a step that is kept beside the whole has them too."""
        if other.fetched:
            self.waiting = [replace(c, fetched=c.fetched + other.fetched) for c in self.waiting]
            self.fetched += other.fetched
        self.forwards += other.forwards
        self.batch(other.batches)
        for root, amount in other.given.items():
            self.give(root, amount)
        if other.asked:
            self.waiting = [*other.waiting, *self.waiting]
        else:  # no backward of its own: this one's may be theirs
            for call in other.waiting:
                self._take(call)
        self.asked = self.asked or other.asked

    @property
    def amount(self) -> Amount:
        """A critic is called three times for one batch, a generator once: the least counts."""
        batches, given = self.batches, dict(self.given)
        for call in () if self.asked else self.waiting:
            batches = _sum(batches, call.batch)
            given[call.root] = _sum(given.get(call.root, NOTHING), call.given)
        if batches.samples:
            return batches
        told = [amount for amount in given.values() if amount.samples]
        return min(told, key=lambda a: a.samples, default=NOTHING)


def _sum(one: Amount, other: Amount) -> Amount:
    return Amount(one.samples + other.samples, one.tokens + other.tokens)


class Counts(Struct):
    trained: Calls
    quiet: Calls
    backwards: int = 0
    optimizer_steps: int = 0
    skipped: bool = False
    overflow: Any = None
    """Of an optimizer that is told of infinities and skips by itself: a ticket of `Losses`."""
    loss: Any = None
    """Of several backwards the last one's: a ticket of `Losses`."""
    loss_divisor: float = 1.0
    """The number that this loss was divided by just before its backward."""
    regions: dict[str, int] = {}

    @staticmethod
    def new() -> "Counts":
        return Counts(Calls(), Calls())

    def work(self, trains: bool) -> Calls:
        """The calls that are the step's own."""
        if trains:
            return self.trained
        both = Calls()
        both.absorb(self.trained)
        both.absorb(self.quiet)
        both.asked = False
        return both

    @property
    def loss_factor(self) -> float:
        """The factor that turns the loss into that of a batch. If the loss was divided by the
        number of backwards, as in gradient accumulation, the factor undoes that; else it is 1."""
        accumulated = self.backwards > 1 and math.isclose(
            self.loss_divisor, self.backwards, rel_tol=1e-6
        )
        return self.loss_divisor if accumulated else 1.0

    def nothing_was_quiet(self) -> None:
        """What did not look like training was."""
        self.trained.absorb(self.quiet)
        self.quiet = Calls()

    def absorb(self, before: "Counts") -> None:
        """`before` was a part of this step."""
        self.trained.absorb(before.trained)
        self.quiet.absorb(before.quiet)
        self.backwards += before.backwards
        self.optimizer_steps += before.optimizer_steps
        self.skipped = self.skipped or before.skipped
        if self.overflow is None:
            self.overflow = before.overflow
        if self.loss is None:
            self.loss, self.loss_divisor = before.loss, before.loss_divisor
        for name, ns in before.regions.items():
            self.regions[name] = self.regions.get(name, 0) + ns
