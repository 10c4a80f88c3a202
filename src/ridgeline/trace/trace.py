"""A trace in memory: its tables, its texts, and the metadata of its file.

trace.device     kernels, copies, fills        trace.calls        runtime and driver calls
trace.ops        operators on the host         trace.annotations  named spans, steps
trace.frames     Python functions              trace.memory       allocations
trace.syncs      device-side synchronisation   trace.others       the rest

trace.text(code)      a name               trace.info(code)   kernel, collective, stack details
trace.shape(code)     recorded inputs      trace.lanes[lane]  whose row it is
"""

import json
from collections.abc import Callable, Sequence
from functools import cached_property, wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
from msgspec import Struct

from ridgeline.trace.columns import (
    Allocations,
    Calls,
    Codes,
    DeviceOps,
    Events,
    Frames,
    Ops,
    Others,
    Syncs,
)

T = TypeVar("T", bound=Events)
P = ParamSpec("P")
R = TypeVar("R")


class Lane(Struct, frozen=True, kw_only=True):
    """One row of the timeline: a host thread or a device's stream."""

    pid: str
    tid: str
    process: str = ""
    thread: str = ""
    labels: str = ""


class Shape(Struct, frozen=True, kw_only=True):
    """The inputs of an operator, as recorded (record_shapes=True)."""

    dims: tuple[Any, ...] = ()
    types: tuple[Any, ...] = ()
    concrete: tuple[Any, ...] = ()
    strides: tuple[Any, ...] = ()


class Loss(Struct, frozen=True, kw_only=True):
    """Something in the file that could not be used, or only after a repair."""

    reason: str
    count: int
    lost: bool = True
    """False: the events were kept, repaired."""
    example: str = ""


class Origin(Struct, frozen=True, kw_only=True):
    """Says where a trace came from and how it was read."""

    path: str
    compression: str = ""
    """gzip, zstd or nothing."""
    text_bytes: int = 0
    events: int = 0
    """The number of events read from the file, arrows and metadata included, lost events not."""
    flows: int = 0
    """The number of arrows between events. They are not kept: correlation ids say the same."""
    truncated: str = ""
    """Why the end of the file is missing; "" if the file is complete."""
    has_all_events: bool = True
    """False if the missing end may have held events."""
    unverified: str = ""
    """Why the content could not be checked against its checksum, or that it disagrees."""
    checksum_differs: bool = False
    losses: tuple[Loss, ...] = ()
    digest: str = ""
    """A hash of the file's content; the key of the cache."""
    from_cache: bool = False


class DeviceProperties(Struct, frozen=True, kw_only=True):
    id: int
    name: str = ""
    memory_bytes: int = 0
    cores: int = 0
    """Multiprocessors or compute units."""
    major: int = 0
    minor: int = 0
    warp: int = 0
    """Threads of a warp: 32 on NVIDIA, 64 on AMD's."""


class Metadata(Struct, frozen=True, kw_only=True):
    """The values that stand beside the events."""

    base_ns: int = 0
    """Added to a `ts`, it gives nanoseconds since 1970 (newer traces)."""
    rank: int | None = None
    world_size: int | None = None
    backend: str = ""
    devices: tuple[DeviceProperties, ...] = ()
    recorded: dict[str, Any] = {}
    """Switches of the profiler: with_stack, record_shapes, profile_memory, versions."""
    messages: tuple[str, ...] = ()
    """Kineto's own log lines."""


class Trace:
    """The content of one file. It never changes; a table is loaded when it is first used."""

    def __init__(
        self,
        origin: Origin,
        metadata: Metadata,
        texts: Sequence[str],
        lanes: Sequence[Lane],
        load: Callable[[str], Events],
    ) -> None:
        self.origin = origin
        self.metadata = metadata
        self.texts = texts
        self.lanes = tuple(lanes)
        self._load = load
        self._shapes: dict[int, Shape] = {}
        self._infos: dict[int, dict[str, Any]] = {}

    @property
    def label(self) -> str:
        """The name of this trace beside others: its rank, or its file."""
        rank = self.metadata.rank
        return Path(self.origin.path).name if rank is None else f"rank {rank}"

    @cached_property
    def ops(self) -> Ops:
        return self._table("ops", Ops)

    @cached_property
    def annotations(self) -> Ops:
        return self._table("annotations", Ops)

    @cached_property
    def calls(self) -> Calls:
        return self._table("calls", Calls)

    @cached_property
    def device(self) -> DeviceOps:
        return self._table("device", DeviceOps)

    @cached_property
    def syncs(self) -> Syncs:
        return self._table("syncs", Syncs)

    @cached_property
    def frames(self) -> Frames:
        return self._table("frames", Frames)

    @cached_property
    def memory(self) -> Allocations:
        return self._table("memory", Allocations)

    @cached_property
    def others(self) -> Others:
        return self._table("others", Others)

    def text(self, code: int) -> str:
        return self.texts[code] if 0 <= code < len(self.texts) else ""

    def names_where(self, codes: Codes, test: Callable[[str], bool]) -> "np.ndarray[Any, Any]":
        """Return which rows have a name that passes; each distinct name is tested once."""
        passes = np.zeros(len(self.texts) + 1, bool)  # code -1 is the last: no name
        for code in self.distinct(codes).tolist():
            passes[code] = test(self.text(code))
        return passes[codes]

    def distinct(self, codes: Codes) -> Codes:
        """Return the codes that occur, in order. To mark each text is faster than to sort the
        rows."""
        seen = np.zeros(len(self.texts) + 1, bool)
        seen[codes] = True
        codes_seen = np.flatnonzero(seen[:-1]).astype(np.int32)
        return np.append(np.int32(-1), codes_seen) if seen[-1] else codes_seen

    def grouped(self, codes: Codes) -> tuple[Codes, "np.ndarray[Any, Any]"]:
        """Return the codes that occur, and for each row the place of its own code among them."""
        codes_seen = self.distinct(codes)
        place = np.zeros(len(self.texts) + 1, np.int64)
        place[codes_seen] = np.arange(len(codes_seen))
        return codes_seen, place[codes]

    def shape(self, code: int) -> Shape:
        """Return the inputs that an operator was recorded with; empty where none were."""
        if code not in self._shapes:
            recorded = self._object(code)
            self._shapes[code] = Shape(
                dims=_tuple(recorded.get("Input Dims")),
                types=_tuple(recorded.get("Input type")),
                concrete=_tuple(recorded.get("Concrete Inputs")),
                strides=_tuple(recorded.get("Input Strides")),
            )
        return self._shapes[code]

    def info(self, code: int) -> dict[str, Any]:
        """Return further arguments of an event by the names that torch gives them; {} where there
        are none."""
        if code not in self._infos:
            self._infos[code] = self._object(code)
        return self._infos[code]

    def _object(self, code: int) -> dict[str, Any]:
        if code < 0:
            return {}
        try:
            recorded = json.loads("{" + self.text(code) + "}", strict=False)
        except (ValueError, RecursionError):
            return {}  # the text was cut, so it is no JSON
        return recorded if isinstance(recorded, dict) else {}

    def _table(self, name: str, kind: type[T]) -> T:
        table = self._load(name)
        assert isinstance(table, kind)
        return table


def _tuple(value: Any) -> tuple[Any, ...]:
    return tuple(value) if isinstance(value, list) else ()


def once_per_trace(
    compute: Callable[Concatenate[Trace, P], R],
) -> Callable[Concatenate[Trace, P], R]:
    """Decorate a function that many analyses call with the same trace: it runs once for the same
    arguments, and the trace keeps its result. Callers must not change the result. Arguments without
    a hash, such as arrays, are the same if they are the same object."""

    @wraps(compute)
    def kept(trace: Trace, /, *arguments: P.args, **named: P.kwargs) -> R:
        results: dict[Any, tuple[Any, R]] = vars(trace).setdefault("results", {})
        given = (*arguments, *named.values())
        key = (compute, *named, *map(_identity, given))
        if key not in results:
            results[key] = (given, compute(trace, *arguments, **named))
        return results[key][1]  # the arguments are kept too, so that no other object gets their id

    return kept


def _identity(argument: object) -> object:
    try:
        hash(argument)
    except TypeError:
        return id(argument)
    return argument
