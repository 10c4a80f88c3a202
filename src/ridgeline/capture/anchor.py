"""Which optimizer's step ends an iteration, where there are several.

The one that steps least often, and of equals the one that steps last: the generator of a GAN with
one critic step or five, the last parameter of a program with an optimizer a parameter. One that
fell silent is forgotten, so that a program which trains in two stages is followed.
"""

SILENT = 50
"""Steps of others after which an optimizer counts as done with."""


class Anchor:
    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._taken = 0
        self.who: int | None = None

    def stepped(self, who: int) -> tuple[bool, bool]:
        """Whether this ends an iteration, and whether the anchor has just changed."""
        self._taken += 1
        if who not in self._steps and self.who is not None:
            # A newcomer starts level with the least, or it would stay behind for ever.
            self._steps[who] = max(min(self._steps.values()) - 1, 0)
        self._steps[who] = self._steps.get(who, 0) + 1
        self._last[who] = self._taken
        self._forget()
        least = min(self._steps.values())
        rarest = max((w for w, n in self._steps.items() if n == least), key=self._last.__getitem__)
        changed = self.who is not None and rarest != self.who
        self.who = rarest
        return who == rarest, changed

    def _forget(self) -> None:
        limit = max(SILENT, 4 * len(self._steps))
        for who in [w for w, last in self._last.items() if self._taken - last > limit]:
            del self._steps[who], self._last[who]
