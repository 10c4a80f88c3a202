"""The verdict on a job's ranks: which one the others wait for, in which phase, at which line."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.collective_site import RankPlace


class LateRank(Struct, frozen=True, kw_only=True):
    """The one rank that the others wait for."""

    rank: int
    late_ns: float
    """How much longer it works than the slowest other rank, in the mean step: what the step would
    lose if this rank were as fast."""
    step_ns: float
    """The mean step that `late_ns` is a part of, on the same clock."""
    slowest_other_ns: float = 0.0
    """What the slowest other rank does of its own in the mean step; 0 where it is not known."""
    share_of_lateness: float = 1.0
    """Of all that ranks are behind the slowest other one: what this rank is."""
    phase: str = ""
    """The phase in which it works longer than the others; empty where it is not known."""
    phase_ns: float = 0.0
    """How much longer that phase is than on the other ranks, in the mean step."""
    steps: int = 0
    """Steps in which the ranks were compared."""
    late_steps: int = 0
    """Steps in which this rank was the slowest."""
    basis: Literal["steps", "traced steps", "arrivals"] = "steps"
    """Untraced steps of all ranks; traced ones; or when each rank came to the collectives."""
    cause: RankPlace | None = None
    """The user's function in which it spends the time and the others do not."""
    place: str = ""
    """file:line that was seen running on that rank: of the function, or of what the phase calls."""
    late_collectives: int = 0
    """Collectives it came last to."""
    collectives: int = 0
    """All of them; 0 where arrivals were not compared."""
    doing: tuple[tuple[str, int], ...] = ()
    """Where it was while the others waited, where arrivals were compared: (name, ns)."""

    @property
    def share(self) -> float:
        """Of the step: what the others wait for this rank."""
        return min(self.late_ns / self.step_ns, 1.0) if self.step_ns > 0 else 0.0

    @property
    def waiting_share(self) -> float:
        """Of the step: all that even the slowest other rank spends in collectives. No more can be
        gained, and an exchange that nobody comes late to may take less than it does now."""
        if not self.slowest_other_ns or self.step_ns <= 0:
            return self.share
        return max(self.share, 1 - self.slowest_other_ns / self.step_ns)
