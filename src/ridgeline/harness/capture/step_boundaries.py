"""Where a step of the program ends, understood better as more of it is seen.

Best of all the program says it. Else the anchor optimizer's step ends one; else, without an
optimizer object, the training forward that follows a backward begins the next; else, without a
backward, this is inference: a batch of the loader is a step, or a call of the first module where
there is no loader. Each better understanding replaces the lesser one, and says what becomes of the
steps counted so far.
"""

from enum import Enum
from typing import Literal

from msgspec import Struct

Mode = Literal["", "said", "optimizer", "backward", "call"]

CALLS_WITHOUT_BACKWARD = 3
"""Calls in training mode with gradients on and no backward: inference by somebody who forgot."""
MAX_MERGED_STEPS = 256
MAX_UNCERTAIN_OPTIMIZER_STEPS = 32
"""Steps of optimizers after which a cycle would have shown."""


class End(Enum):
    """What becomes of the steps before this one."""

    NO = "the step goes on"
    PLAIN = "the step ends"
    MERGE = "the step ends, and all before were parts of it"
    DROP = "the step ends, and all before were none"
    EARLIER = "the step goes on, and all before were one"


class Stepping:
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
        """All calls taken for inference were made as if to train: perhaps they were."""

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
        """One optimizer, one step: nothing else has to be followed to know where a step ends."""
        return self.mode == "optimizer" and not self.uncertain and not self.anchor.cyclic

    @property
    def open(self) -> bool:
        """Whether a step has a backward behind it and no forward will come to end it."""
        return self.mode in ("", "backward", "call") and self._backwards > 0

    def last(self) -> End:
        """The program is over, and its last step with it."""
        self._backwards, before, self.mode = 1, self.mode, "backward"
        return self._end(self._after_calls() if before == "call" else End.PLAIN)

    def said(self) -> End:
        if self.mode == "said":
            return self._end(End.PLAIN)
        end = self._after_calls() if self.mode == "call" else self._merge()
        self.mode = "said"
        return self._end(end)

    def optimizer_stepped(self, who: int) -> End:
        turn = self.anchor.stepped(who)
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
        """Calls of one module end steps: of the first, or of another where the first was called
        but once (before it was traced or converted). Where two take turns it is the later one."""
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
        """It trains after all. What was taken for inference was an evaluation, or the first part
        of this step: a policy is called for a whole episode before it learns."""
        return self._merge() if self._only_training else End.DROP

    def _merge(self) -> End:
        return End.MERGE if self.uncertain else End.PLAIN

    def _end(self, how: End) -> End:
        self._calls = 0
        self.counted = 1 if how in (End.MERGE, End.DROP) else self.counted + 1
        return how


MAX_ITERATION_STEPS = 16
"""Steps that may still be one iteration: more critic steps than that are a stage of their own."""


class Turn(Enum):
    ENDS = "this step ends an iteration"
    GOES_ON = "it does not"
    WERE_ONE = "it does not, and all before were one iteration"
    ENDS_ALL = "it ends one, and all before were part of it"


class _Known(Struct):
    last: int
    """Which of all steps its last one was."""
    steps: int = 0
    gap: int = 0
    """The most steps of others between two of its own."""


class Anchor:
    def __init__(self) -> None:
        self._known: dict[int, _Known] = {}
        self._taken = 0
        self._last: int | None = None
        self.cyclic = False
        self.who: int | None = None

    def stepped(self, who: int) -> Turn:
        self._taken += 1
        back = who in self._known and self._last != who
        self._last = who
        if self.cyclic:
            return self._in_cycle(who)
        if back:
            return self._cycle_found(who)
        self._count(who)
        self.who = who
        return Turn.ENDS

    def gone(self, who: int) -> None:
        """That optimizer is no more, and its id may be another's: it will not come back."""
        self._known.pop(who, None)
        self.cyclic = self.cyclic and len(self._known) > 1
        if self._last == who:
            self._last = None

    def _cycle_found(self, who: int) -> Turn:
        self.cyclic = True
        self.who = self._rarest()
        few = (
            self._taken <= MAX_ITERATION_STEPS + 1
            or max(k.steps for k in self._known.values()) <= 1
        )
        self._count(who)
        if who == self.who:
            return Turn.ENDS_ALL if few else Turn.ENDS
        return Turn.WERE_ONE if few else Turn.GOES_ON

    def _in_cycle(self, who: int) -> Turn:
        if who not in self._known:
            # A newcomer starts level with the least, or it would stay behind for ever.
            level = min(k.steps for k in self._known.values()) - 1
            self._known[who] = _Known(last=0, steps=max(level, 0))
        self._count(who)
        self._forget()
        self.cyclic = len(self._known) > 1
        self.who = self._rarest()
        return Turn.ENDS if who == self.who else Turn.GOES_ON

    def _count(self, who: int) -> None:
        known = self._known.get(who)
        if known is None:
            known = self._known[who] = _Known(last=0)
        known.steps += 1
        known.gap = max(known.gap, self._taken - known.last)
        known.last = self._taken

    def _rarest(self) -> int:
        least = min(k.steps for k in self._known.values())
        equals = (w for w, k in self._known.items() if k.steps == least)
        return max(equals, key=lambda w: self._known[w].last)

    def _forget(self) -> None:
        """Whoever stayed away four times longer than ever before."""
        floor = 8 + 2 * len(self._known)
        for who, known in list(self._known.items()):
            if self._taken - known.last > max(floor, 4 * known.gap):
                del self._known[who]
