"""A traced window as one host and its device went through it, to ask what would be without a wait.

Columns of equal length, an event a row, in the order the host came to them.
"""

from typing import Any, Literal

from msgspec import Struct

from ridgeline.records.trace import Activity, Place


class Replay(Struct, frozen=True, kw_only=True):
    steps: int
    before_ns: tuple[int, ...] = ()
    """The host's own time since the event before, outside what asks for a wait."""
    asking_ns: tuple[int, ...] = ()
    """The host's time inside what asks (the operator, the printing), which goes with the asking."""
    site: tuple[int, ...] = ()
    """The row in `Sites.waits` of what asks for the wait; -1 if nothing does, -2 for a wait that
    stays."""
    dur_ns: tuple[int, ...] = ()
    """The length of the device work that a launch starts; -1 for a wait of the host."""
    stream: tuple[int, ...] = ()
    """The stream of a launch, counted from 0."""
    stays: tuple[bool, ...] = ()
    """For each site, whether its operator is there without the wait too (a copy to the device)."""


class NormedConv(Struct, frozen=True, kw_only=True):
    """Convolutions of one place and module. All figures are for a step."""

    place: Place | None = None
    """The user's function that calls it."""
    module: str = ""
    calls: float = 0.0
    weight: tuple[int, ...] = ()
    """The sizes of the weight; empty without recorded shapes."""
    add_ns: float = 0.0
    """Device time (on a CPU host time) of adding the bias."""
    gradient_ns: float = 0.0
    """The same time of summing the bias's gradient."""
    exposed_ns: float = 0.0
    """The part of both times that is on the critical path."""


class SyncSite(Struct, frozen=True, kw_only=True):
    """Waits of one kind that one place asks for."""

    ops: tuple[str, ...] = ()
    """Operators around the wait, outermost first: aten::is_nonzero, aten::item …"""
    call: str = ""
    """cudaStreamSynchronize, cudaMemcpyAsync …"""
    place: Place | None = None
    """The user's function."""
    via: tuple[str, ...] = ()
    """Functions between the user's and the wait, outermost first: print,
    torch/_tensor_str.py:_str, item. Empty without Python stacks."""
    direction: Literal["", "to device", "to host"] = ""
    """The direction of the copy that is waited for; empty if there is none, or both."""
    times: float = 0.0
    """How often the place asks."""
    waits: float = 0.0
    """How often the host waits there: printing one tensor may wait forty times."""
    bytes: float = 0.0
    """The bytes copied while the host waits."""
    host_ns: float = 0.0
    """How long the host is held. This is not the cost, because the device may work meanwhile."""
    device_ns: float = 0.0
    """Device work that the waiting call asks for: a number copied, the kernels that print a
    tensor."""
    idle_ns: float = 0.0
    """How long the device is idle afterwards, as far as the host would be ahead without the
    wait."""


SitePhase = Literal["input", "forward", "backward", "optimizer", "other"]


class OwnCode(Struct, frozen=True, kw_only=True):
    """Host time of a step in the program's own Python code, outside operators, loader, backward and
    optimizer."""

    ns: float = 0.0
    places: tuple[tuple[Place, float], ...] = ()
    """The user's functions with their ns, the largest first; empty without stacks."""


class SiteKernel(Struct, frozen=True, kw_only=True):
    name: str
    count: float
    ns: float


class OpSite(Struct, frozen=True, kw_only=True):
    """Calls of one operator, with the same inputs, from one place."""

    op: str
    """The innermost operator, such as aten::mm. Its time is without that of operators it calls."""
    within: tuple[str, ...] = ()
    """Operators around it, outermost first: autograd nodes too."""
    dims: tuple[Any, ...] = ()
    """Recorded sizes of each argument: lists of int; lists of lists for lists of tensors; [] else.
    Empty without record_shapes."""
    types: tuple[str, ...] = ()
    """float, c10::BFloat16, Scalar, …: torch's words, an argument each."""
    strides: tuple[Any, ...] = ()
    concrete: tuple[str, ...] = ()
    """Values of arguments that are no tensors, as text; "" for tensors."""
    phase: SitePhase = "other"
    place: Place | None = None
    """The user's function: its line is where the function begins. Of backward operators: the
    function that called the forward one, where the trace joins them."""
    module: str = ""
    """Path of the nn.Module: GPT / Block_3 / Attention_3."""
    calls: float = 0.0
    host_ns: float = 0.0
    """Its own time on the host: on a CPU its work, on a GPU the cost of calling it."""
    device_ns: float = 0.0
    """The time of the kernels and copies that it launched itself."""
    exposed_ns: float = 0.0
    """The part of its work (device time on a GPU, host time on a CPU) that is on the critical
    path."""
    flops: float = 0.0
    """Matmul-like FLOPs of all its calls; 0 without a formula or recorded shapes."""
    executed_flops: float = 0.0
    """All arithmetic that its calls execute, elementwise work included."""
    bytes: float = 0.0
    dtype: str = ""
    """The arithmetic, in the names of ceilings: float32, tf32, bfloat16 …; "" unknown."""
    kernels: tuple[SiteKernel, ...] = ()
    """The costliest first, three at most."""

    @property
    def work_ns(self) -> float:
        """The time it takes where it runs: on the device if it launched anything, else on the
        host."""
        return self.device_ns or self.host_ns

    def inside(self, op: str) -> bool:
        return any(op in name for name in self.within)


class CopySite(Struct, frozen=True, kw_only=True):
    """Copies between host and device that one place asks for."""

    direction: Literal["to device", "to host"]
    pageable: bool | None = None
    """Whether the host memory is not pinned; None if the trace does not tell."""
    op: str = ""
    """The operator that asked: aten::to, aten::item …"""
    place: Place | None = None
    via: tuple[str, ...] = ()
    """Functions between the user's and the copy, as `SyncSite.via` has them."""
    phase: SitePhase = "other"
    dims: tuple[int, ...] = ()
    """The sizes of the tensor, if they were recorded."""
    dtype: str = ""
    offset_ns: int = 0
    """When it runs, counted from the start of its step; orders several copies in one function."""
    copies: float = 0.0
    bytes: float = 0.0
    device_ns: float = 0.0
    exposed_ns: float = 0.0
    """The part of the time in which no kernel ran."""
    path_ns: float = 0.0
    """The part of the device's time that is on the critical path."""
    beside: bool = False
    """Whether the copy is on another stream than most of the kernels' time."""
    host_ns: float = 0.0
    """How long the calling thread is held."""


class Sites(Struct, frozen=True, kw_only=True):
    ops: tuple[OpSite, ...] = ()
    """The costliest first, by host and device time together."""
    copies: tuple[CopySite, ...] = ()
    waits: tuple[SyncSite, ...] = ()
    """The costliest first, by the device's idle time that follows."""
    replay: Replay | None = None
    """The traced steps, to be gone through without some of the waits; None if there are no waits or
    too many events."""
    normed: tuple[NormedConv, ...] = ()
    """Convolutions with a bias right before a batch norm."""
    optimizer: str = ""
    """The optimizer's class, such as SGD, by torch's mark of its `step`; of several the one that
    takes longest; empty without a mark."""
    own_code: OwnCode = OwnCode()
    left_out: int = 0
    """How many operator sites beyond the limit were left out."""
    left_out_ns: float = 0.0
    stacks: bool = False
    """Whether Python stacks were recorded, so that places are known."""
    shapes: bool = False
    steps: int = 1


Sharding = Literal["", "fsdp1", "fsdp2"]
"""The sharding wrapper: "fsdp1" is FullyShardedDataParallel, "fsdp2" is `fully_shard`."""


class CollectiveSite(Struct, frozen=True, kw_only=True):
    """Calls of one collective, of the same size, from one place."""

    name: str
    """all_reduce, all_gather …; "collective" where nothing tells."""
    bytes: int | None = None
    """The bytes of one call; None if the trace does not say."""
    estimated: bool = False
    """Whether `bytes` is from the number of elements, taken for float32."""
    calls: float = 0.0
    ns: float = 0.0
    """The time from this rank's arrival to the end, which contains waiting for the others."""
    held_ns: float = 0.0
    """The time in the call of torch.distributed that asked, if Python stacks show it: also what it
    takes to hand the work over and to be woken."""
    least_ns: float = 0.0
    """The time of the shortest call, which is nearest to one that nobody came late to."""
    exposed_ns: float = 0.0
    """The part of `ns` in which nothing else computed on this rank."""
    phase: SitePhase = "other"
    place: Place | None = None
    """The user's function that asked, or that called the backward in which it was asked for."""
    sharding: Sharding = ""
    """The sharding wrapper that asked for the collective, known from torch's marks in the trace."""


class Exchange(Struct, frozen=True, kw_only=True):
    """Says what one rank exchanges with the others in a step."""

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
        """The exposed time of these sites."""
        whole = sum(site.exposed_ns for site in self.sites)
        return sum(site.exposed_ns for site in sites) / whole if whole else 0.0


class RankPlace(Struct, frozen=True, kw_only=True):
    """A function of the user's on one rank against the other ranks, in a step."""

    rank: int
    place: Place
    ns: float
    others_ns: float
    """The median of the other ranks."""
    encloses_steps: bool = False
    """Whether the function holds the training loop: it ran from before the first step to after the
    last."""
    callee: str = ""
    """The function that this one called directly for most of that time, by its recorded name."""
    caller: Place | None = None
    """The user's function that called this one, if the stack shows it."""


class Callee(Struct, frozen=True, kw_only=True):
    """Says what a function of the user's calls: a library's function, or a built-in one."""

    name: str
    """The name as it is written in a call: loads."""
    within: str = ""
    """The module, such as json, if it is written in Python."""
    ns: int = 0


class InputSite(Struct, frozen=True, kw_only=True):
    """One function of the user's. Times are per step."""

    place: Place
    """A function whose `ns` is without other functions of the user's that it calls."""
    callees: tuple[Callee, ...] = ()
    """The functions it calls, the costliest first, ten at most; their time is part of `ns`."""


class InputSites(Struct, frozen=True, kw_only=True):
    kind: Literal["", "single", "multiple", "by hand"] = ""
    """The DataLoader's iterator by its name: in the program's process, or with workers; by hand:
    a function of the user's that makes batches by its name."""
    ns: float = 0.0
    """The main thread's time in the input, per step."""
    sites: tuple[InputSite, ...] = ()
    """The costliest first; empty with workers, whose work no trace of this process shows."""


class LateRank(Struct, frozen=True, kw_only=True):
    """A rank that the others wait for."""

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
    doing: tuple[Activity, ...] = ()
    """The code this rank was in while the others waited; empty if arrivals were not compared."""
    beside: "LateRank | None" = None
    """Another rank that is late too, for a reason of its own. Each of the two is compared with the
    ranks that are not late: while both are late, neither alone delays the others."""

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
