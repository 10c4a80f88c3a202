"""The cost of a model: work by phase, operator and module, what was not counted, and memory."""

from typing import Literal

from msgspec import Struct

Phase = Literal["forward", "recompute", "backward", "optimizer"]
PHASES: tuple[Phase, ...] = ("forward", "recompute", "backward", "optimizer")

Backend = Literal["real", "fake", "meta"]


class Totals(Struct, frozen=True, kw_only=True):
    """Work summed over calls. `flops` is the work of matrix products (2 per MAC) and FFTs;
    `all_flops` adds elementwise work, norms, softmax and reductions. `bytes` is a lower bound:
    every operator reads its inputs once and writes its outputs once; views are free."""

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
    """The work of one operator in one phase and one module, with one arithmetic dtype."""

    op: str
    module: str
    phase: Phase
    dtype: str
    totals: Totals
    formulated: bool
    """Whether the operator has a formula."""


class ModuleCost(Struct, frozen=True, kw_only=True):
    """One module and everything below it."""

    path: str
    """The qualified name; "" is the model itself."""
    type: str
    calls: int
    parameters: int
    """The parameters of this module and its children; a shared one counts once."""
    phases: dict[Phase, Totals]
    activation_bytes: int = 0
    """The bytes that it keeps for backward."""


class Unformulated(Struct, frozen=True, kw_only=True):
    """An operator that moved data and has no formula: its arithmetic is missing from the totals."""

    op: str
    calls: int
    bytes: int


class Parameters(Struct, frozen=True, kw_only=True):
    """The parameters of a model, counted by storage: a tied parameter counts once."""

    total: int
    trainable: int
    frozen: int
    tied: int
    """Elements under further names that were already counted under the first one."""
    buffers: int
    parameter_bytes: int
    buffer_bytes: int
    by_dtype: dict[str, int]


class Cost(Struct, frozen=True, kw_only=True):
    """Says what one pass of a model costs."""

    backend: Backend
    phases: dict[Phase, Totals]
    ops: tuple[OpCost, ...]
    modules: tuple[ModuleCost, ...]
    coverage_percent: float
    """The share of moved bytes that belongs to operators with a formula."""
    unformulated: tuple[Unformulated, ...]
    dtype: str
    """The arithmetic dtype of most of the forward's work."""
    notes: tuple[str, ...] = ()
    """Choices that affect the numbers: no fast path, attention counted as fused, the scope …"""


class LiveTensor(Struct, frozen=True, kw_only=True):
    """One tensor that was allocated at the peak."""

    kind: str
    bytes: int
    shape: tuple[int, ...]
    dtype: str
    op: str
    module: str


class Memory(Struct, frozen=True, kw_only=True):
    """Memory of a pass by purpose. `activations` is what forward keeps for backward; `temporaries`
    is what else was allocated at the peak; `peak` counts all at once."""

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
    workspaces_bytes: int = 0
    """Bytes that cuBLAS keeps on a GPU. They are part of the peak."""
    optimizer: str = ""
    peak_phase: str = ""
    peak_op: str = ""
    peak_module: str = ""
    at_peak: dict[str, int] = {}
    """Bytes by kind at the peak."""
    largest_at_peak: tuple[LiveTensor, ...] = ()
    activations_by_module: dict[str, int] = {}
    unpredicted: tuple[str, ...] = ()
    """The operators whose internal memory is not part of the prediction."""
    notes: tuple[str, ...] = ()


class MeasuredPeak(Struct, frozen=True, kw_only=True):
    """The peak of a real run, as the allocator saw it."""

    mode: Literal["inference", "training"]
    peak_bytes: int
    static_bytes: int
    """What was allocated before the step began: parameters, buffers, inputs, optimizer state."""
    method: str
    reserved_bytes: int | None = None
    """GPUs only: what the caching allocator had reserved."""
