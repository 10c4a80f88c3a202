"""What the step in progress has seen.

Calls without gradients or in eval mode are kept apart (`quiet`): in a program that trains they are
evaluation, in one that never does they are its work, and which it is shows only later.
"""

from typing import Any

from msgspec import Struct

from ridgeline.capture.batches import Amount


class Calls(Struct):
    """Calls of outermost modules, and what they were given."""

    forwards: int = 0
    batches: Amount = Amount()
    """From loaders."""
    given: dict[int, Amount] = {}
    """To each module: where there is no loader."""

    def batch(self, more: Amount) -> None:
        have = self.batches
        self.batches = Amount(have.samples + more.samples, have.tokens + more.tokens)

    def give(self, root: int, more: Amount) -> None:
        have = self.given.get(root, Amount())
        self.given[root] = Amount(have.samples + more.samples, have.tokens + more.tokens)

    def absorb(self, other: "Calls") -> None:
        self.forwards += other.forwards
        self.batch(other.batches)
        for root, amount in other.given.items():
            self.give(root, amount)

    @property
    def amount(self) -> Amount:
        """A critic is called three times for one batch, a generator once: the least counts."""
        if self.batches.samples:
            return self.batches
        return min(self.given.values(), key=lambda a: a.samples, default=Amount())


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
        return both

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
            self.loss = before.loss
        for name, ns in before.regions.items():
            self.regions[name] = self.regions.get(name, 0) + ns
