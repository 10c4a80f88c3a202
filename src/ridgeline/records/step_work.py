"""What a traced step did: arithmetic, bytes, what bound it, and where its wall time went.

Shares are fractions of 1. Times are the traced step's, which tracing makes longer: a rate or an MFU
takes the FLOPs from here and the time from untraced steps.
"""

from typing import Literal

from msgspec import Struct

from ridgeline.records.trust import Trust


class Uncounted(Struct, frozen=True, kw_only=True):
    """Operators of one name that no formula, or no recorded shape, tells the work of."""

    op: str
    calls: float
    """A step."""
    share: float
    """Of operator time."""


class StepWork(Struct, frozen=True, kw_only=True):
    device: Literal["cpu", "cuda"]
    """Where the operators ran; "cuda" is any GPU."""
    steps: int
    """Marked steps in the window; 0 where none are marked and the window counts as one."""
    step_ms: float
    """One traced step on the wall clock."""

    flops: float
    """A step: matmul-like work, 2 per MAC, and transforms; causal attention over the full square.
    What MFU is defined over, and what the account of a model counts."""
    all_flops: float
    """With elementwise work, norms, softmax and reductions."""
    skipped_flops: float
    """The part of `flops` above the diagonal of causal attention, which fused kernels leave out."""
    recomputed_flops: float = 0.0
    """The part of `flops` in activation checkpointing's second forward, where Python stacks show
    it: a model's FLOPs, and MFU, are without it."""
    bytes: float
    """A step, at least: each operator reads its inputs once and writes its results once."""
    flops_by_dtype: dict[str, float] = {}
    """`flops` by arithmetic, in the names of ceilings: float32, tf32, bfloat16, float16 …"""
    dtype: str = ""
    """The arithmetic with most of them; "" where there are none."""

    coverage: float
    """Share of operator time (device time on a GPU, host time on a CPU) whose operators have shapes
    and a formula."""
    uncounted: tuple[Uncounted, ...] = ()
    """The largest first."""

    operator_ms: float
    """A step: time in which at least one kernel or copy (GPU), or one operator on any thread (CPU,
    without those that make the input) ran."""
    op_share: float
    """That, of the step."""
    input_share: float = 0.0
    """Of the step: in the DataLoader, on a GPU only while the device had nothing to do."""
    communication_share: float = 0.0
    """Of the step: collectives while nothing else computed."""
    copy_share: float = 0.0
    """Of the step: copies between host and device while no kernel ran."""
    overhead_share: float = 0.0
    """Of the step: the rest. Python, launches, waiting for the host."""

    compute_share: float | None = None
    """Of operator time: in operators above the ridge point of their dtype. None: no ceilings."""
    memory_share: float | None = None
    """Of operator time: in operators below it. The two leave out what is not covered, views and
    allocations."""
    attained: float | None = None
    """Of the ceiling that binds, over both kinds, weighted by time; no call above 1."""
    compute_attained: float | None = None
    memory_attained: float | None = None

    operators: float = 0.0
    """A step: kernels and copies on a GPU, outermost operators on a CPU."""
    short_share: float = 0.0
    """Of operator time: in operators (kernels) shorter than 10 µs, where starting one costs as much
    as its work."""
    notes: tuple[str, ...] = ()
    trust: Trust = Trust()
