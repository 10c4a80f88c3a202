"""Which window the program is in, decided at the end of each step.

settle → light → traced → light again → alone. The trace comes early, so that a program of twenty
steps still gets one, and timing goes on after it until there are enough steps. Nothing here touches
torch or a clock: it is told the time.
"""

from typing import Literal

from msgspec import Struct

from ridgeline.records.run import Settings, StepWindow, Window

LEAST_SETTLE = 3
MOST_SETTLE = 30
"""A program that compiles in every step never settles: that is a finding, and is timed as it is."""
FIRST_LIGHT = 10
FIRST_LIGHT_NS = 5_000_000_000
"""Ten steps of a minute each are not waited for."""
LEAST_LIGHT_NS = 2_000_000_000
"""Twenty looks of the telemetry, and forty steps of 50 ms."""
LONG_LIGHT_NS = 30_000_000_000
"""Steps this slow are timed well enough by fewer of them."""

Order = Literal["", "light", "trace", "untrace", "alone"]


class _Open(Struct):
    kind: Literal["settle", "light", "traced", "memory", "alone"]
    first_step: int
    start_ns: int
    steps: int = 0


class Windows:
    """`step_done` after each step says what is to happen now."""

    def __init__(self, settings: Settings, now_ns: int) -> None:
        self._settings = settings
        self._open = _Open("settle", 0, now_ns)
        self._closed: list[Window] = []
        self._compiled_at = -1
        self._light_steps = 0
        self._light_ns = 0
        self._traced = settings.trace_steps == 0
        self._disturbed = False

    @property
    def label(self) -> StepWindow:
        """What the step in progress is called."""
        if self._disturbed:
            return "disturbed"
        kind = self._open.kind
        return "light" if kind == "alone" else kind

    @property
    def kind(self) -> str:
        return self._open.kind

    def step_done(self, index: int, now_ns: int, dur_ns: int, compiled: bool) -> Order:
        opened = self._open
        opened.steps += 1
        was_disturbed, self._disturbed = self._disturbed, False
        if compiled:
            self._compiled_at = opened.steps
        if opened.kind == "light" and not was_disturbed and not compiled:
            self._light_steps += 1
            self._light_ns += dur_ns
        order = self._next(opened)
        if order:
            self._turn(order, index + 1, now_ns)
        return order

    def disturb(self) -> None:
        """Something of ours fell into the step in progress."""
        self._disturbed = True

    def no_trace(self) -> None:
        """The traced window is not to be had, or was cut short."""
        self._traced = True
        if self._open.kind == "traced":
            self._open.kind = "light"
            self._disturbed = True

    def again(self, index: int, now_ns: int) -> None:
        """What ends a step was understood only now: begin again."""
        self.__init__(self._settings, now_ns)  # type: ignore[misc]
        self._open.first_step = index

    def all(self, now_ns: int) -> tuple[Window, ...]:
        return (*self._closed, self._shut(now_ns))

    def _next(self, opened: _Open) -> Order:
        settings = self._settings
        if opened.kind == "settle":
            calm = opened.steps - max(self._compiled_at, 0) >= 2
            ready = opened.steps >= LEAST_SETTLE and calm
            return "light" if ready or opened.steps >= MOST_SETTLE else ""
        if opened.kind == "traced":
            return "untrace" if opened.steps >= settings.trace_steps else ""
        if opened.kind == "light" and not self._traced:
            slow = opened.steps >= LEAST_SETTLE and self._light_ns >= FIRST_LIGHT_NS
            enough = opened.steps >= min(FIRST_LIGHT, settings.steps)
            return "trace" if enough or slow else ""
        if opened.kind == "light" and not settings.full:
            enough = self._light_steps >= settings.steps and self._light_ns >= LEAST_LIGHT_NS
            slow = self._light_steps >= FIRST_LIGHT and self._light_ns >= LONG_LIGHT_NS
            return "alone" if enough or slow else ""
        return ""

    def _turn(self, order: Order, first: int, now_ns: int) -> None:
        self._closed.append(self._shut(now_ns))
        if order == "trace":
            self._open = _Open("traced", first, now_ns)
            self._traced = True
        elif order == "untrace":
            self._open = _Open("light", first, now_ns)
            self._disturbed = True
        else:
            self._open = _Open("light" if order == "light" else "alone", first, now_ns)

    def _shut(self, now_ns: int) -> Window:
        opened = self._open
        return Window(
            kind=opened.kind,
            first_step=opened.first_step,
            steps=opened.steps,
            start_ns=opened.start_ns,
            end_ns=now_ns,
        )


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
