"""Which optimizer's step ends an iteration, where there are several.

While none has come back after another stepped, each step ends one: a single optimizer, or one stage
after another. Once one comes back there is a cycle, and it ends with the optimizer that steps least
often, of equals with the last: the generator of a GAN with one critic step or five, the last of a
hundred optimizers with a parameter each. One that falls silent is forgotten.
"""

from enum import Enum

from msgspec import Struct

FEW = 16
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
        few = self._taken <= FEW + 1 or max(k.steps for k in self._known.values()) <= 1
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
