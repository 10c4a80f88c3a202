"""What traced steps did with memory: what they keep for the backward, and what they never free.

Bytes are of one device: the GPU with most of them, else the host as torch's allocator saw it.
"""

from itertools import pairwise

from msgspec import Struct

from ridgeline.records.trace import Place


class ModuleMemory(Struct, frozen=True, kw_only=True):
    """Modules of one class at one depth: what was allocated while their forward ran and was still
    there when it ended. On one with modules inside, theirs is in it."""

    kind: str
    """The class: Block."""
    depth: int
    calls: float
    """A step."""
    held_bytes: float
    """A step, all calls."""
    last_bytes: float = 0.0
    """A step: the last block each call allocated. Of most modules that is their result, which stays
    when the module is checkpointed."""


class StaysBehind(Struct, frozen=True, kw_only=True):
    """Blocks of one size of which each step allocates more than it frees."""

    block_bytes: int
    blocks: float
    """A step, those that stay."""
    ops: tuple[str, ...] = ()
    """Operators that allocate blocks of this size, most first."""
    place: Place | None = None
    """The user's function they are all allocated from; None where there are several."""


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
    """Levels count what was there before the trace, too. On a host never."""
    step_ends_bytes: tuple[int, ...] = ()
    """The level at the end of each marked step."""
    step_allocated_bytes: tuple[int, ...] = ()
    """Bytes that each marked step allocated, whether they were freed again or not."""
    peak_bytes: int = 0
    reserved_bytes: int = -1
    """Most the allocator held of the device; -1 where it is not told."""
    segments: SegmentCalls = SegmentCalls()
    forward_bytes: float = 0.0
    """Most that a step's forward left allocated when its backward began: activations. Without a
    backward: what stays from the model's first operator to the end of its call."""
    modules: tuple[ModuleMemory, ...] = ()
    """By bytes held, the most first."""
    stays: tuple[StaysBehind, ...] = ()
    nodes: float = 0.0
    """Autograd nodes a step's forward made: 0 without gradients."""
    unrun_nodes: float = 0.0
    """Of those: never run by a backward. Those of an evaluation with gradients, or of a loss that
    is only looked at."""
    backwards: bool = False
    """A backward ran."""

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
