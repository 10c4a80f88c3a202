"""The results of a study of memory: of a snapshot of the CUDA allocator, of the traced steps of a
run, or of the moment in which memory ran out.

Times are nanoseconds since the first recorded event. Sizes are what the program asked for, before
the allocator rounds them up, unless a field says otherwise.
"""

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from ridgeline.records.facts import Place, Reason


class MemoryKind(StrEnum):
    """The use of a block of memory, in the order in which pictures stack the kinds."""

    PARAMETER = "parameter"
    BUFFER = "buffer"
    GRADIENT = "gradient"
    OPTIMIZER_STATE = "optimizer state"
    INPUT = "input"
    ACTIVATION = "activation"
    TEMPORARY = "temporary"
    WORKSPACE = "workspace"
    UNKNOWN = "unknown"


class Owner(Struct, frozen=True, kw_only=True):
    """Live blocks of one kind that one line of the program allocated."""

    place: Place | None
    """The innermost frame of the user's own code; None if the stack has none, or there is no
    stack."""
    kind: MemoryKind
    bytes: int
    blocks: int
    module: str = ""
    """The path of the innermost module that was called, such as GPT / Block / Linear."""
    outer: Place | None = None
    """The outermost frame of the user's own code, where that is another line."""


class StackMemory(Struct, frozen=True, kw_only=True):
    """A frame in the tree of stacks of the live blocks, with all blocks below it."""

    parent: int
    """Index of its caller; -1 for the outermost."""
    function: str
    file: str
    line: int
    is_own: bool
    """Whether it is the program's own code, and not torch's or a library's."""
    bytes: int
    blocks: int


class Peak(Struct, frozen=True, kw_only=True):
    """The live blocks at the moment at which most memory was allocated."""

    bytes: int
    at_ns: int
    reserved_bytes: int = 0
    """Bytes of the device that the allocator held at that moment."""
    step: int | None = None
    """Number of the step, from 0, if steps are known."""
    phase: str = ""
    by_kind: dict[MemoryKind, int] = {}
    owners: tuple[Owner, ...] = ()
    """The largest first."""
    owners_left_out: int = 0
    by_module: dict[str, int] = {}
    stacks: tuple[StackMemory, ...] = ()
    """Each after its caller."""
    before_recording_bytes: int = 0
    """The part that was allocated before recording began, without a stack."""


class LevelsOverTime(Struct, frozen=True, kw_only=True):
    """Allocated memory over time, stacked by kind; thinned so that every peak stays."""

    at_ns: tuple[int, ...] = ()
    levels: dict[MemoryKind, tuple[int, ...]] = {}
    """For each kind that occurs, its bytes at each moment."""
    reserved: tuple[int, ...] = ()
    step_starts_ns: tuple[int, ...] = ()
    left_out: int = 0
    """How many further moments the record counts but does not hold."""


class Growth(Struct, frozen=True, kw_only=True):
    """Memory that one line leaves behind in each step."""

    place: Place | None
    kind: MemoryKind
    bytes_per_step: float
    blocks_per_step: float
    steps: int
    """Over how many steps it was seen."""
    held_by: tuple[str, ...] = ()
    """The objects that refer to it, nearest first, if known: list `losses` of train.py:main."""


class Fragmentation(Struct, frozen=True, kw_only=True):
    """How the allocator's segments are filled."""

    reserved_bytes: int
    allocated_bytes: int
    """In blocks that are in use, as the allocator rounds them."""
    requested_bytes: int
    """Bytes that the program asked for; the rest of `allocated_bytes` is rounding."""
    free_bytes: int
    """Free within segments: cached and, where a segment is partly used, not to be given back."""
    stuck_bytes: int
    """The part of `free_bytes` in segments that also hold a block in use: fragments."""
    largest_free_bytes: int
    segments: int
    expandable: bool = False
    """Whether the program uses expandable segments already."""
    expandable_saves_bytes: int = 0
    """Bytes that expandable segments would give back: whole pages of 2 MiB within `stuck_bytes`."""
    retries: int = 0
    """How often the allocator gave back its cache and tried again."""


class Shortage(Struct, frozen=True, kw_only=True):
    """A request that failed."""

    requested_bytes: int
    free_bytes: int
    """Free on the device, outside what the allocator had reserved."""
    total_bytes: int
    """Size of the device; 0 where it is not known, as a snapshot does not say."""
    largest_free_bytes: int
    """The largest free block within what was reserved."""
    fragmented: bool
    """Whether free memory of the allocator would have been enough in one piece."""
    place: Place | None = None
    phase: str = ""
    step: int | None = None
    at_ns: int = 0
    usual_bytes: int = 0
    """The largest block that the same line allocated in the traced steps; 0 if it is not known."""


class MemoryAdvice(Struct, frozen=True, kw_only=True):
    """A way to need less memory, with its predicted effect."""

    reason: Reason
    """A code of `AdviceCode`, and its facts."""
    saves_bytes: int
    """Bytes of the peak; an upper bound if `is_bound`."""
    is_bound: bool = False
    slowdown: float | None = None
    """Factor on the time of a step, where it is known; 1.0 costs nothing."""
    fix: str = ""
    """The id of the fix that does it, if there is one."""


class MemoryNote(StrEnum):
    """Says what a study of memory lacks, or rests on. The comment names the facts of the reason."""

    NO_STACKS = "memory.no-stacks"
    NO_HISTORY = "memory.no-history"
    NO_TIMES = "memory.no-times"
    NO_STEPS = "memory.no-steps"
    EVENTS_LOST = "memory.events-lost"  # bytes
    BEFORE_RECORDING = "memory.before-recording"  # bytes
    KINDS_BY_SIZE = "memory.kinds-by-size"  # bytes
    DAMAGED = "memory.damaged"  # count
    UNMATCHED = "memory.unmatched"  # count
    END_DIFFERS = "memory.end-differs"  # replayed_bytes, snapshot_bytes


class AdviceCode(StrEnum):
    """Says how memory can be saved. The comment names the facts of the reason."""

    EXPANDABLE_SEGMENTS = "memory.expandable-segments"  # stuck_bytes
    CHECKPOINT = "memory.checkpoint"  # activations_bytes, repeats
    FREE_GRADIENTS = "memory.free-gradients"  # gradients_bytes
    SMALLER_BATCH = "memory.smaller-batch"  # activations_bytes, factor
    LOWER_PRECISION = "memory.lower-precision"  # activations_bytes
    SMALLER_OPTIMIZER_STATE = "memory.smaller-optimizer-state"  # state_bytes
    CHUNKED_LOSS = "memory.chunked-loss"  # logits_bytes
    STOP_GROWTH = "memory.stop-growth"  # file, line, bytes_per_step
    NO_GRADIENTS = "memory.no-gradients"  # activations_bytes
    OTHER_PROCESSES = "memory.other-processes"  # bytes


class LineMemory(Struct, frozen=True, kw_only=True):
    """The memory that one line of the program allocates and gives back in a step."""

    place: Place | None
    """None for what no line of the program's own code is known for."""
    allocated_bytes: float
    released_bytes: float
    """Bytes given back while the line ran, whichever line had allocated them."""
    high_water_bytes: int
    """The most that blocks of this line held at once."""
    largest_bytes: int
    """Its largest block."""
    blocks: float
    kind: MemoryKind
    """The kind of most of its bytes."""

    @property
    def net_bytes(self) -> float:
        return self.allocated_bytes - self.released_bytes


class DeviceMemory(Struct, frozen=True, kw_only=True):
    """The memory of one device."""

    device: str
    """cuda:0, cpu"""
    peak: Peak
    levels: LevelsOverTime = LevelsOverTime()
    lines: tuple[LineMemory, ...] = ()
    """The memory of each line in a step; the line that allocates most comes first."""
    lines_left_out: int = 0
    growth: tuple[Growth, ...] = ()
    """The fastest first."""
    fragmentation: Fragmentation | None = None
    shortages: tuple[Shortage, ...] = ()
    advice: tuple[MemoryAdvice, ...] = ()
    """The advice that saves most comes first."""
    has_times: bool = True
    """False: each moment is the number of an event, because the snapshot has no clock."""
    events: int = 0
    """Allocations and releases that were recorded."""
    events_lost: bool = False
    """Whether the ring buffer was full, so that its oldest events are gone."""
    end_bytes: int = 0
    """Bytes that were allocated when recording ended."""
    outside_torch_bytes: int | None = None
    """In use on the device, but not by torch's allocator: contexts, libraries, other programs."""
    notes: tuple[Reason, ...] = ()


class MemoryStudy(Struct, frozen=True, kw_only=True):
    source: str
    """The file, as it was named."""
    origin: Literal["snapshot", "trace", "shortage"]
    devices: tuple[DeviceMemory, ...] = ()
    """The one with the highest peak first."""
    has_stacks: bool = True
    has_history: bool = True
    """False: a snapshot of the segments alone, without the events before it."""
    steps: int = 0
    notes: tuple[Reason, ...] = ()


class MemoryChange(Struct, frozen=True, kw_only=True):
    """One number of two studies."""

    of: Literal["total", "kind", "line", "module"]
    name: str
    """peak, reserved, free in partly used segments; a kind; a path of modules; "" for a line."""
    before_bytes: int
    after_bytes: int
    place: Place | None = None
    """The line, as it is numbered afterwards if it is still there."""
    kind: MemoryKind | None = None

    @property
    def change_bytes(self) -> int:
        return self.after_bytes - self.before_bytes


class MemoryComparison(Struct, frozen=True, kw_only=True):
    """Two studies of memory: what needs more at the peak, and what less."""

    before: MemoryStudy
    after: MemoryStudy
    before_device: str
    after_device: str
    changes: tuple[MemoryChange, ...]
    """Within each of `of` the largest change first; the peak is the first of all."""
