"""One event of a trace: the contract of a decoder, the rules for odd events, and where JSON ends.

Two decoders turn the text of events into rows: `compiled` (C, on machines with a compiler) and
`portable` (msgspec). Both stop at every event that they are not sure of. `interpret` then decides
what the event means: it keeps what can be kept (numbers in quotes, a name that is a number,
arguments that are null) and gives the reason why the rest cannot be used.
"""

import json
import re
import sys
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from enum import IntEnum
from typing import Annotated, Any, Protocol

import msgspec
from msgspec import Meta, Raw, Struct, field
from numpy.typing import NDArray

CHUNK_ROWS = 1 << 17
"""Rows of one chunk. A row takes 130 bytes, so that 17 MB are being filled at any time."""
MAX_TEXT_CHARS = 65_536
"""A name, a stack or a list of inputs that is longer than this is cut; real ones have a few kB."""
MAX_TIME_US = 3_000_000_000_000_000
"""The year 2065. Starts and durations up to this can be added in 64-bit nanoseconds."""
MAX_WIDE = 2**62
MAX_NARROW = 2**31 - 1
"""The largest magnitudes that columns of 64 and of 32 bits accept."""

Chunk = dict[str, NDArray[Any]]
"""The columns of RAW, equally long."""

# ------------------------------------------------------------ the contract of a decoder


class Stop(IntEnum):
    """Says why a decoder stopped. The numbers are those of scanner.c."""

    MORE = 0
    """The decoder stopped at the end of the text, or inside an event that goes on beyond it."""
    ODD = 1
    """The decoder stopped at an event it is not sure of."""
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

    def scan(self, text: bytes, start: int) -> tuple[Stop, int]:
        """Read events from `start`. Return why the decoder stopped, and where."""

    def wants_comma(self, wants: bool) -> None:
        """Set whether a comma must stand before the next event. It must after an event that was
        read elsewhere."""

    def value_end(self, text: bytes, start: int) -> int:
        """Return where the JSON value at `start` ends; CUT_OFF or NOT_JSON if it does not."""

    @property
    def full(self) -> bool:
        """Whether the chunk has no room for another row: call `take` first."""

    def add(self, row: "Row") -> None:
        """Add one row that was interpreted elsewhere."""

    def take(self) -> Chunk:
        """Return the rows so far, and start a new chunk."""

    def texts(self) -> list[bytes]:
        """Return the text of each code, as raw JSON without its quotes."""


# ------------------------------------------------------------ what an odd event means

NUMBER_ARGUMENTS: dict[str, tuple[str, int]] = {
    "External id": ("external", MAX_WIDE),
    "external id": ("external", MAX_WIDE),
    "correlation": ("correlation", MAX_WIDE),
    "device": ("device", MAX_NARROW),
    "Device Id": ("device", MAX_NARROW),
    "stream": ("stream", MAX_NARROW),
    "bytes": ("bytes", MAX_WIDE),
    "Bytes": ("bytes", MAX_WIDE),
    "Sequence number": ("sequence", MAX_WIDE),
    "Fwd thread id": ("forward_thread", MAX_NARROW),
    "Python id": ("frame", MAX_WIDE),
    "Python parent id": ("parent", MAX_WIDE),
    "Python module id": ("module", MAX_NARROW),
    "Total Allocated": ("allocated", MAX_WIDE),
    "Total Reserved": ("reserved", MAX_WIDE),
    "Device Type": ("device_type", MAX_NARROW),
    "graph id": ("graph", MAX_NARROW),
    "graph node id": ("graph_node", MAX_WIDE),
}
"""The arguments that become a column, with the largest magnitude that the column holds."""

SHAPE_ARGUMENTS = frozenset({"Input Dims", "Input type", "Concrete Inputs", "Input Strides"})

INFO_ARGUMENTS = frozenset({
    "grid", "block", "est. achieved occupancy %", "Collective name", "dtype", "In msg nelems",
    "Out msg nelems", "In split size", "Out split size", "Group size", "Process Group Name",
    "Process Group Description", "Process Group Ranks", "Process Group ID", "Rank", "Src Rank",
    "Dst Rank", "Root Rank", "Seq", "cuda_sync_kind", "wait_on_stream",
    "wait_on_cuda_event_record_corr_id", "kernel_backend", "kernel_file", "kind", "Call stack",
    "Module Hierarchy",
})  # fmt: skip
"""The arguments kept as text, all of an event under one code. scanner.c has the same list."""


class Row(Struct, kw_only=True):
    """One event, ready for the columns: its numbers, and its texts as raw JSON bytes."""

    phase: str
    numbers: dict[str, int]
    name: bytes
    lane: bytes
    category: bytes | None = None
    shape: bytes | None = None
    info: bytes | None = None
    repairs: tuple[str, ...] = ()


class Flow(Struct):
    """An arrow between events. Arrows are counted and not kept."""


class Named(Struct, kw_only=True):
    """A metadata event, which names a process or a thread."""

    what: str
    pid: str
    tid: str
    args: dict[str, Any]


class Unusable(Struct):
    """An event that would make a number wrong or invented."""

    reason: str


def parse_json(text: bytes) -> Any:
    """Parse JSON as torch writes it, with control characters and broken UTF-8 in names.

    Raise ValueError or RecursionError if the text is not JSON at all.
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
    args, repairs = event.get("args"), []
    if not isinstance(args, dict):
        repairs = [] if args is None else ["its arguments were no object"]
        args = {}
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
    if len(name) > MAX_TEXT_CHARS:
        repairs.append("its name was longer than 65,000 characters and was cut")
    category = event.get("cat")
    return Row(
        phase=phase,
        numbers={"ts": ts, "dur": dur, **_numbers(args)},
        name=raw(name),
        category=raw(category) if isinstance(category, str) else None,
        lane=lane_text(event.get("pid"), event.get("tid")),
        shape=_group(args, SHAPE_ARGUMENTS),
        info=_group(args, INFO_ARGUMENTS),
        repairs=tuple(repairs),
    )


def exact_nanoseconds(value: Any) -> int | None:
    """Return microseconds as whole nanoseconds, half rounded away from zero; None if `value` is no
    time."""
    if isinstance(value, bool) or not isinstance(value, int | Decimal | float | str):
        return None
    try:
        micros = Decimal(value)
        if not micros.is_finite() or micros.copy_abs() > MAX_TIME_US:
            return None
        # The exponent is changed by hand: multiplying would round to 28 digits first.
        sign, digits, exponent = micros.as_tuple()
        assert isinstance(exponent, int)
        nanos = Decimal((sign, digits, exponent + 3))
        return int(nanos.to_integral_value(ROUND_HALF_UP))
    except (InvalidOperation, ValueError, OverflowError):
        return None


def raw(text: str) -> bytes:
    """Return a text as it stands between JSON quotes."""
    if len(text) > MAX_TEXT_CHARS:
        text = text[:MAX_TEXT_CHARS] + "…"
    return json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "replace")


def token(value: Any) -> str:
    """Return a pid or tid as raw JSON: 3113 or "stream 7"."""
    if isinstance(value, str):
        return json.dumps(value[:200], ensure_ascii=False)
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return str(value)[:40]
    return '""'


def lane_text(pid: Any, tid: Any) -> bytes:
    return f"{token(pid)}\n{token(tid)}".encode()


def _integer(text: str) -> int | Decimal:
    """Python refuses to read an int of 4300 digits; as a decimal it is merely too large."""
    return int(text) if len(text) < sys.int_info.default_max_str_digits else Decimal(text)


_SURROGATE = b"\\ud"
"""Half a character, such as \\ud800 without its other half: it can be held but never printed."""


def _printable(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_printable(item) for item in value]
    if isinstance(value, dict):
        return {_printable(key): _printable(item) for key, item in value.items()}
    return value


def _numbers(args: Mapping[str, Any]) -> dict[str, int]:
    numbers = {}
    for key, value in args.items():
        if key in NUMBER_ARGUMENTS:
            column, largest = NUMBER_ARGUMENTS[key]
            number = _whole(value)
            if number is not None and abs(number) <= largest:
                numbers[column] = number
    return numbers


def _whole(value: Any) -> int | None:
    """Return a whole number that is written bare, in quotes or as 7.0."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, Decimal):
        whole = value.is_finite() and abs(value) < MAX_WIDE and value == value.to_integral_value()
        return int(value) if whole else None
    if isinstance(value, str) and len(value) < 20 and value.lstrip("-").isdecimal():
        return int(value) if value.count("-") < 2 else None
    return None


def _group(args: Mapping[str, Any], keys: frozenset[str]) -> bytes | None:
    parts = []
    room = MAX_TEXT_CHARS
    for key, value in args.items():
        if key not in keys:
            continue
        text = json.dumps(value, ensure_ascii=False, default=float, separators=(",", ":"))
        if len(text) > room:
            text = json.dumps(f"{text[:200]}… ({len(text)} characters)", ensure_ascii=False)
        room -= len(text)
        parts.append(f"{json.dumps(key)}:{text}")
    return ",".join(parts).encode("utf-8", "replace") if parts else None


# ------------------------------------------------------------ an event as msgspec decodes it
# These types are stricter than `interpret` on purpose: an event that does not fit them (a number in
# quotes, a null, an exponent) raises, and goes to `interpret`.

ABSENT = -(2**63)
"""Stands for an absent number. It is outside of what any column accepts, so that a recorded -1 is
not taken for an absent one."""

NOTHING = Raw(b"")

Wide = Annotated[int, Meta(ge=-MAX_WIDE, le=MAX_WIDE)]
Narrow = Annotated[int, Meta(ge=-MAX_NARROW, le=MAX_NARROW)]
Id = Annotated[int, Meta(ge=-(10**17), le=10**17)]


class Args(Struct, gc=False):
    """The arguments that are kept. A field is named as its column; `_2` is a second spelling."""

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
INFO_FIELDS = tuple(f for f in Args.__struct_fields__ if _ENCODED[f] in INFO_ARGUMENTS)
SHAPE_KEYS = tuple(_ENCODED[f].encode() for f in SHAPE_FIELDS)
INFO_KEYS = tuple(_ENCODED[f].encode() for f in INFO_FIELDS)
assert set(_ENCODED.values()) >= INFO_ARGUMENTS | SHAPE_ARGUMENTS

EVENT_DECODER = msgspec.json.Decoder(Event)
EVENTS_DECODER = msgspec.json.Decoder(list[Event])
RAW_EVENTS_DECODER = msgspec.json.Decoder(list[Raw])

# ------------------------------------------------------------ where a JSON value ends
# This is the portable form of `value_end` in scanner.c. It accepts what Python's json accepts with
# strict=False (control characters in strings, NaN), no deeper than 64 levels, and tells a text that
# stops too early from one that is no JSON. It reads about 5 MB/s, which is enough for the few
# blocks that do not decode at once.

MAX_DEPTH = 64
CUT_OFF = -1
NOT_JSON = -2

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
"""A number that the end of the text may have cut off."""
_GOES_WRONG = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.(?![0-9])|(?:\.[0-9]+)?[eE](?![+-]?[0-9]))")
_PARTIAL_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,3})?\Z")
_SCALARS = re.compile(
    rb'(?:"[^"\\]*"[ \n\r\t]*:[ \n\r\t]*(?:"[^"\\]*"|-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?)'
    rb"[ \n\r\t]*,[ \n\r\t]*){1,%d}" % MAX_REPEATS
)
"""Members with plain values, up to the comma after them: most of an event in one step."""
_TOO_DEEP = re.compile(rb'(?:\{[ \n\r\t]*"[^"\\]*"[ \n\r\t]*:[ \n\r\t]*|\[[ \n\r\t]*){64}[{\[]')
"""Nothing but openings. A file of a million of them would otherwise be read again from each."""
_WORDS = (b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity")
_CLOSE = {0x7B: 0x7D, 0x5B: 0x5D}


def value_end(text: bytes, start: int) -> int:
    """Return the position after the value at `start`; CUT_OFF if the text ends before the value
    does, NOT_JSON if it is no JSON."""
    if _TOO_DEEP.match(text, start):
        return NOT_JSON
    size = len(text)
    at = start
    closers: list[int] = []
    while True:
        # A value begins here.
        if at >= size:
            return CUT_OFF
        close = _CLOSE.get(text[at])
        if close is not None:
            if len(closers) >= MAX_DEPTH:
                return NOT_JSON
            closers.append(close)
            at = skip_space(text, at + 1)
            if at >= size:
                return CUT_OFF
            if text[at] != close:
                at = _key_end(text, at) if close == 0x7D else at
                if at < 0:
                    return at
                continue
            closers.pop()
            at += 1
        else:
            at = _scalar_end(text, at)
            if at < 0:
                return at
        # A value has ended.
        while closers:
            at = skip_space(text, at)
            if at >= size:
                return CUT_OFF
            if text[at] == 0x2C:
                at = skip_space(text, at + 1)
                if closers[-1] == 0x7D:
                    at = _key_end(text, at)
                    if at < 0:
                        return at
                elif at >= size:
                    return CUT_OFF
                break
            if text[at] != closers.pop():
                return NOT_JSON
            at += 1
        else:
            return at


def skip_space(text: bytes, at: int) -> int:
    match = _SPACE.match(text, at)
    assert match is not None
    return match.end()


def _key_end(text: bytes, at: int) -> int:
    """Return the position after a key, its colon and the space behind it. Members with plain values
    before that key are skipped."""
    while plain := _SCALARS.match(text, at):
        at = plain.end()
    if at >= len(text):
        return CUT_OFF
    if text[at] != 0x22:
        return NOT_JSON
    at = _string_end(text, at)
    if at < 0:
        return at
    at = skip_space(text, at)
    if at >= len(text):
        return CUT_OFF
    return skip_space(text, at + 1) if text[at] == 0x3A else NOT_JSON


def _scalar_end(text: bytes, at: int) -> int:
    if text[at] == 0x22:
        return _string_end(text, at)
    match = _NUMBER.match(text, at)
    if _STOPS_SHORT.match(text, at):
        return CUT_OFF
    if match:
        return NOT_JSON if _GOES_WRONG.match(text, at) else match.end()
    rest = text[at : at + 9]
    cut = at + len(rest) == len(text)
    return CUT_OFF if cut and any(word.startswith(rest) for word in _WORDS) else NOT_JSON


def _string_end(text: bytes, at: int) -> int:
    """Return the position after the string whose opening quote is at `at`."""
    match = _PLAIN_TEXT.match(text, at + 1)
    assert match is not None
    end = match.end()
    while escapes := _ESCAPES.match(text, end):
        end = escapes.end()
    if end >= len(text):
        return CUT_OFF
    if text[end] == 0x22:
        return end + 1
    return CUT_OFF if _PARTIAL_ESCAPE.match(text, end) else NOT_JSON
