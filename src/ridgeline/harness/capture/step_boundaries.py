"""Decides where a step of the program ends; the decision gets better as more of the program is
seen.

If the program calls ridgeline.step(), that ends a step. Else a step of the anchor optimizer does.
Without an optimizer object, the training forward that follows a backward begins the next step.
Without a backward the program does inference: each batch of the loader is a step or, without a
loader, each call of the first module. When a better criterion appears, it replaces the earlier one
and decides what becomes of the steps counted so far."""

from enum import Enum
from typing import Literal

from msgspec import Struct

Mode = Literal["", "said", "optimizer", "backward", "call"]

CALLS_WITHOUT_BACKWARD = 3
"""After this many calls in training mode, with gradients on and without a backward, the program is
taken to do inference and to have forgotten eval mode."""
MAX_MERGED_STEPS = 256
MAX_UNCERTAIN_OPTIMIZER_STEPS = 32
"""After this many optimizer steps a cycle of several optimizers would have been seen."""


class End(Enum):
    """Says whether a step ends now, and what becomes of the steps before it."""

    NO = "the step goes on"
    PLAIN = "the step ends"
    MERGE = "the step ends, and all steps before were parts of it"
    DROP = "the step ends, and nothing before was a step"
    EARLIER = "the step goes on, and all steps before were a single step"


class Stepping:
    """Receives the calls, backwards and optimizer steps of the program, and returns for each
    whether a step ends there."""

    def __init__(self) -> None:
        self.mode: Mode = ""
        self.anchor = Anchor()
        self.counted = 0
        self._backwards = 0
        self._calls = 0
        self._calls_without_backward = 0
        self._loader = False
        self._root: int | None = None
        self._root_calls = 0
        self._roots: set[int] = set()
        self._roots_alternate = False
        self._only_training = True
        """Whether all calls taken for inference were made in training mode, so that they may have
        been part of training."""

    @property
    def trains(self) -> bool:
        return self.mode in ("optimizer", "backward") or self._backwards > 0

    @property
    def uncertain(self) -> bool:
        """Whether the steps so far may still turn out to be a single step."""
        return self.counted <= (
            MAX_UNCERTAIN_OPTIMIZER_STEPS if self.mode == "optimizer" else MAX_MERGED_STEPS
        )

    @property
    def simple(self) -> bool:
        """Whether each step of a single optimizer ends a step, so that nothing else must be
        followed."""
        return self.mode == "optimizer" and not self.uncertain and not self.anchor.cyclic

    @property
    def open(self) -> bool:
        """Whether a step that has had its backward is still waiting for the forward that ends
        it."""
        return self.mode in ("", "backward", "call") and self._backwards > 0

    def last(self) -> End:
        """End the last step, because the program is over."""
        self._backwards, before, self.mode = 1, self.mode, "backward"
        return self._end(self._after_calls() if before == "call" else End.PLAIN)

    def user_ended_step(self) -> End:
        """Return what ends with the program's call of ridgeline.step()."""
        if self.mode == "said":
            return self._end(End.PLAIN)
        end = self._after_calls() if self.mode == "call" else self._merge()
        self.mode = "said"
        return self._end(end)

    def optimizer_stepped(self, optimizer: int) -> End:
        turn = self.anchor.stepped(optimizer)
        if self.mode == "said" or turn is Turn.GOES_ON:
            return End.NO
        if turn is Turn.WERE_ONE:
            if not self.uncertain:
                return End.NO
            self.counted = 1
            return End.EARLIER
        end = End.PLAIN
        if self.mode == "call":
            end = self._after_calls()
        elif self.mode == "backward" or turn is Turn.ENDS_ALL:
            end = self._merge()
        self.mode = "optimizer"
        return self._end(end)

    def backward_done(self) -> None:
        self._backwards += 1
        self._calls_without_backward = 0

    @property
    def ends_with_forward(self) -> bool:
        """Whether the next training forward belongs to another step."""
        return self.mode not in ("said", "optimizer") and self._backwards > 0

    def training_forward_begins(self) -> End:
        if not self.ends_with_forward:
            return End.NO
        self._backwards = 0
        before, self.mode = self.mode, "backward"
        return self._end(self._after_calls() if before == "call" else End.PLAIN)

    def input_begins(self) -> End:
        self._loader = True
        if self.mode != "call" or not self._calls:
            return End.NO
        return self._end(End.PLAIN)

    def call_done(self, root: int, training: bool) -> End:
        if self.mode not in ("", "call") or self._backwards:
            return End.NO
        self._calls += 1
        if training:
            self._calls_without_backward += 1
            if self._calls_without_backward < CALLS_WITHOUT_BACKWARD:
                return End.NO
        else:
            self._only_training = False
        self.mode = "call"
        if self._loader:
            return End.NO
        return self._call_of(root)

    def _call_of(self, root: int) -> End:
        """Return whether a call of the module `root` ends a step. Only calls of one module do: of
        the first module, or of a later one if the first was called only once, before it was traced
        or converted. If two modules alternate, it is the later one."""
        if root == self._root:
            self._root_calls += 1
            return self._end(End.PLAIN)
        if root in self._roots:
            self._roots_alternate = True
        if self._roots_alternate or self._root_calls > 1:
            return End.NO
        first = self._root is None
        self._root, self._root_calls = root, 1
        self._roots.add(root)
        return self._end(End.PLAIN if first else End.DROP)

    def _after_calls(self) -> End:
        """Return what becomes of calls that were taken for inference by a program that trains after
        all. They were an evaluation, or the first part of this step: a policy is called for a whole
        episode before it learns."""
        return self._merge() if self._only_training else End.DROP

    def _merge(self) -> End:
        return End.MERGE if self.uncertain else End.PLAIN

    def _end(self, how: End) -> End:
        self._calls = 0
        self.counted = 1 if how in (End.MERGE, End.DROP) else self.counted + 1
        return how


MAX_ITERATION_STEPS = 16
"""Up to this many optimizer steps may belong to one iteration. More steps of a critic are a stage
of their own."""


class Turn(Enum):
    """Says whether a step of an optimizer ends an iteration, and what the steps before it were."""

    ENDS = "the step ends an iteration"
    GOES_ON = "the iteration goes on"
    WERE_ONE = "the iteration goes on, and all steps before were one iteration"
    ENDS_ALL = "the step ends an iteration, and all steps before were part of it"


class _Known(Struct):
    last: int
    """Number of the optimizer's last step among the steps of all optimizers."""
    steps: int = 0
    gap: int = 0
    """Largest distance between two of its own steps, in steps of all optimizers."""


class Anchor:
    """Chooses the optimizer whose step ends an iteration: the only one or, if several take turns,
    the one that steps most rarely."""

    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._taken = 0
        self._last: int | None = None
        self.cyclic = False
        self.optimizer_id: int | None = None

    def stepped(self, optimizer: int) -> Turn:
        self._taken += 1
        back = optimizer in self._known and self._last != optimizer
        self._last = optimizer
        if self.cyclic:
            return self._in_cycle(optimizer)
        if back:
            return self._cycle_found(optimizer)
        self._count(optimizer)
        self.optimizer_id = optimizer
        return Turn.ENDS

    def gone(self, optimizer: int) -> None:
        """Forget an optimizer that was deleted, because its id may be reused."""
        self._known.pop(optimizer, None)
        self.cyclic = self.cyclic and len(self._known) > 1
        if self._last == optimizer:
            self._last = None

    def _cycle_found(self, optimizer: int) -> Turn:
        self.cyclic = True
        self.optimizer_id = self._rarest()
        few = (
            self._taken <= MAX_ITERATION_STEPS + 1
            or max(k.steps for k in self._known.values()) <= 1
        )
        self._count(optimizer)
        if optimizer == self.optimizer_id:
            return Turn.ENDS_ALL if few else Turn.ENDS
        return Turn.WERE_ONE if few else Turn.GOES_ON

    def _in_cycle(self, optimizer: int) -> Turn:
        if optimizer not in self._known:
            # A new optimizer starts level with the lowest count, or it would stay the rarest.
            lowest = min(k.steps for k in self._known.values()) - 1
            self._known[optimizer] = _Known(last=0, steps=max(lowest, 0))
        self._count(optimizer)
        self._forget()
        self.cyclic = len(self._known) > 1
        self.optimizer_id = self._rarest()
        return Turn.ENDS if optimizer == self.optimizer_id else Turn.GOES_ON

    def _count(self, optimizer: int) -> None:
        known = self._known.get(optimizer)
        if known is None:
            known = self._known[optimizer] = _Known(last=0)
        known.steps += 1
        known.gap = max(known.gap, self._taken - known.last)
        known.last = self._taken

    def _rarest(self) -> int:
        least = min(k.steps for k in self._known.values())
        equals = (w for w, k in self._known.items() if k.steps == least)
        return max(equals, key=lambda w: self._known[w].last)

    def _forget(self) -> None:
        """Forget optimizers that have not stepped for four times their longest gap."""
        floor = 8 + 2 * len(self._known)
        for optimizer, known in list(self._known.items()):
            if self._taken - known.last > max(floor, 4 * known.gap):
                del self._known[optimizer]
