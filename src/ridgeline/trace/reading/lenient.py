"""What one event means, however oddly it is written: the rule book both decoders follow.

The fast decoders hand every event they are not sure of to `interpret`. It keeps what can be kept
(numbers in quotes, a name that is a number, arguments that are null) and says why the rest cannot.
"""

import json
import sys
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any

from msgspec import Struct

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


def parse(text: bytes) -> Any:
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
    ts = nanoseconds(event.get("ts"))
    dur = nanoseconds(event.get("dur")) if phase == "X" else 0
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


def nanoseconds(value: Any) -> int | None:
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
