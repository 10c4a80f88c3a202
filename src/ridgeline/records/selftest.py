"""The result of a self-test: how often verdicts were wrong on this machine."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.comparison import Surroundings

Source = Literal["measured", "simulated"]
Procedure = Literal["ridgeline", "sequential Welch"]

LIMIT = 0.06
"""The share of windows in which identical code may be called different, at the 95 % level."""
MIN_WINDOWS = 20
"""With fewer windows, the interval of a rate of 5 % reaches beyond 25 %."""


class Rate(Struct, frozen=True, kw_only=True):
    """Says how often something happened, with a 95 % interval (Wilson)."""

    count: int
    of: int
    low: float
    high: float

    @property
    def share(self) -> float | None:
        return self.count / self.of if self.of else None


class Tally(Struct, frozen=True, kw_only=True):
    """The verdicts of one procedure on candidates of which the truth is known."""

    procedure: Procedure
    effect: float
    """The share by which the candidate is really slower: 0 for identical code."""
    windows: int
    faster: int
    slower: int
    same: int
    undecided: int
    """The windows without a verdict; for a t test, which cannot say SAME, all that it did not
    call different."""
    called: Rate
    """For identical code, how often it was called FASTER or SLOWER; for slower code, how often it
    was called SLOWER, that is found."""
    seen: float | None = None
    """The slowdown that all windows together show; None if samples were only scaled."""


class Bench(Struct, frozen=True, kw_only=True):
    """One source of noise, and the verdicts of each procedure under it."""

    source: Source
    noise: str
    """Its description: "this machine", "AR(1) of 0.45 …"."""
    rounds: int
    """Rounds in a window."""
    tallies: tuple[Tally, ...]
    controls_differ: int = 0
    """Windows in which the A/A control itself differed, so that nothing was decided."""

    def tally(self, procedure: Procedure, effect: float) -> Tally:
        return next(t for t in self.tallies if (t.procedure, t.effect) == (procedure, effect))

    @property
    def identical(self) -> Tally:
        return self.tally("ridgeline", 0.0)


class SelfTest(Struct, frozen=True, kw_only=True):
    """A whole self-test."""

    measured: Bench
    simulated: Bench | None
    """None if the test was interrupted before."""
    workload: str
    sample_ns: float
    """The median time of a sample of the baseline."""
    block_calls: tuple[int, ...]
    """Calls in a sample of each variant: the baseline, its control, the identical candidate, and
    the slower ones."""
    spread: float
    """IQR over median of the baseline's samples."""
    autocorrelation: float
    """Lag-1 autocorrelation of the baseline's consecutive samples."""
    alpha: float
    threshold: float
    stopped: Literal["budget", "interrupted"]
    budget_s: float
    spent_s: float
    """Time of the warm-up and the windows, without the simulation."""
    seed: int
    discarded: int
    """Rounds left out because the device was throttled."""
    surroundings: Surroundings

    @property
    def passed(self) -> bool:
        """Whether chance explains the false alarms."""
        return self.measured.identical.called.low <= LIMIT
