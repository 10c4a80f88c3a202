"""The collectives of one rank: which, in which process group, in which order, how many bytes.

Kernels of NCCL, RCCL and their kin are the measure: they run from a rank's arrival to the end of
the exchange. Without a device the spans of gloo's workers are. Where a trace holds only the
host's calls, it shows when a collective was asked for, not when it ran: good for counting alone.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.analyses.busy import is_communication
from ridgeline.trace.columns import Codes, DeviceOps, Nanoseconds, Numbers, Ops
from ridgeline.trace.kinds import Kind
from ridgeline.trace.links import Links, Rows
from ridgeline.trace.trace import Trace

# in this order: "reduce_scatter" holds "reduce", "all_gather" holds "gather"
_SPELLINGS = (
    ("reducescatter", "reduce_scatter"), ("allreduce", "all_reduce"), ("allgather", "all_gather"),
    ("alltoall", "all_to_all"), ("all2all", "all_to_all"), ("sendrecv", "send_recv"),
    ("broadcast", "broadcast"), ("barrier", "barrier"), ("scatter", "scatter"),
    ("gather", "gather"), ("reduce", "reduce"), ("send", "send"), ("recv", "recv"),
)  # fmt: skip
FAMILIES = ("", *dict.fromkeys(family for _, family in _SPELLINGS))
POINT_TO_POINT = tuple(FAMILIES.index(name) for name in ("send", "recv", "send_recv"))

_SPAN = re.compile(r"^(gloo|nccl|mpi|ucc|xccl|hccl):", re.IGNORECASE)
_CALL = re.compile(r"^(c10d::|_c10d_functional::|c10d_functional::)", re.IGNORECASE)
_DEPTH = 4
"""Operators looked at above a kernel's launch: record_param_comms, c10d::…, one or two wrappers."""

_ITEM_BYTES = {
    "bool": 1, "byte": 1, "char": 1, "uint8": 1, "int8": 1, "half": 2, "bfloat16": 2, "short": 2,
    "float16": 2, "uint16": 2, "int16": 2, "float": 4, "int": 4, "float32": 4, "int32": 4,
    "uint32": 4, "complexhalf": 4, "double": 8, "long": 8, "float64": 8, "int64": 8, "uint64": 8,
    "complexfloat": 8, "complexdouble": 16,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Collectives:
    """Columns of equal length, in order of start; times by the rank's own clock."""

    source: Literal["device", "host", "calls", "none"]
    """Kernels; spans that last as long as the exchange; calls that only ask for it."""
    row: Rows
    """Into `Trace.device`, else into `Trace.annotations` or `Trace.ops`."""
    start: Nanoseconds
    end: Nanoseconds
    family: Codes
    """Index into FAMILIES; 0 where nothing tells."""
    group: Codes
    """Index into `groups`."""
    sequence: Numbers
    """The group's own count; -1 where the trace does not say."""
    bytes: Numbers
    size: Numbers
    """Ranks of the group; 0 where the trace does not say."""
    lane: Codes
    """The host thread that asked for it."""
    groups: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    """The ranks of each of `groups`; empty where the trace does not list them all."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def together(self) -> NDArray[np.bool_]:
        """Which join several ranks: no sends, and in a group of one there is nobody to wait for."""
        several: NDArray[np.bool_] = ~np.isin(self.family, POINT_TO_POINT) & (self.size != 1)
        return several


@dataclass(frozen=True, slots=True)
class _Told:
    family: int = 0
    group: str = ""
    sequence: int = -1
    bytes: int = -1
    size: int = 0
    members: tuple[int, ...] = ()


def communication_rows(trace: Trace) -> Rows:
    """Rows of `Trace.device` that are collectives or sends."""
    device = trace.device
    if not len(device):
        return np.empty(0, np.int64)
    named = trace.names_where(device.name, is_communication)
    return np.flatnonzero(named & (device.kind == Kind.KERNEL))


def collectives(trace: Trace, links: Links) -> Collectives:
    rows = communication_rows(trace)
    if len(rows):
        return _of_kernels(trace, links, rows)
    for table, pattern in ((trace.annotations, _SPAN), (trace.ops, _CALL)):
        if not len(table):
            continue
        rows = np.flatnonzero(trace.names_where(table.name, partial(_asks, pattern)))
        if len(rows):
            return _of_host(trace, table, rows, pattern)
    return nothing()


def nothing() -> Collectives:
    """Of a rank that shows none."""
    none = np.empty(0, np.int64)
    codes = np.empty(0, np.int32)
    return Collectives("none", none, none, none, codes, codes, none, none, none, codes, (), ())


@lru_cache(maxsize=4096)
def family_of(text: str) -> int:
    """The family a kernel, an operator or a recorded name belongs to; 0 where it does not tell."""
    squeezed = re.sub(r"[^a-z0-9]", "", text.lower())
    for spelling, family in _SPELLINGS:
        if spelling in squeezed:
            return FAMILIES.index(family)
    return 0


def _asks(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.search(name) is not None and family_of(name) > 0


def _of_kernels(trace: Trace, links: Links, rows: Rows) -> Collectives:
    device = trace.device
    columns: list[NDArray[Any]] = [device.name[rows], device.info[rows]]
    op = links.device_op[rows]
    for _ in range(_DEPTH):
        columns += [_picked(trace.ops.name, op), _picked(trace.ops.info, op)]
        op = _picked(links.op_parent, op)
    told = _told(trace, np.column_stack(columns).astype(np.int64))
    streams = np.unique(device.stream[rows], return_inverse=True)[1]
    return _columns("device", device, rows, told, streams, links.launch_lane[rows])


def _of_host(trace: Trace, table: Ops, rows: Rows, pattern: re.Pattern[str]) -> Collectives:
    told = _told(trace, np.column_stack((table.name[rows], table.info[rows])).astype(np.int64))
    # gloo's span is its worker at work; NCCL's is the enqueueing, over long before the exchange
    lasting = pattern is _SPAN and not trace.names_where(table.name[rows], is_communication).any()
    one = np.zeros(len(rows), np.int64)
    return _columns("host" if lasting else "calls", table, rows, told, one, table.lane[rows])


def _columns(
    source: Literal["device", "host", "calls"],
    table: DeviceOps | Ops,
    rows: Rows,
    told: list[_Told],
    streams: NDArray[np.int64],
    lane: Codes,
) -> Collectives:
    names = [t.group or f"#{int(s)}" for t, s in zip(told, streams, strict=True)]
    groups = tuple(dict.fromkeys(names))
    place = {name: code for code, name in enumerate(groups)}
    members = dict(zip(names, (t.members for t in told), strict=True))
    return Collectives(
        source=source,
        row=rows,
        start=table.ts[rows],
        end=table.end[rows],
        family=np.array([t.family for t in told], np.int32),
        group=np.array([place[name] for name in names], np.int32),
        sequence=np.array([t.sequence for t in told], np.int64),
        bytes=np.array([t.bytes for t in told], np.int64),
        size=np.array([t.size for t in told], np.int64),
        lane=lane.astype(np.int32),
        groups=groups,
        members=tuple(members[name] for name in groups),
    )


def _told(trace: Trace, codes: NDArray[np.int64]) -> list[_Told]:
    """What each row's texts say; columns are (name, info) pairs, the nearest first."""
    distinct, rows = np.unique(codes, axis=0, return_inverse=True)
    known = [_resolve(trace, [int(code) for code in line]) for line in distinct]
    return [known[int(row)] for row in rows.reshape(-1)]


def _resolve(trace: Trace, codes: list[int]) -> _Told:
    names = [trace.text(code) for code in codes[::2]]
    infos = [trace.info(code) for code in codes[1::2]]
    info = next((one for one in infos if "Collective name" in one), None)
    if info is None:  # the operator knows an all-to-all whose kernel only says SendRecv
        families = [family_of(name) for name in (*names[1:], names[0])]
        return _Told(family=next((f for f in families if f), 0))
    family = family_of(str(info["Collective name"])) or family_of(names[0])
    parts = (info.get("Process Group Name"), info.get("Process Group Ranks"))
    sequence = _whole(info.get("Seq"))
    members = _members(info.get("Process Group Ranks"))
    size = _whole(info.get("Group size")) or len(members)
    return _Told(
        family=family,
        group=" ".join(str(part) for part in parts if part not in (None, "")),
        sequence=-1 if sequence is None else sequence,
        bytes=_bytes(info),
        size=size,
        members=members if len(members) == size else (),
    )


def _members(value: Any) -> tuple[int, ...]:
    """The ranks a group lists; nothing where the list is shortened ("[0, 1, ...]")."""
    text = str(value or "")
    return () if "..." in text else tuple(sorted({int(n) for n in re.findall(r"\d{1,9}", text)}))


def _bytes(info: Mapping[str, Any]) -> int:
    """The larger of what goes in and comes out: NCCL's own measure for every collective."""
    counts = [_whole(info.get(f"{way} msg nelems")) for way in ("In", "Out")]
    dtype = str(info.get("dtype", "")).lower()
    item = _ITEM_BYTES.get(dtype, 1 if dtype.startswith("float8") else 0)
    known = [count for count in counts if count is not None and count > 0]
    return max(known) * item if known and item else -1


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 2**48 else None


def _picked(values: NDArray[Any], rows: Rows) -> NDArray[Any]:
    """values[rows], -1 for rows that are -1."""
    if not len(values):
        return np.full(len(rows), -1, np.int64)
    return np.where(rows >= 0, values[np.maximum(rows, 0)], -1)
