"""Operators of a traced step by where they are called from, and copies between host and device.

Everything is a step's: counts and times are divided by the steps of the window.
"""

from typing import Any, Literal

from msgspec import Struct

from ridgeline.records.normed_conv import NormedConv
from ridgeline.records.replay import Replay
from ridgeline.records.sync_site import SyncSite
from ridgeline.records.trace import Place

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
    """aten::mm: the innermost operator; its own time, without that of operators it calls."""
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
    """Self, on the host: on a CPU its work, on a GPU the cost of calling it."""
    device_ns: float = 0.0
    """Kernels and copies it launched itself."""
    exposed_ns: float = 0.0
    """Of its work (device time on a GPU, host time on a CPU): on the critical path."""
    flops: float = 0.0
    """All its calls' matmul-like FLOPs; 0 where no formula or no shape tells."""
    bytes: float = 0.0
    dtype: str = ""
    """The arithmetic, in the names of ceilings: float32, tf32, bfloat16 …; "" unknown."""
    kernels: tuple[SiteKernel, ...] = ()
    """The costliest first, three at most."""

    @property
    def work_ns(self) -> float:
        """What it takes where it runs: of the device if it launched anything, else of the host."""
        return self.device_ns or self.host_ns

    def inside(self, op: str) -> bool:
        return any(op in name for name in self.within)


class CopySite(Struct, frozen=True, kw_only=True):
    """Copies between host and device asked for from one place."""

    direction: Literal["to device", "to host"]
    pageable: bool | None = None
    """Host memory not pinned; None where the trace does not tell."""
    op: str = ""
    """The operator that asked: aten::to, aten::item …"""
    place: Place | None = None
    via: tuple[str, ...] = ()
    """Functions between the user's and the copy, as `SyncSite.via` has them."""
    phase: SitePhase = "other"
    dims: tuple[int, ...] = ()
    """Of the tensor, where recorded."""
    dtype: str = ""
    offset_ns: int = 0
    """From the start of its step: the order of several in one function."""
    copies: float = 0.0
    bytes: float = 0.0
    device_ns: float = 0.0
    exposed_ns: float = 0.0
    """While no kernel ran."""
    path_ns: float = 0.0
    """Of the device's time: on the critical path."""
    beside: bool = False
    """On another stream than most of the kernels' time."""
    host_ns: float = 0.0
    """The calling thread held."""


class Sites(Struct, frozen=True, kw_only=True):
    ops: tuple[OpSite, ...] = ()
    """The costliest first, by host and device time together."""
    copies: tuple[CopySite, ...] = ()
    waits: tuple[SyncSite, ...] = ()
    """The costliest first, by the device's idle time that follows."""
    replay: Replay | None = None
    """To ask what would be without some of them; None where there are none, or too many events."""
    normed: tuple[NormedConv, ...] = ()
    """Convolutions with a bias right before a batch norm."""
    optimizer: str = ""
    """The class whose `step` torch marks, SGD: the one that takes longest; "" where none is."""
    own_code: OwnCode = OwnCode()
    left_out: int = 0
    """Operator sites beyond the most that are kept."""
    left_out_ns: float = 0.0
    stacks: bool = False
    """Python stacks were recorded: places are known."""
    shapes: bool = False
    steps: int = 1
