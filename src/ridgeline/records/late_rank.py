"""The verdict on a job's ranks: which one the others wait for, in which phase, at which line."""

from typing import Literal

from msgspec import Struct

from ridgeline.records.collective_site import RankPlace


class LateRank(Struct, frozen=True, kw_only=True):
    """The one rank that the others wait for."""

    rank: int
    late_ns: float
    """How much longer this rank works than the slowest other rank in the mean step. The step would
    be shorter by this if the rank were as fast."""
    step_ns: float
    """The mean step that `late_ns` is a part of, on the same clock."""
    slowest_other_ns: float = 0.0
    """How long the slowest other rank works alone in the mean step; 0 if it is not known."""
    share_of_lateness: float = 1.0
    """This rank's lateness as a share of the lateness of all ranks. The lateness of a rank is how
    much longer it works than the slowest of the others."""
    phase: str = ""
    """The phase in which this rank works longer than the others; empty if it is not known."""
    phase_ns: float = 0.0
    """How much longer that phase is than on the other ranks, in the mean step."""
    steps: int = 0
    """Steps in which the ranks were compared."""
    late_steps: int = 0
    """Steps in which this rank was the slowest."""
    basis: Literal["steps", "traced steps", "arrivals"] = "steps"
    """What was compared: untraced steps of all ranks, traced steps, or the times at which each rank
    came to the collectives."""
    cause: RankPlace | None = None
    """The user's function in which this rank spends time and the others do not."""
    place: str = ""
    """file:line that was seen running on this rank: a line of that function, or a call in the
    phase."""
    late_collectives: int = 0
    """Number of collectives to which this rank came last."""
    collectives: int = 0
    """Number of all collectives; 0 if arrivals were not compared."""
    doing: tuple[tuple[str, int], ...] = ()
    """Where this rank was while the others waited, as (name, ns); empty if arrivals were not
    compared."""

    @property
    def share(self) -> float:
        """The share of the step that the others wait for this rank."""
        return min(self.late_ns / self.step_ns, 1.0) if self.step_ns > 0 else 0.0

    @property
    def waiting_share(self) -> float:
        """The share of the step that even the slowest other rank spends in collectives. This is the
        most that can be gained: a collective to which no rank comes late may itself be faster than
        now."""
        if not self.slowest_other_ns or self.step_ns <= 0:
            return self.share
        return max(self.share, 1 - self.slowest_other_ns / self.step_ns)
