"""Which optimizer's step ends an iteration, where there are several.

The one that steps least often, and of equals the one that steps last: the generator of a GAN with
one critic step or five, the last parameter of a program with an optimizer a parameter. One that
fell silent is forgotten, so that a program which trains in two stages is followed.
"""

from msgspec import Struct


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
        self.who: int | None = None

    @property
    def young(self) -> bool:
        """Whether the steps so far may all belong to one iteration: five of a critic, or one of
        each of a hundred optimizers."""
        return self._taken <= 16 or max(k.steps for k in self._known.values()) <= 1

    def stepped(self, who: int) -> tuple[bool, bool]:
        """Whether this ends an iteration, and whether the anchor has just changed."""
        self._taken += 1
        known = self._known.get(who)
        if known is not None and len(self._known) == 1:  # nearly every program
            known.steps += 1
            known.gap, known.last = 1, self._taken
            return True, False
        if known is None:
            # A newcomer starts level with the least, or it would stay behind for ever.
            least = min((k.steps for k in self._known.values()), default=1)
            known = self._known[who] = _Known(last=0, steps=max(least - 1, 0))
        known.steps += 1
        known.gap = max(known.gap, self._taken - known.last)
        known.last = self._taken
        self._forget()
        least = min(k.steps for k in self._known.values())
        rarest = max(
            (w for w, k in self._known.items() if k.steps == least),
            key=lambda w: self._known[w].last,
        )
        changed = self.who is not None and rarest != self.who
        self.who = rarest
        return who == rarest, changed

    def _forget(self) -> None:
        """Whoever stayed away four times longer than ever before."""
        floor = 8 + 2 * len(self._known)
        for who, known in list(self._known.items()):
            if self._taken - known.last > max(floor, 4 * known.gap):
                del self._known[who]
