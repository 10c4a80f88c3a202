"""What a model costs: work by phase, by operator and by module, and what was not counted."""

from typing import Literal

from msgspec import Struct

Phase = Literal["forward", "recompute", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "recompute", "backward", "optimizer")

Backend = Literal["real", "fake", "meta"]


class Totals(Struct, frozen=True, kw_only=True):
    """Work summed over calls. `flops` is matmul-like work (2 per MAC) plus FFTs; `all_flops` adds
    elementwise work, norms, softmax and reductions. `bytes` is the ideal-reuse lower bound: each
    operator reads its inputs once and writes its outputs once; views are free."""

    calls: int = 0
    macs: int = 0
    flops: int = 0
    all_flops: int = 0
    bytes: int = 0
    skipped_flops: int = 0
    """The part of `flops` above the diagonal of causal attention, which a fused kernel skips."""

    def __add__(self, other: "Totals") -> "Totals":
        return Totals(
            calls=self.calls + other.calls,
            macs=self.macs + other.macs,
            flops=self.flops + other.flops,
            all_flops=self.all_flops + other.all_flops,
            bytes=self.bytes + other.bytes,
            skipped_flops=self.skipped_flops + other.skipped_flops,
        )


class OpCost(Struct, frozen=True, kw_only=True):
    """One operator at one place: a phase, a module, an arithmetic dtype."""

    op: str
    module: str
    phase: Phase
    dtype: str
    totals: Totals
    formulated: bool


class ModuleCost(Struct, frozen=True, kw_only=True):
    """One module and everything below it."""

    path: str
    """Qualified name; "" is the model itself."""
    type: str
    calls: int
    parameters: int
    """Of this module and its children, shared ones once."""
    phases: dict[Phase, Totals]
    activation_bytes: int = 0
    """What it keeps for backward."""


class Unformulated(Struct, frozen=True, kw_only=True):
    """An operator that moved data and has no formula: its arithmetic is missing from the totals."""

    op: str
    calls: int
    bytes: int


class Parameters(Struct, frozen=True, kw_only=True):
    """Counted by storage: a tied parameter counts once."""

    total: int
    trainable: int
    frozen: int
    tied: int
    """Elements that further names share with one already counted."""
    buffers: int
    parameter_bytes: int
    buffer_bytes: int
    by_dtype: dict[str, int]


class Cost(Struct, frozen=True, kw_only=True):
    backend: Backend
    phases: dict[Phase, Totals]
    ops: tuple[OpCost, ...]
    modules: tuple[ModuleCost, ...]
    coverage_percent: float
    """Share of the bytes moved that belong to operators with a formula."""
    unformulated: tuple[Unformulated, ...]
    dtype: str
    """The arithmetic dtype that does most of the forward's work."""
    notes: tuple[str, ...] = ()
    """Choices that shape the numbers: fast path off, attention counted as fused, scope …"""


class LiveTensor(Struct, frozen=True, kw_only=True):
    """One allocation alive at the peak."""

    kind: str
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    op: str
    module: str


class Memory(Struct, frozen=True, kw_only=True):
    """Bytes by what they are for. `activations` is what forward leaves alive for backward;
    `temporaries` is what else was alive at the peak; `peak` counts everything at once."""

    mode: Literal["inference", "training"]
    source: Literal["predicted", "measured"]
    backend: Backend
    parameters_bytes: int
    buffers_bytes: int
    inputs_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    activations_bytes: int
    temporaries_bytes: int
    peak_bytes: int
    optimizer: str = ""
    peak_phase: str = ""
    peak_op: str = ""
    peak_module: str = ""
    at_peak: dict[str, int] = {}
    """Bytes by kind at the peak."""
    largest_at_peak: tuple[LiveTensor, ...] = ()
    activations_by_module: dict[str, int] = {}
    notes: tuple[str, ...] = ()


class MeasuredPeak(Struct, frozen=True, kw_only=True):
    """The peak of a real run, as the allocator saw it."""

    mode: Literal["inference", "training"]
    peak_bytes: int
    static_bytes: int
    """Alive before the step began: parameters, buffers, inputs, optimizer state."""
    method: str
    reserved_bytes: int | None = None
    """GPU only: what the caching allocator held."""
