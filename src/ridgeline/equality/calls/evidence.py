"""What was observed of one workload: everything a judgement needs, and nothing that is alive.

A plain record: it can be written down in the process that holds the workload and read in another.
"""

from msgspec import Struct

from ridgeline.equality.calls.held_state import Changed
from ridgeline.equality.calls.outputs import Leaf, Outputs


class Probe(Struct, frozen=True, kw_only=True, eq=False):
    """What an extra call returned, or why there was none."""

    outputs: Outputs | None = None
    why: str = ""


class Fresh(Struct, frozen=True, kw_only=True, eq=False):
    """A call on other content."""

    how: str
    names: tuple[str, ...] = ()
    """The tensors whose content was changed."""
    outputs: Outputs | None = None
    why: str = ""


class Seen(Struct, frozen=True, kw_only=True):
    """A tensor that the workload could reach before its first call."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    digest: int


class Work(Struct, frozen=True, kw_only=True):
    """What one call computes and moves, by the operators that torch dispatched."""

    flops: dict[str, int] = {}
    """Of products, by dtype, without those a causal kernel skips; convolutions apart."""
    convolution_flops: dict[str, int] = {}
    all_flops: int = 0
    """Elementwise work included."""
    bytes: int = 0
    """Moved by all operators, each input read once and each output written once."""
    read_bytes: int = 0
    """Of tensors that stood there before the call, each counted once: must come from memory."""
    written_bytes: int = 0
    """Of the outputs."""
    unseen: tuple[str, ...] = ()
    """What ran where no operator is dispatched: CUDA graphs, threads."""

    @property
    def amount(self) -> int:
        return self.all_flops or self.bytes


class Reference(Struct, frozen=True, kw_only=True, eq=False):
    """The baseline in float64."""

    outputs: tuple[Outputs, ...] = ()
    state: tuple[Leaf, ...] = ()
    """After the calls, in the order of the evidence's `state`."""
    partial: bool = False
    """Part of it came from outside torch, as rounded as the baseline's own."""
    why_not: str = ""


class Evidence(Struct, frozen=True, kw_only=True, eq=False):
    name: str
    seed: int
    outputs: tuple[Outputs, ...]
    """Of the check calls, in order."""
    call_ns: tuple[float, ...]
    """What each took, until the device was done; the first one cold."""
    drawn: tuple[str, ...]
    """Where the generators of random numbers stood after each."""
    state: tuple[Changed, ...]
    """What the calls changed."""
    seen: tuple[Seen, ...]
    unread: tuple[str, ...] = ()
    """Tensors of kinds that cannot be followed."""
    made: tuple[str, ...] = ()
    """Tensors that the calls made and kept: caches, workspaces."""
    scratch: tuple[str, ...] = ()
    """Of the changed tensors, those whose content does not matter to the next call."""
    heeded: tuple[str, ...] = ()
    """Of the changed tensors, those whose content does; what is in neither was not found out."""
    reused: tuple[str, ...] = ()
    """Outputs that a later call writes over while the caller holds them."""
    threads: tuple[str, ...] = ()
    poisoned: int = 0
    """Calls before which freed memory was spoilt."""
    repeat: Probe = Probe()
    """The first call once more, from the same state and seed."""
    other_seed: Probe = Probe()
    nudged: Probe = Probe()
    """With every input moved by about its rounding error."""
    nudged_state: tuple[Leaf, ...] = ()
    """What the calls leave behind then, in the order of `state`."""
    fresh: tuple[Fresh, ...] = ()
    spread: float | None = None
    """How far the workload's own repeats lie from each other, relative; None where not tried."""
    reference: Reference = Reference(why_not="not asked for")
    work: Work | None = None
    """On content that it had been called with."""
    work_fresh: Work | None = None
    work_why: str = ""
    repeat_ns: tuple[float, ...] = ()
    fresh_ns: tuple[float, ...] = ()
    """Single calls in turns: on content seen before, and on other content."""
    timing_why: str = ""
    notes: tuple[str, ...] = ()
