"""Collectives of a traced step by what they are and where they are asked for, of one rank.

Everything is a step's: counts and times are divided by the steps of the window.
"""

from typing import Literal

from msgspec import Struct

from ridgeline.records.op_site import SitePhase
from ridgeline.records.trace import Place

Sharding = Literal["", "fsdp1", "fsdp2"]
"""The sharding wrapper: "fsdp1" is FullyShardedDataParallel, "fsdp2" is `fully_shard`."""


class CollectiveSite(Struct, frozen=True, kw_only=True):
    """Calls of one collective, of the same size, from one place."""

    name: str
    """all_reduce, all_gather …; "collective" where nothing tells."""
    bytes: int | None = None
    """Of one call; None where the trace does not say."""
    estimated: bool = False
    """`bytes` is from the number of elements, taken for float32."""
    calls: float = 0.0
    ns: float = 0.0
    """From this rank's arrival to the end: waiting for the others is in it."""
    held_ns: float = 0.0
    """In the call of torch.distributed that asked, where Python stacks show it: with what it takes
    to hand the work over and to be woken."""
    least_ns: float = 0.0
    """The shortest call: the nearest to one that nobody came late to."""
    exposed_ns: float = 0.0
    """Of `ns`: while nothing else computed on this rank."""
    phase: SitePhase = "other"
    place: Place | None = None
    """The user's function that asked, or that called the backward in which it was asked for."""
    sharding: Sharding = ""
    """The sharding wrapper that asked for the collective, known from torch's marks in the trace."""


class Exchange(Struct, frozen=True, kw_only=True):
    """What one rank exchanges with the others in a step."""

    sites: tuple[CollectiveSite, ...] = ()
    """The most exposed first."""
    ns: float = 0.0
    """Time in which at least one collective ran."""
    exposed_ns: float = 0.0
    forwards: float = 0.0
    """Forwards of DistributedDataParallel for each optimizer step, as torch marks them."""
    backwards: float = 0.0
    """Backwards for each optimizer step, where Python stacks show them; else 0."""
    world: int = 0
    """Ranks of the job; 0 where the trace does not say."""

    @property
    def calls(self) -> float:
        return sum(site.calls for site in self.sites)

    def share(self, *sites: CollectiveSite) -> float:
        """Of the exposed time: these sites'."""
        whole = sum(site.exposed_ns for site in self.sites)
        return sum(site.exposed_ns for site in sites) / whole if whole else 0.0


class RankPlace(Struct, frozen=True, kw_only=True):
    """A function of the user's on one rank against the other ranks, in a step."""

    rank: int
    place: Place
    ns: float
    others_ns: float
    """The other ranks' median."""
    encloses_steps: bool = False
    """Whether the function holds the training loop: it ran from before the first step to after the
    last."""
    callee: str = ""
    """The function that this one called directly for most of that time, by its recorded name."""
    caller: Place | None = None
    """The user's function that called this one, if the stack shows it."""
