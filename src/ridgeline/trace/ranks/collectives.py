"""The collectives of one rank: which, in which process group, in which order, how many bytes.

Kernels of NCCL, RCCL and their kin are the measure: they run from a rank's arrival to the end of
the exchange. Without a device the spans of gloo's workers are. Where a trace holds only the
host's calls, it shows when a collective was asked for, not when it ran: good for counting alone.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.analyses.busy import is_communication
from ridgeline.trace.columns import Codes, DeviceOps, Kind, Nanoseconds, Numbers, Ops
from ridgeline.trace.links import Links, Rows
from ridgeline.trace.trace import Trace
from ridgeline.units import is_or_are, number_ranges

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
        """Which collectives join several ranks: no sends, and none of a group of one rank."""
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
    """Return the rows of `Trace.device` that are collectives or sends."""
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
    """Return the collectives of a rank that shows none."""
    none = np.empty(0, np.int64)
    codes = np.empty(0, np.int32)
    return Collectives("none", none, none, none, codes, codes, none, none, none, codes, (), ())


@lru_cache(maxsize=4096)
def family_of(text: str) -> int:
    """Return the family that a kernel, an operator or a recorded name belongs to; 0 where the name
    does not tell."""
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
    """Return what the texts of each row say; columns are (name, info) pairs, the nearest first."""
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
    """Return the ranks that a group lists; () where the list is shortened ("[0, 1, ...]")."""
    text = str(value or "")
    return () if "..." in text else tuple(sorted({int(n) for n in re.findall(r"\d{1,9}", text)}))


def _bytes(info: Mapping[str, Any]) -> int:
    """Return the larger of what goes in and what comes out: NCCL's own measure for every
    collective."""
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
    """Return values[rows], and -1 for rows that are -1."""
    if not len(values):
        return np.full(len(rows), -1, np.int64)
    return np.where(rows >= 0, values[np.maximum(rows, 0)], -1)


@dataclass(frozen=True, slots=True)
class Job:
    """What the files say about the whole job."""

    numbers: tuple[int, ...] | None = None
    """Each file's rank; None where they do not all tell one of their own."""
    world: int = 0
    """Ranks of the job; 0 where no file says."""


@dataclass(frozen=True, slots=True)
class Membership:
    here: NDArray[np.bool_]
    """Row: a group, column: a file. Whose collectives of that group should be in that file."""
    size: NDArray[np.int64]
    """Members of each group, the missing too."""
    absent: tuple[tuple[int, ...], ...]
    """Ranks of each group that show nothing, where it is known who they are."""

    @property
    def short(self) -> list[int]:
        """The groups that lack a member."""
        return np.flatnonzero(self.size > self.here.sum(axis=1)).tolist()


def membership(ranks: Sequence[Collectives], groups: Mapping[str, int], job: Job) -> Membership:
    here = np.zeros((len(groups), len(ranks)), bool)
    for r, one in enumerate(ranks):
        here[[groups[one.groups[g]] for g in np.unique(one.group[one.together])], r] = True
    talks = here.any(axis=0)
    numbers = np.array(job.numbers if job.numbers else [-1] * len(ranks))
    size = here.sum(axis=1)
    absent: list[tuple[int, ...]] = [()] * len(groups)
    for name, g in groups.items():
        if not here[g].any():  # sends alone
            continue
        told = max(_told_size(one, name) for one in ranks)
        members = next((m for one in ranks if (m := _told_members(one, name))), ())
        if job.numbers and members and np.isin(numbers[here[g]], members).all():
            here[g] = np.isin(numbers, members) & talks
            size[g], wanted = len(members), members
        elif told:
            size[g], wanted = told, tuple(range(job.world)) if told == job.world else ()
        elif job.world:  # an old trace tells no groups: all ranks, unless all are here
            short = int(talks.sum()) < job.world
            size[g], wanted = (job.world, tuple(range(job.world))) if short else (size[g], ())
        else:  # one that shows nothing at all may belong to any group
            size[g], wanted = size[g] + int((~talks).sum()), tuple(numbers[~talks].tolist())
        if job.numbers:
            absent[g] = tuple(m for m in wanted if m not in numbers[talks])
    return Membership(here, size, tuple(absent))


def _told_size(one: Collectives, group: str) -> int:
    if group not in one.groups:
        return 0
    return int(one.size[one.group == one.groups.index(group)].max(initial=0))


def _told_members(one: Collectives, group: str) -> tuple[int, ...]:
    return one.members[one.groups.index(group)] if group in one.groups else ()


def missing(found: Membership, job: Job) -> str:
    """Return which members have no trace here, and what is unknown therefore."""
    short = found.short
    if not short:
        return ""
    lost = sorted({rank for g in short for rank in found.absent[g]})
    who = f"{number_ranges(lost)} {is_or_are(lost)} missing" if lost else ""
    if lost and job.numbers and set(lost) <= set(job.numbers):  # a file without collectives
        who = f"{number_ranges(lost)} {'shows' if len(lost) == 1 else 'show'} no collective"
    if len(short) > 1:
        which = f"{len(short)} of {len(found.size)} process groups are not all here"
        return f"{which}{who and f': {who}'}, so nobody can say who was last in them"
    here, size = int(found.here[short[0]].sum()), int(found.size[short[0]])
    whose = "" if size == job.world or len(found.size) == 1 else " of a process group"
    said = f"{here} of {size} ranks{whose} are here{who and f': {who}'}"
    return f"{said}, so nobody can say who was last"


Table = NDArray[np.int64]

MAX_KERNELS_OF_ONE_NUMBER = 64
"""A coalesced call has several kernels with one sequence number. A number that more kernels share
is no sequence number."""
_MAX_SHIFT = 8
"""How far the orders of two ranks may be shifted against each other, counted from a common begin
or a common end: traces are cut at either end."""
_MAX_USUAL_SPREAD_NS = 50_000
"""With a spread up to this, no other shift is tried: the ends of one collective lie microseconds
apart, steps of the same program more."""


@dataclass(frozen=True, slots=True)
class Matching:
    """Row i is one collective, column r a rank: the place in that rank's Collectives, or -1."""

    table: Table
    """The collectives that at least two ranks show: enough to compare clocks."""
    whole: NDArray[np.bool_]
    """Which rows every member of the group shows: only then is it known who came last."""
    matched: int
    """Collectives that all members show whose trace is given."""
    unmatched: int
    """Collectives that a member does not show though its trace is given, or that one rank shows."""
    lacks: tuple[int, ...]
    """How many of the others' collectives each rank does not show."""
    members: Membership
    uneven: str = ""
    """Where the ranks show very different numbers of collectives."""

    def __len__(self) -> int:
        return len(self.table)


def match(ranks: Sequence[Collectives], job: Job) -> Matching:
    groups = {name: code for code, name in enumerate({g: 0 for one in ranks for g in one.groups})}
    members = membership(ranks, groups, job)
    numbered = _numbered(ranks, groups)
    kept = [np.flatnonzero(number >= 0) for _, number in numbered]
    place = np.concatenate(kept)
    owner = np.repeat(np.arange(len(ranks)), [len(rows) for rows in kept])
    group, number = (
        np.concatenate([columns[i][rows] for columns, rows in zip(numbered, kept, strict=True)])
        for i in (0, 1)
    )
    # one column of keys: sorting pairs takes ten times as long
    numbers, dense = np.unique(number, return_inverse=True)
    distinct, line = np.unique(group * (len(numbers) + 1) + dense, return_inverse=True)
    table = np.full((len(distinct), len(ranks)), -1, np.int64)
    table[line, owner] = place
    _part_strangers(table, ranks)
    group_of = distinct // (len(numbers) + 1)
    shown = table >= 0
    count = shown.sum(axis=1)
    absent = members.here[group_of] & ~shown
    complete = (count >= 2) & ~absent.any(axis=1)
    shared = count >= 2
    return Matching(
        table=table[shared],
        whole=(complete & (count >= members.size[group_of]))[shared],
        matched=int(complete.sum()),
        unmatched=len(table) - int(complete.sum()),
        lacks=tuple(absent.sum(axis=0).tolist()),
        members=members,
        uneven=_uneven(ranks),
    )


def _part_strangers(table: Table, ranks: Sequence[Collectives]) -> None:
    """Take out the ranks that run another collective than the first rank of the row."""
    families = np.zeros(table.shape, np.int64)
    for r, one in enumerate(ranks):
        here = table[:, r] >= 0
        families[here, r] = one.family[table[here, r]]
    first = np.argmax(table >= 0, axis=1) if table.size else np.empty(0, np.int64)
    expected = families[np.arange(len(table)), first][:, None]
    table[(table >= 0) & (families != expected) & (families > 0) & (expected > 0)] = -1


def _numbered(
    ranks: Sequence[Collectives], groups: dict[str, int]
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return the group and the number within it of each collective, the same on all ranks; -1 where
    a rank takes no part."""
    shared = [np.array([groups[g] for g in one.groups], np.int64)[one.group] for one in ranks]
    numbers = [np.full(len(one), -1, np.int64) for one in ranks]
    together = [one.together for one in ranks]
    for group in range(len(groups)):
        rows = [np.flatnonzero((s == group) & t) for s, t in zip(shared, together, strict=True)]
        members = [r for r in range(len(ranks)) if len(rows[r])]
        if len(members) and all(_counts(ranks[r].sequence[rows[r]]) for r in members):
            for r in members:
                numbers[r][rows[r]] = _by_count(ranks[r].sequence[rows[r]])
            continue
        for r in members:
            first = members[0]
            shift = 0 if r == first else _shift(ranks[first], rows[first], ranks[r], rows[r])
            # numbers may not be negative: a rank may have begun before the first one
            numbers[r][rows[r]] = np.arange(len(rows[r])) + shift + 2**32
    return list(zip(shared, numbers, strict=True))


def _counts(sequence: NDArray[np.int64]) -> bool:
    """Return whether this is a count: recorded everywhere, and not the same number again and
    again."""
    if (sequence < 0).any():
        return False
    return int(np.unique(sequence, return_counts=True)[1].max()) <= MAX_KERNELS_OF_ONE_NUMBER


def _by_count(sequence: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the count, combined with the place among the kernels that share it (in order of
    start)."""
    order = np.argsort(sequence, kind="stable")
    ordered = sequence[order]
    again = np.arange(len(ordered)) - np.searchsorted(ordered, ordered, side="left")
    number = np.empty(len(sequence), np.int64)
    number[order] = ordered * MAX_KERNELS_OF_ONE_NUMBER + again
    return number


def _shift(
    one: Collectives, its: NDArray[np.int64], other: Collectives, own: NDArray[np.int64]
) -> int:
    """Return what must be added to the order in `other` to get the order in `one`."""
    few = min(len(its), len(own))
    apart = len(its) - len(own)
    tried: list[tuple[float, int, int]] = []
    for shift in {at + near for at in (0, apart) for near in range(-_MAX_SHIFT, _MAX_SHIFT + 1)}:
        low, high = max(0, -shift), min(len(own), len(its) - shift)
        if high - low < max(1, few // 2):
            continue
        mine, theirs = own[low:high], its[low + shift : high + shift]
        same = other.family[mine] == one.family[theirs]
        if same.mean() < 0.9:
            continue
        spread = _spread((one.end[theirs] - other.end[mine])[same])
        tried.append((spread, high - low, shift))
    whole = [t for t in tried if t[1] == few]
    best = min(whole, key=lambda t: (t[0], abs(t[2])), default=None)
    part = min((t for t in tried if _MAX_SHIFT <= t[1] < few), default=None)
    if part and (best is None or (best[0] > _MAX_USUAL_SPREAD_NS and part[0] * 10 < best[0])):
        best = part
    return best[2] if best else 0


def _spread(differences: NDArray[np.int64]) -> float:
    """Return the median distance from the median, exact also where clocks are hours apart."""
    near = differences - differences[0]
    return float(np.median(np.abs(near - np.median(near))))


def _uneven(ranks: Sequence[Collectives]) -> str:
    counts = [int(one.together.sum()) for one in ranks if len(one)]
    least, most = min(counts, default=0), max(counts, default=0)
    return f"ranks show {least} to {most} collectives" if least * 2 < most else ""
