"""Which steps are looked at closely, and which are only timed.

Looking at a step costs the program 0.1 to 0.25 ms (28 µs in a loop of its own: after milliseconds
of arithmetic nothing of ours is in a cache any more), so of short steps only every n-th is. The
length, which is one reading of the clock, is taken of every one.
"""

FIRST_CLOSELY = 30
"""Timed steps with every detail first: short programs have no others."""
PAID_BY_NS = 100_000_000
"""One close look in so much time: with a quarter of a millisecond 0.25 % of it."""
MOST = 32


class Thinning:
    def __init__(self) -> None:
        self._seen = 0
        self._ns = 0
        self.every = 1

    def step(self, dur_ns: int) -> None:
        """A timed step with every detail has ended."""
        self._seen += 1
        self._ns += dur_ns
        if self._seen >= FIRST_CLOSELY:
            mean = max(self._ns / self._seen, 1)
            self.every = max(min(int(PAID_BY_NS / mean), MOST), 1)

    def never(self) -> None:
        """Something needs every step: look at all of them again."""
        self._seen = self._ns = 0
        self.every = 1
