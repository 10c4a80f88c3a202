"""The memory of the traced steps, as the program's own process writes it beside the trace, and what
refers to tensors that pile up.

The trace itself has sizes but no addresses and no lines of calls: only torch's profiler knows them,
inside the program.
"""

from typing import Literal

from msgspec import Struct

from ridgeline.records.memory import MemoryKind

ALLOCATIONS_SCHEMA = 1

TracedPhase = Literal["other", "input", "forward", "backward", "optimizer", "zero-grad"]
PHASES: tuple[TracedPhase, ...] = (
    "other", "input", "forward", "backward", "optimizer", "zero-grad",
)  # fmt: skip
"""In the order of their codes in `TracedAllocations.phase`."""


class Stock(Struct, frozen=True, kw_only=True):
    """Tensors of one kind that the program's models and optimizers hold on one device."""

    device: str
    kind: MemoryKind
    bytes: int
    tensors: int
    addresses: tuple[int, ...] = ()


class LineRange(Struct, frozen=True, array_like=True):
    """A line of the user's source, as far as the profiler tells it."""

    file: str
    line: int
    last_line: int
    """Larger than `line` if all that is known is that the line lies between the two: an operator
    such as `a + b` is no call, and has no line of its own."""
    function: str = ""


class TracedSpan(Struct, frozen=True, array_like=True):
    """Time that the main thread spent in one phase of a traced step."""

    phase: int
    start_ns: int
    end_ns: int
    place: int


class TracedAllocations(Struct, frozen=True, kw_only=True):
    """Every allocation (bytes > 0) and release (bytes < 0) of the traced steps, as columns in order
    of time. Codes are indices into the tables; -1 means not known."""

    schema: int = ALLOCATIONS_SCHEMA
    places: tuple[LineRange, ...] = ()
    modules: tuple[str, ...] = ()
    """Classes of nested modules, outermost first, such as GPT / Block / Linear."""
    operators: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    at_ns: tuple[int, ...] = ()
    address: tuple[int, ...] = ()
    bytes: tuple[int, ...] = ()
    allocated: tuple[int, ...] = ()
    """The bytes in use on the device after the event; on a CPU those that were allocated since the
    recording began."""
    device: tuple[int, ...] = ()
    place: tuple[int, ...] = ()
    module: tuple[int, ...] = ()
    operator: tuple[int, ...] = ()
    phase: tuple[int, ...] = ()
    step_starts_ns: tuple[int, ...] = ()
    ends_ns: int = 0
    spans: tuple[TracedSpan, ...] = ()
    before: tuple[Stock, ...] = ()
    """The memory of models and optimizers when the first traced step began."""
    after: tuple[Stock, ...] = ()
    """The same when the last traced step had ended."""


class HeldTensors(Struct, frozen=True, kw_only=True):
    """A container that grew from step to step, or a tensor whose graph did, and how the program
    reaches it."""

    holder: str
    """list, dict, deque, set, tensor, …: the type of the container, or of the one tensor."""
    name: str = ""
    """The name under which it is reached, such as `losses` or `cache`; "" if it is not known."""
    owner: Literal["local", "global", "attribute", "closure", ""] = ""
    owner_name: str = ""
    """The function, module or class that the name belongs to: main, train, Model."""
    file: str = ""
    line: int = 0
    """The line at which the function stood."""
    per_step: float = 0.0
    """Entries (of a graph, nodes) that it gained in a step."""
    entries: int = 0
    bytes: int = 0
    """Bytes of the tensors and arrays in it; extrapolated for a large container."""
    bytes_per_step: float = 0.0
    kind: Literal["tensors", "graph", "objects"] = "tensors"
    """What grew: entries with tensors or arrays; the autograd graph behind one tensor; entries
    without either."""
    steps: int = 0
    """Steps between the two looks."""


class LiveTensors(Struct, frozen=True, kw_only=True):
    """Tensors of one kind that Python objects held when memory ran out."""

    kind: MemoryKind
    device: str
    bytes: int
    tensors: int
