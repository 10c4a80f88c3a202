"""The evidence of one workload: all that a judgement needs.

A plain record without live objects: one process writes it and another can read it.
"""

from msgspec import Struct

from ridgeline.equality.calls.held_state import Changed
from ridgeline.equality.calls.outputs import Leaf, Outputs


class Probe(Struct, frozen=True, kw_only=True, eq=False):
    """The result of an extra call, or why there is none."""

    outputs: Outputs | None = None
    why: str = ""


class Fresh(Struct, frozen=True, kw_only=True, eq=False):
    """A call on other values in its tensors."""

    how: str
    names: tuple[str, ...] = ()
    """The tensors whose values were changed."""
    outputs: Outputs | None = None
    why: str = ""


class HeldTensor(Struct, frozen=True, kw_only=True):
    """A tensor that the workload could reach before its first call."""

    name: str
    role: str
    shape: tuple[int, ...]
    dtype: str
    digest: int


class Work(Struct, frozen=True, kw_only=True):
    """Says what one call computes and moves, by the operators that torch dispatched."""

    flops: dict[str, int] = {}
    """FLOPs of matrix products, by dtype, without those that a causal kernel skips."""
    convolution_flops: dict[str, int] = {}
    all_flops: int = 0
    """Elementwise work included."""
    bytes: int = 0
    """Moved by all operators, if each input is read once and each output written once."""
    read_bytes: int = 0
    """Bytes of tensors that existed before the call, each counted once: these come from memory."""
    written_bytes: int = 0
    """Bytes of the outputs."""
    unseen: tuple[str, ...] = ()
    """Parts that ran without dispatching operators: CUDA graphs, threads."""

    @property
    def amount(self) -> int:
        return self.all_flops or self.bytes


class Reference(Struct, frozen=True, kw_only=True, eq=False):
    """The baseline's results in float64."""

    outputs: tuple[Outputs, ...] = ()
    state: tuple[Leaf, ...] = ()
    """After the calls, in the order of the evidence's `state`."""
    partial: bool = False
    """Whether part of it came from outside torch, rounded as the baseline's own values are."""
    why_not: str = ""


class Evidence(Struct, frozen=True, kw_only=True, eq=False):
    name: str
    seed: int
    outputs: tuple[Outputs, ...]
    """Outputs of the check calls, in order."""
    call_ns: tuple[float, ...]
    """Duration of each check call, until the device was done; the first one is cold."""
    generator_states: tuple[str, ...]
    """Fingerprint of all random number generators after each check call."""
    state: tuple[Changed, ...]
    """Tensors that the calls changed."""
    held: tuple[HeldTensor, ...]
    unread: tuple[str, ...] = ()
    """Tensors of kinds that cannot be followed."""
    caches: tuple[str, ...] = ()
    """Tensors that the calls made and kept: caches, workspaces."""
    scratch: tuple[str, ...] = ()
    """Changed tensors whose values do not influence the next call."""
    influential: tuple[str, ...] = ()
    """Changed tensors whose values do. For a tensor that is in neither this is unknown."""
    overwritten: tuple[str, ...] = ()
    """Outputs that a later call writes over while the caller holds them."""
    threads: tuple[str, ...] = ()
    poisoned: int = 0
    """Number of calls before which freed memory was spoilt."""
    repeat: Probe = Probe()
    """The first call repeated, from the same state and seed."""
    other_seed: Probe = Probe()
    nudged: Probe = Probe()
    """The first call with every input moved by about its rounding error."""
    nudged_state: tuple[Leaf, ...] = ()
    """The state after all calls with such inputs, in the order of `state`."""
    fresh: tuple[Fresh, ...] = ()
    spread: float | None = None
    """Relative distance of the workload's own repeats; None if not tried."""
    reference: Reference = Reference(why_not="no reference was made")
    work: Work | None = None
    """Work on values that it had been called with before."""
    work_fresh: Work | None = None
    work_why: str = ""
    repeat_ns: tuple[float, ...] = ()
    fresh_ns: tuple[float, ...] = ()
    """Single calls in turns: on values seen before, and on new values."""
    timing_why: str = ""
    notes: tuple[str, ...] = ()
