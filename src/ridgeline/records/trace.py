"""Says what a trace says: where each device's time went, why it idled, and how far that can be
believed.

Times are nanoseconds, shares fractions of 1. A figure that cannot be believed is None, and the
`trust` of its section says why.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Check, Reason, Trust
from ridgeline.records.machine import Ceiling

Cause = Literal[
    "input",
    "synchronisation",
    "transfer",
    "launch-bound",
    "allocator",
    "compile",
    "collective wait",
    "garbage collection",
    "other host",
    "between kernels",
    "unknown",
]
Category = Literal[
    "convolution",
    "matmul",
    "attention",
    "norm",
    "elementwise",
    "reduction",
    "copy",
    "optimizer",
    "communication",
    "embedding",
    "other",
]


class Place(Struct, frozen=True, kw_only=True):
    """A line of the user's own code."""

    file: str
    line: int
    function: str = ""
    ns: int = 0


class Window(Struct, frozen=True, kw_only=True):
    """The span all figures are over."""

    start_ns: int
    end_ns: int
    basis: str
    """What chose it: "device activity", "steps 3 to 5", "host activity (no device work)"."""
    by_steps: bool = False
    """Whether the person chose it by step numbers."""
    steps: int = 0
    """Steps inside: marked ones, or those that the optimizer's calls end."""
    note: str = ""

    @property
    def ns(self) -> int:
        return self.end_ns - self.start_ns


class StreamTime(Struct, frozen=True, kw_only=True):
    stream: int
    busy_ns: int
    operations: int


class StepTime(Struct, frozen=True, kw_only=True):
    """One step as the host marked it; the device's share of that span."""

    name: str
    start_ns: int
    dur_ns: int
    busy_ns: int
    idle_ns: int
    whole: bool = True
    """False: device work of this step is known to lie outside the mark or the trace."""


class DeviceTime(Struct, frozen=True, kw_only=True):
    device: int
    name: str = ""
    rank: int | None = None
    window: Window
    busy_ns: int | None = None
    """Union of kernels, copies and fills: time in which at least one ran."""
    idle_ns: int | None = None
    kernel_ns: int = 0
    """Union of kernels that are not communication."""
    communication_ns: int = 0
    exposed_communication_ns: int = 0
    """Communication while no other kernel ran."""
    copy_ns: int = 0
    exposed_copy_ns: int = 0
    operations: int = 0
    streams: tuple[StreamTime, ...] = ()
    steps: tuple[StepTime, ...] = ()
    trust: Trust = Trust()


class IdleCause(Struct, frozen=True, kw_only=True):
    cause: Cause
    ns: int
    share: float
    """The share of all idle time."""
    gaps: int = 0
    places: tuple[Place, ...] = ()
    """Lines of the user's code, the costliest first; empty without Python stacks."""
    says: str = ""
    """The host was in this for most of that time: `enumerate(DataLoader)…`, a synchronisation."""


class Gap(Struct, frozen=True, kw_only=True):
    device: int
    start_ns: int
    dur_ns: int
    cause: Cause
    before: str
    """The device operation that ended it was idle after."""
    after: str
    host: str = ""
    """What the host was in."""
    place: Place | None = None
    step: str = ""


class Idle(Struct, frozen=True, kw_only=True):
    total_ns: int | None = None
    causes: tuple[IdleCause, ...] = ()
    """Largest first; they add up to the total."""
    top: tuple[Gap, ...] = ()
    gaps: int = 0
    histogram: tuple[tuple[int, int, int], ...] = ()
    """(up to ns, gaps, total ns) by power of ten."""
    trust: Trust = Trust()


class KernelRow(Struct, frozen=True, kw_only=True):
    name: str
    category: Category
    count: int
    total_ns: int
    share: float
    """The share of the summed time of device operations."""
    mean_ns: float
    least_ns: int
    most_ns: int
    op: str = ""
    """The operator that launches it most."""
    tensor_cores: bool | None = None
    """Whether the kernel's name says so; None where the name does not tell."""


class OpRow(Struct, frozen=True, kw_only=True):
    name: str
    shape: str = ""
    """Inputs, where the table is by shape."""
    count: int
    host_ns: int
    """The time of the operator and of what it calls."""
    host_self_ns: int
    device_ns: int
    """Device work launched by it or by what it calls."""
    device_self_ns: int
    """Device work launched by it directly."""
    share: float
    """The share of device time by self; without device work, of host time by self."""
    category: Category = "other"


class ModuleRow(Struct, frozen=True, kw_only=True):
    """An nn.Module, by its place in the tree where stacks tell it."""

    path: str
    """ResNet / layer1 / Bottleneck_0 …, as the trace names them."""
    kind: str
    """The class: Linear, Bottleneck."""
    depth: int
    count: int
    host_ns: int
    device_ns: int
    device_self_ns: int
    share: float
    """The share of device time, with what the module contains."""


class CategoryRow(Struct, frozen=True, kw_only=True):
    category: Category
    device_ns: int
    count: int
    share: float


RooflineLimit = Literal["compute", "memory", "overhead", ""]
MAX_SHORT_NS = 10_000
"""Below this mean time of a call, starting an operator or a kernel costs as much as its work."""
MAX_OVERHEAD_ATTAINED = 0.25
"""A short operator that reaches a larger share of its ceiling is limited by that ceiling."""


class RooflineRow(Struct, frozen=True, kw_only=True):
    """An operator with the shapes it was called with, against what the device can do. Of a module
    or a kernel: all its work together, without shapes."""

    op: str
    shape: str
    dtype: str
    count: int
    device_ns: int
    share: float
    flops: float
    """All arithmetic of one call."""
    bytes: float
    """Bytes of one call, each input read and each output written once: a lower bound."""
    flops_s: float
    bytes_s: float
    intensity: float
    bound: Literal["compute", "memory", ""]
    attained: float | None = None
    """Share of the ceiling that binds; None if no ceiling is known, or if it was exceeded."""
    over_ceiling: bool = False
    """Whether the operator is faster than the ceiling by more than measuring tolerance. There is
    then no share of the ceiling."""
    ceiling: float | None = None
    """FLOP/s or bytes/s."""
    source: str = ""
    """measured, datasheet, or why there is none."""
    note: str = ""
    place: Place | None = None
    """The user's function that most of this time is called from; None where no stack tells it."""
    module: str = ""
    """The module with most of this time: GPT / Block_3 / Attention_3."""

    @property
    def mean_ns(self) -> float:
        return self.device_ns / max(self.count, 1)

    @property
    def limit(self) -> RooflineLimit:
        """Return what limits it; "" if no ceiling is known or it has no known work."""
        is_short = self.mean_ns < MAX_SHORT_NS and not self.over_ceiling
        if self.bound and is_short and (self.attained or 0.0) < MAX_OVERHEAD_ATTAINED:
            return "overhead"
        return self.bound


def attained_share(rows: Sequence[RooflineRow]) -> float | None:
    """Return how much of their ceilings the rows reach, weighted by time; None where no ceiling is
    known. Data in a cache, or a Winograd product, may be faster than a ceiling that does not bind
    it: such a row counts as having reached its ceiling."""
    known = [
        (row.device_ns, 1.0 if row.over_ceiling else row.attained)
        for row in rows
        if row.over_ceiling or row.attained is not None
    ]
    spent = sum(ns for ns, _ in known)
    return sum(ns * min(share or 0.0, 1.0) for ns, share in known) / spent if spent else None


class Roofline(Struct, frozen=True, kw_only=True):
    device: str = ""
    rows: tuple[RooflineRow, ...] = ()
    covered: float = 0.0
    """Share of device time whose operators have shapes and a formula."""
    uncovered: tuple[tuple[str, int], ...] = ()
    """The largest left out: operator, device ns."""
    modules: tuple[RooflineRow, ...] = ()
    """The work that each module calls itself, without that of the modules inside."""
    kernels: tuple[RooflineRow, ...] = ()
    """Kernels that do the whole work of their operators."""
    ceilings: tuple[Ceiling, ...] = ()
    """The device's ceilings, as far as they are known; also those that are not used."""
    trust: Trust = Trust()

    def share_of(self, limit: RooflineLimit) -> float:
        """Return the share of time in operators with this limit."""
        return sum(row.share for row in self.rows if row.limit == limit)

    def attained_of(self, bound: Literal["compute", "memory"]) -> float | None:
        """Return how much of their ceiling operators with this bound reach, weighted by time; None
        where no ceiling is known."""
        return attained_share([row for row in self.rows if row.limit == bound])


class Launch(Struct, frozen=True, kw_only=True):
    """Says how work gets to the device."""

    launches: int = 0
    per_step: float | None = None
    median_latency_ns: float | None = None
    """The time from the start of a launching call to the start of its work on the device."""
    p95_latency_ns: float | None = None
    median_call_ns: float | None = None
    linked: float = 1.0
    """Share of device operations whose launching call is in the trace."""
    median_queue: float | None = None
    """Operations launched and not yet started, seen at each launch."""
    empty_queue: float | None = None
    """Share of launches that found nothing waiting or running: the device had to wait for them."""
    small_kernels: float = 0.0
    """Share of kernels under 10 µs."""
    small_kernel_time: float = 0.0
    tensor_core_time: float | None = None
    """Share of matmul, convolution and attention time on tensor cores, by kernel name."""
    of: str = ""
    """The rank whose figures these are, if there are several ranks."""
    trust: Trust = Trust()


class Overlap(Struct, frozen=True, kw_only=True):
    """The window, split by who was working."""

    both_ns: int = 0
    host_ns: int = 0
    device_ns: int = 0
    neither_ns: int = 0
    trust: Trust = Trust()


class Phase(Struct, frozen=True, kw_only=True):
    phase: Literal["input", "forward", "backward", "optimizer", "other"]
    host_ns: int
    device_ns: int
    """Device work launched in it."""
    share: float
    """The share of the window's host time on the threads that drive the device."""


class MemoryCurve(Struct, frozen=True, kw_only=True):
    device: str
    """cuda:0, cpu."""
    points: tuple[tuple[int, int, int], ...]
    """(ns, allocated bytes, reserved bytes or -1), thinned so that every peak stays."""
    peak_bytes: int
    peak_ns: int
    peak_step: str = ""
    peak_phase: str = ""
    """forward, backward, optimizer, input; "" where nothing tells it."""
    peak_op: str = ""
    peak_module: str = ""
    """GPT_0 / Block_3: with stacks."""
    start_bytes: int = 0
    end_bytes: int = 0
    reserved_peak_bytes: int = -1
    events: int = 0
    note: str = ""
    """E.g. that the curve is relative: the trace does not say what was allocated before."""


class PathShare(Struct, frozen=True, kw_only=True):
    what: str
    """host: aten::addmm · device: ampere_sgemm… · waiting: launch latency."""
    side: Literal["host", "device", "wait"]
    ns: int
    share: float
    count: int


class CriticalPath(Struct, frozen=True, kw_only=True):
    """The chain of work that decided when the window ended: all else could be shorter in vain."""

    total_ns: int = 0
    host_ns: int = 0
    device_ns: int = 0
    wait_ns: int = 0
    top: tuple[PathShare, ...] = ()
    of: str = ""
    """The rank whose figures these are, if there are several ranks."""
    trust: Trust = Trust()


class Region(Struct, frozen=True, kw_only=True):
    """A CUDA graph or a compiled region."""

    kind: Literal["graph", "compiled", "compilation"]
    name: str
    count: int
    host_ns: int
    device_ns: int
    operations: int
    note: str = ""


class Activity(Struct, frozen=True, kw_only=True):
    """Says what a late rank was in while the others waited for it."""

    ns: int
    side: Literal["device", "host", "unrecorded", "before the trace"] = "device"
    """`host`: its device was idle. `unrecorded`: so was its host, as far as the trace shows."""
    name: str = ""
    """An operator, a kernel, a Python function or a span."""
    phase: str = ""
    """backward, input or optimizer, where the trace tells it."""
    module: str = ""

    @property
    def described(self) -> str:
        if self.side == "before the trace":
            return "before its trace begins"
        if self.side == "unrecorded":
            return "nothing recorded"
        phase = f" in {self.phase}" if self.phase else ""
        return f"{self.name}{phase}{f' of {self.module}' if self.module else ''}"

    @property
    def label(self) -> str:
        """The description, marked where the device was idle."""
        return f"host: {self.described}" if self.side in ("host", "unrecorded") else self.described


class RankTime(Struct, frozen=True, kw_only=True):
    rank: int
    label: str
    busy_ns: int | None
    idle_ns: int | None
    window_ns: int
    compute_ns: int
    communication_ns: int
    wait_ns: int | None = None
    """The time in collectives before the last rank had come."""
    transfer_ns: int | None = None
    """The time in collectives after the last rank had come."""
    exposed_communication_ns: int = 0
    overlap: float = 0.0
    """Share of communication hidden behind compute."""
    clock_offset_ns: int = 0
    """Added to its times so that collectives end together."""
    late_count: int = 0
    """Collectives this rank was the last to join."""
    caused_wait_ns: int = 0
    """What the others waited for it, summed over ranks."""
    doing: tuple[Activity, ...] = ()
    """What the rank did while it was late, the largest part first."""


class CollectiveRow(Struct, frozen=True, kw_only=True):
    name: str
    group: str = ""
    count: int
    bytes: int | None = None
    """Bytes of one call; None where the trace does not say."""
    wire_ns: int
    """Median time from the last rank's arrival to the end."""
    wait_ns: int
    """Summed over ranks and calls."""
    skew_ns: int
    """Largest difference of arrival."""
    algorithm_bytes_s: float | None = None
    bus_bytes_s: float | None = None
    late_rank: int | None = None


class Ranks(Struct, frozen=True, kw_only=True):
    ranks: tuple[RankTime, ...] = ()
    collectives: tuple[CollectiveRow, ...] = ()
    matched: int = 0
    unmatched: int = 0
    late: str = ""
    """One sentence: who was late and with what."""
    trust: Trust = Trust()


class TraceVerdict(StrEnum):
    """Says what held the device back, or what it was busy with. `devices` counts those whose time
    is known; `window_ns` is the length of their windows, from the shortest to `longest_ns`, which
    is None if all are as long."""

    BUSY = "trace.busy"  # share, devices, window_ns, longest_ns
    BUSY_WITH = "trace.busy-with"  # the same, category, category_share
    COPIES = "trace.copies"  # those of BUSY, copied_share
    IDLE = "trace.idle"  # those of BUSY, idle_cause, cause_share, place
    UNKNOWN = "trace.unknown"  # doubt
    NO_TIMED_WORK = "trace.no-timed-work"
    NO_OPERATORS = "trace.no-operators"  # window_ns
    GPU_NOT_RECORDED = "trace.gpu-not-recorded"  # evidence, op, ns
    HOST_ONLY = "trace.host-only"  # op, ns


class TraceStudy(Struct, frozen=True, kw_only=True):
    """Everything one or several files say."""

    files: tuple[str, ...]
    events: int
    label: str
    torch: str = ""
    backend: str = ""
    """The backend of the process group, where the trace tells it: nccl."""
    verdict: Reason | None = None
    """What held the device back: a `TraceVerdict`."""
    trust: Trust = Trust()
    """How far the verdict can be believed."""
    window: Window
    validation: tuple[Check, ...] = ()
    devices: tuple[DeviceTime, ...] = ()
    idle: Idle = Idle()
    launch: Launch = Launch()
    overlap: Overlap = Overlap()
    kernels: tuple[KernelRow, ...] = ()
    kernels_left_out: int = 0
    ops: tuple[OpRow, ...] = ()
    shapes: tuple[OpRow, ...] = ()
    """Operators by shape."""
    modules: tuple[ModuleRow, ...] = ()
    categories: tuple[CategoryRow, ...] = ()
    roofline: Roofline = Roofline()
    phases: tuple[Phase, ...] = ()
    memory: tuple[MemoryCurve, ...] = ()
    critical_path: CriticalPath = CriticalPath()
    regions: tuple[Region, ...] = ()
    ranks: Ranks | None = None
    missing: tuple[str, ...] = ()
    """What the trace does not hold, and how to record it: no stacks → with_stack=True."""


class Difference(Struct, frozen=True, kw_only=True):
    """One row of two traces side by side, per step where both have steps."""

    of: Literal["kernel", "op", "module", "category", "cause", "phase", "total"]
    name: str
    before_ns: float
    after_ns: float
    before_count: float
    after_count: float

    @property
    def change_ns(self) -> float:
        return self.after_ns - self.before_ns


class TraceComparison(Struct, frozen=True, kw_only=True):
    before: str
    after: str
    per: Literal["step", "trace"]
    """What the figures are per: a step, where both traces have marks; else the whole."""
    before_ns: float
    after_ns: float
    differences: tuple[Difference, ...] = ()
    """Largest change first within each kind."""
    validation: tuple[Check, ...] = ()
    verdict: str = ""
    note: str = ""
    """One trace each is no proof: `ridgeline compare` measures."""
