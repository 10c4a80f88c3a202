"""Steps on their way to the journal: what is counted in the one in progress, and those that wait
for the device to say how long they took."""

from collections import deque

from msgspec import Struct

from ridgeline.harness.capture.counts import Counts
from ridgeline.harness.capture.device_marks import named
from ridgeline.harness.capture.losses import Losses
from ridgeline.harness.capture.timeline import folded
from ridgeline.records.run import Step, StepMemory, StepWindow


class Draft(Struct):
    index: int
    start_ns: int
    dur_ns: int
    spent: list[int]
    window: StepWindow
    counts: Counts
    trains: bool
    compile_ns: int = 0
    memory: StepMemory | None = None
    device_ns: int | None = None
    device: dict[int, int] = {}
    detailed: bool = True

    def absorb(self, before: "Draft") -> None:
        """`before` was a part of this step."""
        self.start_ns = before.start_ns
        self.dur_ns += before.dur_ns
        self.spent = [a + b for a, b in zip(self.spent, before.spent, strict=True)]
        self.compile_ns += before.compile_ns
        self.counts.absorb(before.counts)

    def step(self, losses: Losses) -> Step:
        counts = self.counts
        work = counts.work(self.trains)
        given = work.amount
        loss, broke = losses.read(counts.loss)
        overflow, _ = losses.read(counts.overflow)
        return Step(
            index=self.index,
            start_ns=self.start_ns,
            dur_ns=self.dur_ns,
            window=self.window,
            host=folded(self.spent, self.trains) if self.detailed else {},
            device_ns=self.device_ns,
            device=named(self.device),
            loss=loss * counts.loss_factor if loss is not None else None,
            loss_broke=broke,
            samples=given.samples,
            tokens=given.tokens,
            forwards=work.forwards,
            backwards=counts.backwards,
            optimizer_steps=counts.optimizer_steps,
            skipped=counts.skipped or bool(overflow),
            compile_ns=self.compile_ns,
            memory=self.memory,
            detailed=self.detailed,
            regions=counts.regions,
        )


class Drafts:
    """Finished steps, oldest first, until nothing is left to learn about them."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._waiting: deque[Draft] = deque()
        self.whole: Draft | None = None
        """All steps since the beginning as one, while it may still turn out that they are."""

    def add(self, draft: Draft, uncertain: bool) -> None:
        """`uncertain`: what ends a step may still turn out to be something else."""
        if uncertain:
            whole = Draft(
                draft.index, draft.start_ns, draft.dur_ns, draft.spent, draft.window,
                Counts.new(), draft.trains, draft.compile_ns,
            )  # fmt: skip
            whole.counts.absorb(draft.counts)
            if self.whole is not None:
                whole.absorb(self.whole)
            self.whole = whole
        else:
            self.whole = None
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
