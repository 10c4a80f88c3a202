"""Says what a traced step did: arithmetic, bytes, what bound it, and where its wall time went.

Shares are fractions of 1. Times are the traced step's, which tracing makes longer: a rate or an MFU
takes the FLOPs from here and the time from untraced steps.
"""

from itertools import pairwise
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Trust
from ridgeline.records.trace import Place


class Uncounted(Struct, frozen=True, kw_only=True):
    """Operators of one name whose work is not known, without a formula or a recorded shape."""

    op: str
    calls: float
    """Calls per step."""
    share: float
    """Share of operator time."""


class StepWork(Struct, frozen=True, kw_only=True):
    device: Literal["cpu", "cuda"]
    """Where the operators ran; "cuda" is any GPU."""
    steps: int
    """Marked steps in the window; 0 where none are marked and the window counts as one."""
    step_ms: float
    """One traced step on the wall clock."""

    flops: float
    """Matmul-like work per step, 2 FLOPs per MAC, and transforms; causal attention over the full
    square. MFU is defined over these, and the account of a model counts them."""
    all_flops: float
    """The same with elementwise work, norms, softmax and reductions."""
    skipped_flops: float
    """The part of `flops` above the diagonal of causal attention, which fused kernels leave out."""
    recomputed_flops: float = 0.0
    """The part of `flops` in activation checkpointing's second forward, where Python stacks show
    it: a model's FLOPs, and MFU, are without it."""
    bytes: float
    """The least bytes of a step: each operator reads its inputs once and writes its results
    once."""
    flops_by_dtype: dict[str, float] = {}
    """`flops` by arithmetic, in the names of ceilings: float32, tf32, bfloat16, float16 …"""
    dtype: str = ""
    """The arithmetic with most of the FLOPs; empty if there are none."""

    coverage: float
    """Share of operator time (device time on a GPU, host time on a CPU) whose operators have shapes
    and a formula."""
    uncounted: tuple[Uncounted, ...] = ()
    """The largest first."""

    operator_ms: float
    """Time per step in which at least one kernel or copy (GPU) ran, or one operator on any thread
    (CPU, without those that make the input)."""
    op_share: float
    """The same time as a share of the step."""
    input_share: float = 0.0
    """Share of the step in the DataLoader, on a GPU only while the device had nothing to do."""
    communication_share: float = 0.0
    """Share of the step in collectives while nothing else computed."""
    copy_share: float = 0.0
    """Share of the step in copies between host and device while no kernel ran."""
    overhead_share: float = 0.0
    """The rest of the step: Python, launches, waiting for the host."""

    compute_share: float | None = None
    """Share of operator time in operators above the ridge point of their dtype; None without
    ceilings."""
    memory_share: float | None = None
    """Share of operator time in operators below it. Both leave out views, allocations and what is
    not covered."""
    attained: float | None = None
    """Share of the ceiling that binds, over both kinds, weighted by time; no call counts above
    1."""
    compute_attained: float | None = None
    memory_attained: float | None = None

    operators: float = 0.0
    """Kernels and copies per step on a GPU, outermost operators on a CPU."""
    short_share: float = 0.0
    """Share of operator time in operators (kernels) shorter than 10 µs, where starting one costs as
    much as its work."""
    notes: tuple[str, ...] = ()
    trust: Trust = Trust()


class ModuleMemory(Struct, frozen=True, kw_only=True):
    """Modules of one class at one depth: what was allocated while their forward ran and was still
    there when it ended. On one with modules inside, theirs is in it."""

    kind: str
    """The class, such as Block."""
    depth: int
    calls: float
    """A step."""
    held_bytes: float
    """Bytes per step, over all calls."""
    last_bytes: float = 0.0
    """Bytes per step of the last block that each call allocated. Of most modules that is their
    result, which stays when the module is checkpointed."""


class StaysBehind(Struct, frozen=True, kw_only=True):
    """Blocks of one size of which each step allocates more than it frees."""

    block_bytes: int
    blocks: float
    """How many blocks stay, per step."""
    ops: tuple[str, ...] = ()
    """Operators that allocate blocks of this size, the most frequent first."""
    place: Place | None = None
    """The user's function that all of them are allocated from; None if there are several."""


class SegmentCalls(Struct, frozen=True, kw_only=True):
    """Memory asked of the driver, or given back to it, while steps run: cudaMalloc, cudaFree."""

    calls: float = 0.0
    """A step."""
    host_ns: float = 0.0
    """A step."""
    place: Place | None = None
    """The user's function with most of that time."""


class TraceMemory(Struct, frozen=True, kw_only=True):
    device: str
    """cuda:0, cpu"""
    absolute: bool = False
    """Whether levels count what was there before the trace, too; never on a host."""
    step_ends_bytes: tuple[int, ...] = ()
    """The level at the end of each marked step."""
    step_allocated_bytes: tuple[int, ...] = ()
    """Bytes that each marked step allocated, whether they were freed again or not."""
    peak_bytes: int = 0
    reserved_bytes: int = -1
    """The most that the allocator held of the device; -1 if that is not recorded."""
    segments: SegmentCalls = SegmentCalls()
    forward_bytes: float = 0.0
    """The most that a step's forward left allocated when its backward began: activations. Without a
    backward, what stays from the model's first operator to the end of its call."""
    modules: tuple[ModuleMemory, ...] = ()
    """Modules by the bytes they hold, the most first."""
    stays: tuple[StaysBehind, ...] = ()
    nodes: float = 0.0
    """Autograd nodes that a step's forward made; 0 without gradients."""
    unrun_nodes: float = 0.0
    """How many of those nodes no backward ran: the nodes of an evaluation with gradients, or of a
    loss that is only looked at."""
    backwards: bool = False
    """Whether a backward ran."""

    @property
    def growth_bytes(self) -> float:
        """The smallest number of bytes by which a step ends above the step before; 0 if some step
        does not. The smallest counts because the first steps of a trace free blocks from before the
        trace, unseen, and so seem to leave more behind than they do."""
        return _least_rise(self.step_ends_bytes)

    @property
    def work_growth_bytes(self) -> float:
        """The smallest number of bytes by which a step allocates more than the step before. A
        key-value cache is made anew, or read as a whole, for each token, so that the work grows
        along with the memory that is kept. A leak does not use again what it keeps, so that its
        steps are alike."""
        return _least_rise(self.step_allocated_bytes)


def _least_rise(values: tuple[int, ...]) -> float:
    rises = [after - before for before, after in pairwise(values)]
    return float(max(min(rises), 0)) if len(rises) >= 2 else 0.0
