"""What one event means, however oddly it is written: the rule book both decoders follow.

The fast decoders hand every event they are not sure of to `interpret`. It keeps what can be kept
(numbers in quotes, a name that is a number, arguments that are null) and says why the rest cannot.
"""

import json
import re
import sys
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from enum import IntEnum
from typing import Annotated, Any, Protocol

import numpy as np
from msgspec import Meta, Raw, Struct, field
from msgspec import json as json_codec
from numpy.typing import NDArray

LONGEST_TEXT = 65_536
"""A name, stack or list of inputs longer than this is cut; a real one has a few kB."""
LATEST_US = 3_000_000_000_000_000
"""The year 2065. Starts and durations within it can be added and spanned in 64-bit nanoseconds."""
WIDE = 2**62
NARROW = 2**31 - 1

NUMBERS: dict[str, tuple[str, int]] = {
    "External id": ("external", WIDE),
    "external id": ("external", WIDE),
    "correlation": ("correlation", WIDE),
    "device": ("device", NARROW),
    "Device Id": ("device", NARROW),
    "stream": ("stream", NARROW),
    "bytes": ("bytes", WIDE),
    "Bytes": ("bytes", WIDE),
    "Sequence number": ("sequence", WIDE),
    "Fwd thread id": ("forward_thread", NARROW),
    "Python id": ("frame", WIDE),
    "Python parent id": ("parent", WIDE),
    "Python module id": ("module", NARROW),
    "Total Allocated": ("allocated", WIDE),
    "Total Reserved": ("reserved", WIDE),
    "Device Type": ("device_type", NARROW),
    "graph id": ("graph", NARROW),
    "graph node id": ("graph_node", WIDE),
}
"""Arguments that become a column, and the largest magnitude it holds."""

SHAPE = frozenset({"Input Dims", "Input type", "Concrete Inputs", "Input Strides"})

INFO = frozenset({
    "grid", "block", "est. achieved occupancy %", "Collective name", "dtype", "In msg nelems",
    "Out msg nelems", "In split size", "Out split size", "Group size", "Process Group Name",
    "Process Group Description", "Process Group Ranks", "Process Group ID", "Rank", "Src Rank",
    "Dst Rank", "Root Rank", "Seq", "cuda_sync_kind", "wait_on_stream",
    "wait_on_cuda_event_record_corr_id", "kernel_backend", "kernel_file", "kind", "Call stack",
    "Module Hierarchy",
})  # fmt: skip
"""Arguments kept as text, one code for all an event has (scanner.c has the same list)."""


class Row(Struct, kw_only=True):
    """One event, ready for the columns: numbers, and texts as raw JSON bytes."""

    phase: str
    numbers: dict[str, int]
    name: bytes
    lane: bytes
    category: bytes | None = None
    shape: bytes | None = None
    info: bytes | None = None
    repairs: tuple[str, ...] = ()


class Flow(Struct):
    """An arrow between events: counted, not kept."""


class Named(Struct, kw_only=True):
    """Metadata: what a process or thread is called."""

    what: str
    pid: str
    tid: str
    args: dict[str, Any]


class Unusable(Struct):
    """An event without which a number would be wrong or invented."""

    reason: str


def parse_json(text: bytes) -> Any:
    """JSON as torch really writes it: control characters and broken UTF-8 in names allowed.

    Raises ValueError or RecursionError where it is not JSON at all.
    """
    value = json.loads(
        text.decode("utf-8", "replace"), strict=False, parse_float=Decimal, parse_int=_integer
    )
    return _printable(value) if _SURROGATE in text.lower() else value


def interpret(event: Any) -> Row | Flow | Named | Unusable:
    if not isinstance(event, dict):
        return Unusable("is not an object")
    phase = event.get("ph")
    if not isinstance(phase, str):
        return Unusable("has no phase")
    if phase in ("s", "f", "t"):
        return Flow()
    args, repairs = _args(event)
    if phase == "M":
        what, pid, tid = (token(event.get(key)) for key in ("name", "pid", "tid"))
        return Named(what=what.strip('"'), pid=pid, tid=tid, args=dict(args))
    if phase not in ("X", "i", "I", "C"):
        return Unusable(f"has a phase this does not read ({phase[:8]!r})")
    ts = exact_nanoseconds(event.get("ts"))
    dur = exact_nanoseconds(event.get("dur")) if phase == "X" else 0
    if ts is None:
        return Unusable("has no usable start time")
    if dur is None or dur < 0:
        return Unusable("has no usable duration")
    name = event.get("name")
    if not isinstance(name, str):
        repairs.append("its name was no text")
        name = "" if name is None else str(name)
    if len(name) > LONGEST_TEXT:
        repairs.append("its name was longer than 65,000 characters and was cut")
    category = event.get("cat")
    return Row(
        phase=phase,
        numbers={"ts": ts, "dur": dur, **_numbers(args)},
        name=raw(name),
        category=raw(category) if isinstance(category, str) else None,
        lane=f"{token(event.get('pid'))}\n{token(event.get('tid'))}".encode(),
        shape=_group(args, SHAPE),
        info=_group(args, INFO),
        repairs=tuple(repairs),
    )


def exact_nanoseconds(value: Any) -> int | None:
    """Microseconds to whole nanoseconds, half away from zero; None where that is impossible."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal | float | str):
        return None
    try:
        micros = Decimal(value)
        if not micros.is_finite() or micros.copy_abs() > LATEST_US:
            return None
        # by hand: multiplying would round to 28 digits first
        sign, digits, exponent = micros.as_tuple()
        assert isinstance(exponent, int)
        nanos = Decimal((sign, digits, exponent + 3))
        return int(nanos.to_integral_value(ROUND_HALF_UP))
    except (InvalidOperation, ValueError, OverflowError):
        return None


def raw(text: str) -> bytes:
    """A text as it stands between JSON quotes."""
    if len(text) > LONGEST_TEXT:
        text = text[:LONGEST_TEXT] + "…"
    return json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "replace")


def _integer(text: str) -> int | Decimal:
    """Python refuses to read an int of 4300 digits; as a decimal it is merely too large."""
    return int(text) if len(text) < sys.int_info.default_max_str_digits else Decimal(text)


_SURROGATE = b"\\ud"
"""Half a character, as \\ud800 without its other half: it can be held but never printed."""


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return value


def _args(event: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    args = event.get("args")
    if isinstance(args, dict):
        return args, []
    return {}, [] if args is None else ["its arguments were no object"]


def _numbers(args: Mapping[str, Any]) -> dict[str, int]:
    found = {}
    for key, value in args.items():
        if key in NUMBERS:
            column, largest = NUMBERS[key]
            number = _whole(value)
            if number is not None and abs(number) <= largest:
                found[column] = number
    return found


def _whole(value: Any) -> int | None:
    """A whole number, bare, in quotes or as 7.0."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, Decimal):
        whole = value.is_finite() and abs(value) < WIDE and value == value.to_integral_value()
        return int(value) if whole else None
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdecimal():
        return int(value) if value.count("-") < 2 else None
    return None


def token(value: Any) -> str:
    """A pid or tid as raw JSON: 3113 or "stream 7"."""
    if isinstance(value, str):
        return json.dumps(value[:200], ensure_ascii=False)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return str(value)[:40]
    return '""'


def _group(args: Mapping[str, Any], keys: frozenset[str]) -> bytes | None:
    kept = {key: value for key, value in args.items() if key in keys}
    if not kept:
        return None
    parts = []
    room = LONGEST_TEXT
    for key, value in kept.items():
        text = json.dumps(value, ensure_ascii=False, default=float, separators=(",", ":"))
        if len(text) > room:
            text = json.dumps(f"{text[:200]}… ({len(text)} characters)", ensure_ascii=False)
        room -= len(text)
        parts.append(f"{json.dumps(key)}:{text}")
    return ",".join(parts).encode("utf-8", "replace")


CAPACITY = 1 << 17
"""Rows of one chunk: 130 bytes each, so 17 MB are being filled at any time."""

Chunk = dict[str, NDArray[Any]]
"""Columns of RAW, equally long."""


class Stop(IntEnum):
    """Why a decoder stopped (the numbers are scanner.c's)."""

    MORE = 0
    """At the end of the text, or inside an event that goes on beyond it."""
    ODD = 1
    """At an event it is not sure of."""
    END = 2
    """After the bracket that closes the events."""
    FULL = 3
    """The chunk has no room: take it and go on."""
    JUNK = 4
    """Something other than a comma after an event."""
    NO_MEMORY = 5
    """More distinct texts than any trace has."""


class Decoder(Protocol):
    flows: int

    def scan(self, text: bytes, start: int, last: bool) -> tuple[Stop, int]:
        """Read events from `start`; why it stopped, and where. `last`: no more text follows."""

    def wants_comma(self, wants: bool) -> None:
        """Whether the next event must be led by a comma: set after an event was read elsewhere."""

    def value_end(self, text: bytes, start: int) -> int:
        """Where the JSON value at `start` ends; -1: beyond this text; -2: it is no JSON."""

    @property
    def full(self) -> bool:
        """No room for another row: `take` first."""

    def add(self, row: Row) -> None:
        """One row that was interpreted elsewhere."""

    def take(self) -> Chunk:
        """The rows so far; the decoder starts a new chunk."""

    def texts(self) -> list[bytes]:
        """Each code's text, as raw JSON between its quotes."""


def empty_chunk() -> Chunk:
    from ridgeline.trace.columns import RAW

    return {name: np.empty(CAPACITY, dtype) for name, dtype in RAW.items()}


ABSENT = -(2**63)
"""Outside what any column accepts, so that a recorded -1 is not taken for nothing."""

NOTHING = Raw(b"")

Wide = Annotated[int, Meta(ge=-WIDE, le=WIDE)]
Narrow = Annotated[int, Meta(ge=-NARROW, le=NARROW)]
Id = Annotated[int, Meta(ge=-(10**17), le=10**17)]


class Args(Struct, gc=False):
    """The arguments that are kept; the field's name is its column's, `_2` a second spelling."""

    external: Wide = field(default=ABSENT, name="External id")
    external_2: Wide = field(default=ABSENT, name="external id")
    correlation: Wide = ABSENT
    device: Narrow = ABSENT
    device_2: Narrow = field(default=ABSENT, name="Device Id")
    stream: Narrow = ABSENT
    bytes: Wide = ABSENT
    bytes_2: Wide = field(default=ABSENT, name="Bytes")
    sequence: Wide = field(default=ABSENT, name="Sequence number")
    forward_thread: Narrow = field(default=ABSENT, name="Fwd thread id")
    frame: Wide = field(default=ABSENT, name="Python id")
    parent: Wide | None = field(default=ABSENT, name="Python parent id")
    module: Narrow = field(default=ABSENT, name="Python module id")
    allocated: Wide = field(default=ABSENT, name="Total Allocated")
    reserved: Wide = field(default=ABSENT, name="Total Reserved")
    device_type: Narrow = field(default=ABSENT, name="Device Type")
    graph: Narrow = field(default=ABSENT, name="graph id")
    graph_node: Wide = field(default=ABSENT, name="graph node id")
    dims: Raw = field(default=NOTHING, name="Input Dims")
    types: Raw = field(default=NOTHING, name="Input type")
    concrete: Raw = field(default=NOTHING, name="Concrete Inputs")
    strides: Raw = field(default=NOTHING, name="Input Strides")
    grid: Raw = NOTHING
    block: Raw = NOTHING
    occupancy: Raw = field(default=NOTHING, name="est. achieved occupancy %")
    collective: Raw = field(default=NOTHING, name="Collective name")
    dtype: Raw = NOTHING
    in_elements: Raw = field(default=NOTHING, name="In msg nelems")
    out_elements: Raw = field(default=NOTHING, name="Out msg nelems")
    in_split: Raw = field(default=NOTHING, name="In split size")
    out_split: Raw = field(default=NOTHING, name="Out split size")
    group_size: Raw = field(default=NOTHING, name="Group size")
    group_name: Raw = field(default=NOTHING, name="Process Group Name")
    group_description: Raw = field(default=NOTHING, name="Process Group Description")
    group_ranks: Raw = field(default=NOTHING, name="Process Group Ranks")
    group_id: Raw = field(default=NOTHING, name="Process Group ID")
    rank: Raw = field(default=NOTHING, name="Rank")
    source_rank: Raw = field(default=NOTHING, name="Src Rank")
    target_rank: Raw = field(default=NOTHING, name="Dst Rank")
    root_rank: Raw = field(default=NOTHING, name="Root Rank")
    seq: Raw = field(default=NOTHING, name="Seq")
    sync_kind: Raw = field(default=NOTHING, name="cuda_sync_kind")
    wait_stream: Raw = field(default=NOTHING, name="wait_on_stream")
    wait_event: Raw = field(default=NOTHING, name="wait_on_cuda_event_record_corr_id")
    backend: Raw = field(default=NOTHING, name="kernel_backend")
    file: Raw = field(default=NOTHING, name="kernel_file")
    kind: Raw = NOTHING
    stack: Raw = field(default=NOTHING, name="Call stack")
    hierarchy: Raw = field(default=NOTHING, name="Module Hierarchy")


class Event(Struct, gc=False):
    ph: str = ""
    cat: str | None = None
    name: str | None = None
    pid: Id | str = ""
    tid: Id | str = ""
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    args: Args | None = None


SHAPE_FIELDS = ("dims", "types", "concrete", "strides")
_ENCODED = dict(zip(Args.__struct_fields__, Args.__struct_encode_fields__, strict=True))
INFO_FIELDS = tuple(f for f in Args.__struct_fields__ if _ENCODED[f] in INFO)
SHAPE_KEYS = tuple(_ENCODED[f].encode() for f in SHAPE_FIELDS)
INFO_KEYS = tuple(_ENCODED[f].encode() for f in INFO_FIELDS)
assert set(_ENCODED.values()) >= INFO | SHAPE

EVENT = json_codec.Decoder(Event)
EVENTS = json_codec.Decoder(list[Event])
PIECES = json_codec.Decoder(list[Raw])


DEPTH = 64
SHORT = -1
BAD = -2

# These patterns use no possessive quantifiers (`*+`) and no atomic groups: in CPython 3.11.0 to
# 3.11.4 a possessive group can match one item too far (Debian 12 has 3.11.2). A plain group stores
# a backtracking point for every repetition, which would be millions for a string of 32 MB. So
# groups repeat at most MAX_REPEATS times and are matched in a loop. A repeated character class
# stores one count only, and needs no limit.
MAX_REPEATS = 1000
_PLAIN_TEXT = re.compile(rb'[^"\\]*')
_ESCAPES = re.compile(rb'(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\]*){1,%d}' % MAX_REPEATS)
_NUMBER = re.compile(
    rb"-?(?:Infinity|(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)|NaN|true|false|null"
)
_SPACE = re.compile(rb"[ \n\r\t]*")
_STOPS_SHORT = re.compile(
    rb"-?(?:\Z|(?:0|[1-9][0-9]*)(?:\.\Z|(?:\.[0-9]+)?(?:\Z|[eE](?:[+-]?\Z|[+-]?[0-9]+\Z))))"
)
"""A number the end of the text may have cut."""
_GOES_WRONG = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.(?![0-9])|(?:\.[0-9]+)?[eE](?![+-]?[0-9]))")
_PARTIAL_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_SCALARS = re.compile(
    rb'(?:"[^"\\]*"[ \n\r\t]*:[ \n\r\t]*(?:"[^"\\]*"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)'
    rb"[ \n\r\t]*,[ \n\r\t]*){1,%d}" % MAX_REPEATS
)
"""Members with plain values, up to the comma after them: most of an event in one step."""
_TOO_DEEP = re.compile(rb'(?:\{[ \n\r\t]*"[^"\\]*"[ \n\r\t]*:[ \n\r\t]*|\[[ \n\r\t]*){64}[{\[]')
"""Nothing but openings: a file of a million of them is gone through from each."""
_WORDS = (b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity")
_CLOSE = {0x7B: 0x7D, 0x5B: 0x5D}


def value_end(text: bytes, start: int) -> int:
    """The position after the value at `start`; SHORT where the text ends first, BAD if no JSON."""
    if _TOO_DEEP.match(text, start):
        return BAD
    size = len(text)
    at = start
    open_: list[int] = []
    while True:
        # a value begins here
        if at >= size:
            return SHORT
        close = _CLOSE.get(text[at])
        if close is not None:
            if len(open_) >= DEPTH:
                return BAD
            open_.append(close)
            at = _space(text, at + 1)
            if at >= size:
                return SHORT
            if text[at] != close:
                at = _member(text, at) if close == 0x7D else at
                if at < 0:
                    return at
                continue
            open_.pop()
            at += 1
        else:
            at = _scalar(text, at)
            if at < 0:
                return at
        # a value has ended
        while open_:
            at = _space(text, at)
            if at >= size:
                return SHORT
            if text[at] == 0x2C:
                at = _space(text, at + 1)
                if open_[-1] == 0x7D:
                    at = _member(text, at)
                    if at < 0:
                        return at
                elif at >= size:
                    return SHORT
                break
            if text[at] != open_.pop():
                return BAD
            at += 1
        else:
            return at


def _space(text: bytes, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _member(text: bytes, at: int) -> int:
    """A key, its colon and the space after; plain members before it are passed over."""
    while plain := _SCALARS.match(text, at):
        at = plain.end()
    if at >= len(text):
        return SHORT
    if text[at] != 0x22:
        return BAD
    at = _string(text, at)
    if at < 0:
        return at
    at = _space(text, at)
    if at >= len(text):
        return SHORT
    return _space(text, at + 1) if text[at] == 0x3A else BAD


def _scalar(text: bytes, at: int) -> int:
    if text[at] == 0x22:
        return _string(text, at)
    match = _NUMBER.match(text, at)
    if _STOPS_SHORT.match(text, at):
        return SHORT
    if match:
        return BAD if _GOES_WRONG.match(text, at) else match.end()
    rest = text[at : at + 9]
    cut = at + len(rest) == len(text)
    return SHORT if cut and any(word.startswith(rest) for word in _WORDS) else BAD


def _string(text: bytes, at: int) -> int:
    """Return the position after the string whose opening quote is at `at`."""
    match = _PLAIN_TEXT.match(text, at + 1)
    assert match is not None
    end = match.end()
    while escapes := _ESCAPES.match(text, end):
        end = escapes.end()
    if end >= len(text):
        return SHORT
    if text[end] == 0x22:
        return end + 1
    return SHORT if _PARTIAL_ESCAPE.match(text, end) else BAD
