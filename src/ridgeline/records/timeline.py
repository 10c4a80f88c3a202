"""The events of a trace, thinned to what a page can hold and a browser can draw.

Times are nanoseconds from the timeline's start. What events have in common (a name, a place, a
shape) is held once, in `Timeline.works`, and events refer to it by index: a training repeats the
same work in every step.
"""

from typing import Literal

from msgspec import Struct

from ridgeline.records.trace import Place

LaneKind = Literal["steps", "phases", "idle", "device", "host"]


class Work(Struct, frozen=True, kw_only=True):
    """What a device or a thread did in an event. Texts are empty where the trace does not tell."""

    name: str
    kind: str
    """The cause of an idle gap, the phase of host work, the category of a kernel, or `transfer`,
    `synchronisation`, `launch`, `allocator`, `runtime`, `annotation`, `step`."""
    place: Place | None = None
    """The user's function, by its first line."""
    operator: str = ""
    """The operator in which a call was made, or a kernel launched."""
    module: str = ""
    shape: str = ""
    """The inputs of the operator."""
    stack: tuple[str, ...] = ()
    """The user's functions, the innermost first, without the innermost itself."""
    host: str = ""
    """What the host did during an idle gap."""
    before: str = ""
    """The device operation before an idle gap."""
    after: str = ""


class SourceLines(Struct, frozen=True, kw_only=True):
    """Neighbouring lines of a file of the program."""

    file: str
    """The file's name, as the findings give it."""
    first: int
    """Number of the first line."""
    lines: tuple[str, ...]


class TimelineLane(Struct, frozen=True, kw_only=True):
    """A row of the timeline; its events are columns of equal length, in order of start."""

    rank: str = ""
    """The label of the trace, where there are several."""
    kind: LaneKind
    device: int = -1
    device_name: str = ""
    stream: int = -1
    thread: str = ""
    """The number of the thread, as the trace has it."""
    role: Literal["", "main", "backward"] = ""
    start_ns: tuple[int, ...]
    length_ns: tuple[int, ...]
    depth: tuple[int, ...]
    """How many events of the lane enclose the event."""
    work: tuple[int, ...]
    """Index into `Timeline.works`."""
    launched_ns: tuple[int, ...] = ()
    """How long before its start the host asked for each operation of a device; -1 where that is not
    known. Empty for other lanes."""
    left_out: int = 0


class Timeline(Struct, frozen=True, kw_only=True):
    length_ns: int
    works: tuple[Work, ...]
    lanes: tuple[TimelineLane, ...]
    """Rank by rank: steps, phases, idle causes, streams of devices, threads of the host."""
    lanes_left_out: int = 0
    left_out: int = 0
    """How many events were left out for want of room: in each lane the shortest, which are those
    inside of others."""
    longest_left_out_ns: int = 0
    whole_from_ns: int = 0
    whole_until_ns: int = 0
    """The part in which nothing was left out; both 0 if there is none. Of several ranks, the
    first's."""
    library_functions: bool = False
    """Whether the trace has Python functions of libraries, which are not shown."""
    idle_share: float | None = None
    """The share of the window in which devices did nothing; None if that is not known."""
    main_cause: str = ""
    """The largest cause of idle time."""
    main_cause_share: float = 0.0
    """Its share of the idle time."""
    main_phase: str = ""
    """The largest phase of the host."""
    main_phase_share: float = 0.0
    clocks_differ: bool = False
    """Whether ranks are shown from the start of each, because their clocks have nothing in
    common."""

    @property
    def events(self) -> int:
        return sum(len(lane.work) for lane in self.lanes)


class TracePage(Struct, frozen=True, kw_only=True):
    """What the page of traces shows beside their study."""

    timeline: Timeline | None = None
    source: tuple[SourceLines, ...] = ()
