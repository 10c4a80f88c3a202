"""The collectives of one rank, with their process group, their order and their bytes; and which
collectives of several ranks belong together.

A kernel of NCCL, RCCL or the like runs from the arrival of its rank to the end of the exchange.
Without a device, the spans of gloo's worker threads do. A trace that holds only the host's calls
shows when a collective was requested, not when it ran; such collectives can only be counted.
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
_REQUEST = re.compile(r"^(c10d::|_c10d_functional::|c10d_functional::)", re.IGNORECASE)
_MAX_PARENT_OPERATORS = 4
"""The number of operators around a launch that are searched for the collective's arguments:
record_param_comms, c10d::…, one or two wrappers."""

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
    """"device": kernels; "host": spans as long as the exchange; "calls": requests only."""
    row: Rows
    """Into `Trace.device`, else into `Trace.annotations` or `Trace.ops`."""
    start: Nanoseconds
    end: Nanoseconds
    family: Codes
    """Index into FAMILIES; 0 where the family is unknown."""
    group: Codes
    """Index into `groups`."""
    sequence: Numbers
    """The number of the collective within its group; -1 where the trace does not record it."""
    bytes: Numbers
    size: Numbers
    """The number of ranks in the group; 0 where the trace does not record it."""
    lane: Codes
    """The host thread that requested the collective."""
    groups: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    """The ranks of each of `groups`; empty where the trace does not list them all."""

    def __len__(self) -> int:
        return len(self.row)

    @property
    def joins_ranks(self) -> NDArray[np.bool_]:
        """Whether each collective joins several ranks: sends do not, nor do groups of one rank."""
        several: NDArray[np.bool_] = ~np.isin(self.family, POINT_TO_POINT) & (self.size != 1)
        return several


@dataclass(frozen=True, slots=True)
class _Details:
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
        return _from_kernels(trace, links, rows)
    for table, pattern in ((trace.annotations, _SPAN), (trace.ops, _REQUEST)):
        if not len(table):
            continue
        rows = np.flatnonzero(trace.names_where(table.name, partial(_is_named_request, pattern)))
        if len(rows):
            return _from_host_events(trace, table, rows, pattern)
    return no_collectives()


def no_collectives() -> Collectives:
    """Return the collectives of a rank that shows none."""
    none = np.empty(0, np.int64)
    codes = np.empty(0, np.int32)
    return Collectives("none", none, none, none, codes, codes, none, none, none, codes, (), ())


@lru_cache(maxsize=4096)
def family_of(text: str) -> int:
    """Return the family of a kernel, an operator or a recorded name, as an index into FAMILIES; 0
    where the name has none."""
    squeezed = re.sub(r"[^a-z0-9]", "", text.lower())
    for spelling, family in _SPELLINGS:
        if spelling in squeezed:
            return FAMILIES.index(family)
    return 0


def _is_named_request(pattern: re.Pattern[str], name: str) -> bool:
    return pattern.search(name) is not None and family_of(name) > 0


def _from_kernels(trace: Trace, links: Links, rows: Rows) -> Collectives:
    device = trace.device
    columns: list[NDArray[Any]] = [device.name[rows], device.info[rows]]
    op = links.device_op[rows]
    for _ in range(_MAX_PARENT_OPERATORS):
        columns += [_values_at(trace.ops.name, op), _values_at(trace.ops.info, op)]
        op = _values_at(links.op_parent, op)
    details = _details_of_rows(trace, np.column_stack(columns).astype(np.int64))
    streams = np.unique(device.stream[rows], return_inverse=True)[1]
    return _columns("device", device, rows, details, streams, links.launch_lane[rows])


def _from_host_events(
    trace: Trace, table: Ops, rows: Rows, pattern: re.Pattern[str]
) -> Collectives:
    details = _details_of_rows(
        trace, np.column_stack((table.name[rows], table.info[rows])).astype(np.int64)
    )
    # gloo's span lasts as long as the exchange; NCCL's ends when the exchange has been queued
    is_timed = pattern is _SPAN and not trace.names_where(table.name[rows], is_communication).any()
    one_stream = np.zeros(len(rows), np.int64)
    return _columns(
        "host" if is_timed else "calls", table, rows, details, one_stream, table.lane[rows]
    )


def _columns(
    source: Literal["device", "host", "calls"],
    table: DeviceOps | Ops,
    rows: Rows,
    details: list[_Details],
    streams: NDArray[np.int64],
    lane: Codes,
) -> Collectives:
    names = [
        detail.group or f"#{int(stream)}" for detail, stream in zip(details, streams, strict=True)
    ]
    groups = tuple(dict.fromkeys(names))
    code_of = {name: code for code, name in enumerate(groups)}
    members_of = dict(zip(names, (detail.members for detail in details), strict=True))
    return Collectives(
        source=source,
        row=rows,
        start=table.ts[rows],
        end=table.end[rows],
        family=np.array([detail.family for detail in details], np.int32),
        group=np.array([code_of[name] for name in names], np.int32),
        sequence=np.array([detail.sequence for detail in details], np.int64),
        bytes=np.array([detail.bytes for detail in details], np.int64),
        size=np.array([detail.size for detail in details], np.int64),
        lane=lane.astype(np.int32),
        groups=groups,
        members=tuple(members_of[name] for name in groups),
    )


def _details_of_rows(trace: Trace, codes: NDArray[np.int64]) -> list[_Details]:
    """Return the details of each row. Columns of `codes` are (name, info) pairs: those of the
    collective itself, then those of the operators around it, the nearest first."""
    distinct, rows = np.unique(codes, axis=0, return_inverse=True)
    details = [_details(trace, [int(code) for code in line]) for line in distinct]
    return [details[int(row)] for row in rows.reshape(-1)]


def _details(trace: Trace, codes: list[int]) -> _Details:
    names = [trace.text(code) for code in codes[::2]]
    infos = [trace.info(code) for code in codes[1::2]]
    info = next((arguments for arguments in infos if "Collective name" in arguments), None)
    if info is None:  # an all-to-all may only be named by the operator: its kernel is a SendRecv
        families = [family_of(name) for name in (*names[1:], names[0])]
        return _Details(family=next((f for f in families if f), 0))
    family = family_of(str(info["Collective name"])) or family_of(names[0])
    parts = (info.get("Process Group Name"), info.get("Process Group Ranks"))
    sequence = _whole_number(info.get("Seq"))
    members = _members(info.get("Process Group Ranks"))
    size = _whole_number(info.get("Group size")) or len(members)
    return _Details(
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
    """Return the larger one of input and output in bytes, by which NCCL measures every collective;
    -1 where unknown."""
    counts = [_whole_number(info.get(f"{side} msg nelems")) for side in ("In", "Out")]
    dtype = str(info.get("dtype", "")).lower()
    item = _ITEM_BYTES.get(dtype, 1 if dtype.startswith("float8") else 0)
    known = [count for count in counts if count is not None and count > 0]
    return max(known) * item if known and item else -1


def _whole_number(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 19:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 2**48 else None


def _values_at(values: NDArray[Any], rows: Rows) -> NDArray[Any]:
    """Return values[rows], and -1 for rows that are -1."""
    if not len(values):
        return np.full(len(rows), -1, np.int64)
    return np.where(rows >= 0, values[np.maximum(rows, 0)], -1)


@dataclass(frozen=True, slots=True)
class Job:
    """The facts about the whole job that its files record."""

    numbers: tuple[int, ...] | None = None
    """The rank of each file; None unless every file records a rank and no two the same."""
    world: int = 0
    """The number of ranks in the job; 0 where no file records it."""


@dataclass(frozen=True, slots=True)
class Membership:
    expected: NDArray[np.bool_]
    """Row: a group, column: a file. Whether the collectives of the group should be in the file."""
    size: NDArray[np.int64]
    """The number of members of each group, missing ones included."""
    absent: tuple[tuple[int, ...], ...]
    """The members of each group that show no collective, as far as they are known."""

    @property
    def incomplete_groups(self) -> list[int]:
        """The groups that lack a member."""
        return np.flatnonzero(self.size > self.expected.sum(axis=1)).tolist()


def membership(ranks: Sequence[Collectives], groups: Mapping[str, int], job: Job) -> Membership:
    expected = np.zeros((len(groups), len(ranks)), bool)
    for r, rank in enumerate(ranks):
        joined = [groups[rank.groups[g]] for g in np.unique(rank.group[rank.joins_ranks])]
        expected[joined, r] = True
    communicates = expected.any(axis=0)
    numbers = np.array(job.numbers if job.numbers else [-1] * len(ranks))
    size = expected.sum(axis=1)
    absent: list[tuple[int, ...]] = [()] * len(groups)
    for name, g in groups.items():
        if not expected[g].any():  # a group with sends only
            continue
        all_members: tuple[int, ...] = ()
        recorded_size = max(_recorded_size(rank, name) for rank in ranks)
        members = next((member for rank in ranks if (member := _recorded_members(rank, name))), ())
        if job.numbers and members and np.isin(numbers[expected[g]], members).all():
            expected[g] = np.isin(numbers, members) & communicates
            size[g], all_members = len(members), members
        elif recorded_size:
            size[g] = recorded_size
            all_members = tuple(range(job.world)) if recorded_size == job.world else ()
        elif job.world:  # an old trace records no groups: assume all ranks of the job
            if int(communicates.sum()) < job.world:
                size[g], all_members = job.world, tuple(range(job.world))
        else:  # a file without collectives may belong to any group
            size[g] += int((~communicates).sum())
            all_members = tuple(numbers[~communicates].tolist())
        if job.numbers:
            absent[g] = tuple(m for m in all_members if m not in numbers[communicates])
    return Membership(expected, size, tuple(absent))


def _recorded_size(rank: Collectives, group: str) -> int:
    if group not in rank.groups:
        return 0
    return int(rank.size[rank.group == rank.groups.index(group)].max(initial=0))


def _recorded_members(rank: Collectives, group: str) -> tuple[int, ...]:
    return rank.members[rank.groups.index(group)] if group in rank.groups else ()


def missing(members: Membership, job: Job) -> str:
    """Return a sentence on the members without a trace; "" if there are none."""
    incomplete = members.incomplete_groups
    if not incomplete:
        return ""
    absent = sorted({rank for g in incomplete for rank in members.absent[g]})
    who = f"{number_ranges(absent)} {is_or_are(absent)} missing" if absent else ""
    if absent and job.numbers and set(absent) <= set(job.numbers):  # a file without collectives
        who = f"{number_ranges(absent)} {'shows' if len(absent) == 1 else 'show'} no collective"
    if len(incomplete) > 1:
        which = f"{len(incomplete)} of {len(members.size)} process groups are not all here"
        return f"{which}{who and f': {who}'}, so nobody can say who was last in them"
    count, size = int(members.expected[incomplete[0]].sum()), int(members.size[incomplete[0]])
    whose = "" if size == job.world or len(members.size) == 1 else " of a process group"
    present = f"{count} of {size} ranks{whose} are here{who and f': {who}'}"
    return f"{present}, so nobody can say who was last"


Table = NDArray[np.int64]

MAX_KERNELS_OF_ONE_NUMBER = 64
"""A coalesced call has several kernels with one sequence number. A number that more kernels share
is no sequence number."""
_MAX_SHIFT = 8
"""The largest shift between the orders of two ranks that is tried, counted from a common start and
from a common end: a trace may be cut at either end."""
_MAX_USUAL_SPREAD_NS = 50_000
"""With a spread up to this, no other shift is tried: the ends of one collective lie microseconds
apart, steps of the same program more."""


@dataclass(frozen=True, slots=True)
class Matching:
    """The collectives of several ranks that belong together."""

    table: Table
    """Row i is a collective that at least two ranks show, column r a rank; the value is the row in
    the Collectives of that rank, or -1."""
    whole: NDArray[np.bool_]
    """Whether every member of the group shows the collective: only then it is known which rank came
    last."""
    matched: int
    """The number of collectives that are in the traces of all members with a trace."""
    unmatched: int
    """The number of the other collectives: in one trace only, or missing from the trace of a
    member."""
    lacks: tuple[int, ...]
    """The number of collectives of its groups that each rank does not show."""
    members: Membership
    uneven: str = ""
    """A sentence if the ranks show very different numbers of collectives, else ""."""

    def __len__(self) -> int:
        return len(self.table)


def match(ranks: Sequence[Collectives], job: Job) -> Matching:
    groups = {name: code for code, name in enumerate({g: 0 for rank in ranks for g in rank.groups})}
    members = membership(ranks, groups, job)
    numbered = _numbers_in_group(ranks, groups)
    numbered_rows = [np.flatnonzero(number >= 0) for _, number in numbered]
    rows = np.concatenate(numbered_rows)
    rank_of = np.repeat(np.arange(len(ranks)), [len(rows) for rows in numbered_rows])
    group, number = (
        np.concatenate(
            [columns[i][rows] for columns, rows in zip(numbered, numbered_rows, strict=True)]
        )
        for i in (0, 1)
    )
    # one column of keys: sorting pairs takes ten times as long
    numbers, dense = np.unique(number, return_inverse=True)
    distinct, row_of = np.unique(group * (len(numbers) + 1) + dense, return_inverse=True)
    table = np.full((len(distinct), len(ranks)), -1, np.int64)
    table[row_of, rank_of] = rows
    _remove_other_families(table, ranks)
    group_of = distinct // (len(numbers) + 1)
    is_shown = table >= 0
    count = is_shown.sum(axis=1)
    absent = members.expected[group_of] & ~is_shown
    complete = (count >= 2) & ~absent.any(axis=1)
    shared = count >= 2
    return Matching(
        table=table[shared],
        whole=(complete & (count >= members.size[group_of]))[shared],
        matched=int(complete.sum()),
        unmatched=len(table) - int(complete.sum()),
        lacks=tuple(absent.sum(axis=0).tolist()),
        members=members,
        uneven=_uneven_counts(ranks),
    )


def _remove_other_families(table: Table, ranks: Sequence[Collectives]) -> None:
    """Set the entries to -1 whose family differs from the first rank's in the same row."""
    families = np.zeros(table.shape, np.int64)
    for r, rank in enumerate(ranks):
        shown = table[:, r] >= 0
        families[shown, r] = rank.family[table[shown, r]]
    first = np.argmax(table >= 0, axis=1) if table.size else np.empty(0, np.int64)
    expected = families[np.arange(len(table)), first][:, None]
    table[(table >= 0) & (families != expected) & (families > 0) & (expected > 0)] = -1


def _numbers_in_group(
    ranks: Sequence[Collectives], groups: dict[str, int]
) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return for each rank the group of each collective, and its number within the group. The
    numbers are comparable between ranks; -1 for a collective that joins no other rank."""
    group_codes = [
        np.array([groups[g] for g in rank.groups], np.int64)[rank.group] for rank in ranks
    ]
    numbers = [np.full(len(rank), -1, np.int64) for rank in ranks]
    joins_ranks = [rank.joins_ranks for rank in ranks]
    for group in range(len(groups)):
        rows = [
            np.flatnonzero((group_of == group) & joins)
            for group_of, joins in zip(group_codes, joins_ranks, strict=True)
        ]
        members = [r for r in range(len(ranks)) if len(rows[r])]
        if len(members) and all(_is_sequence(ranks[r].sequence[rows[r]]) for r in members):
            for r in members:
                numbers[r][rows[r]] = _distinct_numbers(ranks[r].sequence[rows[r]])
            continue
        for r in members:
            first = members[0]
            shift = 0 if r == first else _order_shift(ranks[first], rows[first], ranks[r], rows[r])
            # numbers may not be negative: a rank may have begun before the first one
            numbers[r][rows[r]] = np.arange(len(rows[r])) + shift + 2**32
    return list(zip(group_codes, numbers, strict=True))


def _is_sequence(sequence: NDArray[np.int64]) -> bool:
    """Return whether these are sequence numbers: recorded for each row, and not the same number
    again and again."""
    if (sequence < 0).any():
        return False
    return int(np.unique(sequence, return_counts=True)[1].max()) <= MAX_KERNELS_OF_ONE_NUMBER


def _distinct_numbers(sequence: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return one number for each kernel: its sequence number combined with its position, in order
    of start, among the kernels that share it."""
    order = np.argsort(sequence, kind="stable")
    ordered = sequence[order]
    again = np.arange(len(ordered)) - np.searchsorted(ordered, ordered, side="left")
    number = np.empty(len(sequence), np.int64)
    number[order] = ordered * MAX_KERNELS_OF_ONE_NUMBER + again
    return number


def _order_shift(
    reference: Collectives,
    reference_rows: NDArray[np.int64],
    other: Collectives,
    other_rows: NDArray[np.int64],
) -> int:
    """Return the shift to add to a position in `other` to get the position in `reference`."""
    shorter = min(len(reference_rows), len(other_rows))
    longer_by = len(reference_rows) - len(other_rows)
    candidates: list[tuple[float, int, int]] = []
    for shift in {
        origin + offset
        for origin in (0, longer_by)
        for offset in range(-_MAX_SHIFT, _MAX_SHIFT + 1)
    }:
        low, high = max(0, -shift), min(len(other_rows), len(reference_rows) - shift)
        if high - low < max(1, shorter // 2):
            continue
        compared, expected = other_rows[low:high], reference_rows[low + shift : high + shift]
        alike = other.family[compared] == reference.family[expected]
        if alike.mean() < 0.9:
            continue
        spread = _spread((reference.end[expected] - other.end[compared])[alike])
        candidates.append((spread, high - low, shift))
    whole = [candidate for candidate in candidates if candidate[1] == shorter]
    best = min(whole, key=lambda candidate: (candidate[0], abs(candidate[2])), default=None)
    part = min(
        (candidate for candidate in candidates if _MAX_SHIFT <= candidate[1] < shorter),
        default=None,
    )
    if part and (best is None or (best[0] > _MAX_USUAL_SPREAD_NS and part[0] * 10 < best[0])):
        best = part
    return best[2] if best else 0


def _spread(differences: NDArray[np.int64]) -> float:
    """Return the median distance from the median, exact also where clocks are hours apart."""
    near = differences - differences[0]
    return float(np.median(np.abs(near - np.median(near))))


def _uneven_counts(ranks: Sequence[Collectives]) -> str:
    counts = [int(rank.joins_ranks.sum()) for rank in ranks if len(rank)]
    least, most = min(counts, default=0), max(counts, default=0)
    return f"ranks show {least} to {most} collectives" if least * 2 < most else ""
