"""Steps on their way to the journal: what is counted in the one in progress, and those that wait
for the device to say how long they took."""

from collections import deque
from typing import Any

from msgspec import Struct

from ridgeline.capture.batches import Amount
from ridgeline.capture.device_marks import named
from ridgeline.capture.losses import Losses
from ridgeline.capture.timeline import PHASES
from ridgeline.records.step import Step, StepMemory, StepWindow


class Counts(Struct):
    """What the step in progress has seen."""

    forwards: int = 0
    backwards: int = 0
    optimizer_steps: int = 0
    skipped: bool = False
    loss: Any = None
    batches: Amount = Amount()
    """Handed out by loaders and not used for evaluation."""
    calls: dict[int, Amount] = {}
    """Given to each outermost module: where there is no loader."""
    regions: dict[str, int] = {}

    def batch(self, more: Amount) -> None:
        have = self.batches
        self.batches = Amount(have.samples + more.samples, have.tokens + more.tokens)

    def call(self, root: int, given: Amount) -> None:
        have = self.calls.get(root, Amount())
        self.calls[root] = Amount(have.samples + given.samples, have.tokens + given.tokens)

    @property
    def amount(self) -> Amount:
        """A critic is called three times for one batch, a generator once: the least counts."""
        if self.batches.samples:
            return self.batches
        return min(self.calls.values(), key=lambda a: a.samples, default=Amount())


class Draft(Struct):
    index: int
    start_ns: int
    dur_ns: int
    spent: list[int]
    window: StepWindow
    counts: Counts
    compile_ns: int = 0
    memory: StepMemory | None = None
    device_ns: int | None = None
    device: dict[int, int] = {}

    def absorb(self, before: "Draft") -> None:
        """`before` was a part of this step."""
        self.start_ns = before.start_ns
        self.dur_ns += before.dur_ns
        self.spent = [a + b for a, b in zip(self.spent, before.spent, strict=True)]
        self.compile_ns += before.compile_ns
        mine, its = self.counts, before.counts
        mine.forwards += its.forwards
        mine.backwards += its.backwards
        mine.optimizer_steps += its.optimizer_steps
        mine.batch(its.batches)
        for root, given in its.calls.items():
            mine.call(root, given)
        for name, ns in its.regions.items():
            mine.regions[name] = mine.regions.get(name, 0) + ns

    def step(self, losses: Losses) -> Step:
        counts = self.counts
        given = counts.amount
        return Step(
            index=self.index,
            start_ns=self.start_ns,
            dur_ns=self.dur_ns,
            window=self.window,
            host={PHASES[i]: ns for i, ns in enumerate(self.spent) if ns},
            device_ns=self.device_ns,
            device=named(self.device),
            loss=losses.read(counts.loss),
            samples=given.samples,
            tokens=given.tokens,
            forwards=counts.forwards,
            backwards=counts.backwards,
            optimizer_steps=counts.optimizer_steps,
            skipped=counts.skipped,
            compile_ns=self.compile_ns,
            memory=self.memory,
            regions=counts.regions,
        )


class Drafts:
    """Finished steps, oldest first, until nothing is left to learn about them."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._waiting: deque[Draft] = deque()
        self.whole: Draft | None = None
        """All steps since the beginning as one, while it may still turn out that they are."""

    def add(self, draft: Draft) -> None:
        if draft.index < 256:
            whole = Draft(
                draft.index, draft.start_ns, draft.dur_ns, draft.spent, draft.window,
                Counts(), draft.compile_ns,
            )  # fmt: skip
            whole.counts.batch(draft.counts.batches)
            whole.counts.calls = dict(draft.counts.calls)
            whole.counts.forwards = draft.counts.forwards
            whole.counts.backwards = draft.counts.backwards
            whole.counts.optimizer_steps = draft.counts.optimizer_steps
            if self.whole is not None:
                whole.absorb(self.whole)
            self.whole = whole
        self._waiting.append(draft)

    def merged(self, draft: Draft) -> Draft:
        """`draft` with everything before it, as the first step."""
        if self.whole is not None:
            draft.absorb(self.whole)
        return draft

    def again(self) -> None:
        self._waiting.clear()
        self.whole = None

    def timed(self, index: int, total_ns: int, phases: dict[int, int]) -> None:
        for draft in self._waiting:
            if draft.index == index:
                draft.device_ns, draft.device = total_ns, phases
                return

    def rest(self) -> list[Step]:
        """All of them; where the device has not said how long they took, nothing is known of it."""
        done = [draft.step(self._losses) for draft in self._waiting]
        self._waiting.clear()
        return done

    def until(self, index: int) -> list[Step]:
        """All up to `index`: the device is past them."""
        done = []
        while self._waiting and self._waiting[0].index <= index:
            done.append(self._waiting.popleft().step(self._losses))
        return done
