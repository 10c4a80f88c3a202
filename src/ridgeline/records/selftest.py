"""How often the tool is wrong here: windows of rounds, judged, and counted by what was true."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.comparison import Surroundings

Source = Literal["measured", "simulated"]
Procedure = Literal["ridgeline", "sequential Welch"]

LIMIT = 0.06
"""How often identical code may be called different at the 95 % level."""


class Rate(Struct, frozen=True, kw_only=True):
    """How often something happened, with a 95 % interval (Wilson)."""

    count: int
    of: int
    low: float
    high: float

    @property
    def share(self) -> float | None:
        return self.count / self.of if self.of else None


class Tally(Struct, frozen=True, kw_only=True):
    """What one procedure said of candidates of which the truth is known."""

    procedure: Procedure
    effect: float
    """The share by which the candidate is really slower: 0 for identical code."""
    windows: int
    faster: int
    slower: int
    same: int
    undecided: int
    """For a test that knows only "different": all that it did not call so."""
    called: Rate
    """Identical code: called FASTER or SLOWER. A slower one: called SLOWER, that is found."""
    seen: float | None = None
    """The slowdown that all windows together show; None where samples were only scaled."""


class Bench(Struct, frozen=True, kw_only=True):
    """One source of noise, and what each procedure made of it."""

    source: Source
    noise: str
    """In words: "this machine", "AR(1) of 0.45 …"."""
    rounds: int
    """In a window."""
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
    """None where it was interrupted before."""
    workload: str
    sample_ns: float
    """What a sample of the baseline takes, at the median."""
    block_calls: tuple[int, ...]
    """Calls in a sample of each arm: the baseline, its control, the identical candidate, and the
    slower ones."""
    spread: float
    """Of the baseline's samples: IQR over median."""
    autocorrelation: float
    """Lag 1 of the sequential samples."""
    alpha: float
    threshold: float
    stopped: Literal["budget", "interrupted"]
    budget_s: float
    spent_s: float
    """On warming up and on windows; the simulation is not in it."""
    seed: int
    discarded: int
    """Rounds left out because the device was throttled."""
    surroundings: Surroundings

    @property
    def passed(self) -> bool:
        """False only where chance does not explain the false alarms."""
        return self.measured.identical.called.low <= LIMIT
