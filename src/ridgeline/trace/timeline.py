"""The timeline of one or several traces: steps, phases, idle causes, streams and threads, thinned
to what a page can hold.

Each lane first gets the same number of events, as far as it has so many; what is left over goes to
the longer lanes. In a lane the longest events are kept: an event is never shorter than what it
encloses, so the shortest and innermost go first. Of a trace that does not fit, half of the room is
kept for a part in the middle that is shown whole.
"""

import re
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ridgeline.records.timeline import LaneKind, Timeline, TimelineLane, Work
from ridgeline.records.trace import Place, TraceStudy, Window
from ridgeline.trace.analyses.busy import properties_of
from ridgeline.trace.analyses.idle import CAUSES, GapMoments, idle_gaps
from ridgeline.trace.analyses.kernels import category_of
from ridgeline.trace.analyses.modules import FRAME, Modules, module_paths, modules_of_work, path_of
from ridgeline.trace.analyses.phases import CODED_PHASES, phase_codes, phase_spans
from ridgeline.trace.columns import Events, Kind
from ridgeline.trace.host_states import is_allocator_call, is_copy_call, is_sync_call, launched
from ridgeline.trace.intervals import Times, clip
from ridgeline.trace.links import Links, Rows, at_rows, distinct, links_of
from ridgeline.trace.places import (
    Places,
    is_not_torch,
    is_own,
    place_of,
    short_name,
    user_places,
)
from ridgeline.trace.trace import Trace
from ridgeline.trace.validation import trust_in, validate
from ridgeline.trace.window import Steps, steps_of, window_of

MAX_EVENTS = 60_000
"""A browser draws so many in a few milliseconds."""
MAX_CHARACTERS = 1_400_000
"""Limits the events and their texts, as they stand in a page. A page of 2 MB opens at once."""
EVENT_CHARACTERS, WORK_CHARACTERS = 16, 60
"""The average length, as JSON, of an event without its texts, and of a distinct work."""
MIN_EVENTS = 100
MAX_DEPTH = 40
"""Deeper events are not shown; recursions of Python reach a thousand."""
MAX_LANES_PER_RANK, MAX_LANES = 24, 160
MAX_PHASE_PAUSE_NS = 200_000
"""A longer pause between two pieces of a phase is the program's own code."""
MAX_NAME_LENGTH, SHOWN_NAME_LENGTH, MAX_STACK = 1_000, 100, 6
"""Characters of a name, which is cut in the middle, and as many as a report shows of it: templates
have to be read to their end to be shortened. Functions of a stack."""
MAX_SHAPE_LENGTH, MAX_FRAME_LENGTH = 120, 160
_COLLECTIVE = re.compile(r"^(gloo|mpi|ucc|nccl|xccl|hccl):|^c10d::|^_c10d_functional::")
_LAUNCH = re.compile(r"Launch", re.IGNORECASE)
_MODULE_CALL = re.compile(r"torch/nn/modules/module\.py\(\d+\): _(wrapped_)?call_impl$")
_TABLES = ("frames", "annotations", "ops", "calls")
"""Tables whose rows share the lane of a thread, the enclosing first where two begin together."""


class _Lane(NamedTuple):
    """All events of a lane, before any is left out."""

    kind: LaneKind
    start: Times
    dur: Times
    depth: Rows
    table: Rows
    """Index into _TABLES, for the lanes of threads; else 0."""
    row: Rows
    """The row in the table, or the number of the gap or span."""
    lane: int = -1
    device: int = -1
    stream: int = -1


def timeline(
    traces: Sequence[Trace],
    study: TraceStudy | None = None,
    *,
    steps: str | None = None,
    step_numbers: Sequence[int] = (),
    shown: Callable[[str], str] = str,
    max_events: int = MAX_EVENTS,
) -> Timeline | None:
    """Return the timeline of the traces, which are ranks of one job; None if nothing in them took
    any time. `shown` is how the report names a file, and `step_numbers` are the numbers of the
    marked steps in a run, where the marks have others."""
    readers = [_Reader(trace, window_of(trace, steps), shown, step_numbers) for trace in traces]
    kept = [reader for reader in readers if reader.lanes]
    if not kept:
        return None
    offsets, differ = _offsets(kept, study)
    while True:
        made = _made(kept, offsets, max_events, several=len(traces) > 1)
        characters = _characters(made)
        if characters <= MAX_CHARACTERS or max_events <= MIN_EVENTS:
            break
        max_events = max(int(max_events * min(0.9, MAX_CHARACTERS / characters)), MIN_EVENTS)
    return _with_shares(made, kept, differ)


def _characters(made: Timeline) -> int:
    """Return about how many characters the timeline takes in a page."""
    texts: set[str] = set()
    for work in made.works:
        names = (work.name, work.operator, work.module, work.host, work.before, work.after)
        texts |= {_shortened(name, SHOWN_NAME_LENGTH) for name in names}
        texts |= {work.shape, "".join(work.stack)}
        if work.place is not None:
            texts.add(f"{work.place.file}:{work.place.line}{work.place.function}")
    return (
        EVENT_CHARACTERS * made.events
        + WORK_CHARACTERS * len(made.works)
        + sum(_escaped_length(text) + 3 for text in texts)
    )


def _escaped_length(text: str) -> int:
    """Return how long a text is once nothing in it is read as markup or moves a cursor."""
    escaped = text.encode("unicode_escape")
    return len(escaped) + escaped.count(b"\\") + 5 * escaped.count(b"<")


def _offsets(readers: Sequence["_Reader"], study: TraceStudy | None) -> tuple[list[int], bool]:
    """Return what is subtracted from the times of each trace, and whether the clocks of the ranks
    have nothing in common: then each begins at its own start."""
    of_ranks = study.ranks.ranks if study is not None and study.ranks is not None else ()
    base = readers[0].trace.metadata.base_ns
    shift = [reader.trace.metadata.base_ns - base for reader in readers]
    if len(of_ranks) == len(readers) > 1:  # measured by the ends of collectives
        shift = [rank.clock_offset_ns for rank in of_ranks]
    starts = [reader.start + by for reader, by in zip(readers, shift, strict=True)]
    ends = [reader.end + by for reader, by in zip(readers, shift, strict=True)]
    longest = max(reader.end - reader.start for reader in readers)
    if max(ends) - min(starts) > 3 * longest:
        return [reader.start for reader in readers], True
    return [min(starts) - by for by in shift], False


def _made(
    readers: Sequence["_Reader"], offsets: Sequence[int], max_events: int, *, several: bool
) -> Timeline:
    whole = [(reader, lane) for reader in readers for lane in reader.lanes][:MAX_LANES]
    counts = np.array([len(lane.start) for _, lane in whole], np.int64)
    rooms = _shared(counts, max_events).tolist()
    parts = {
        id(reader): reader.middle(
            [(lane, room) for (of, lane), room in zip(whole, rooms, strict=True) if of is reader]
        )
        for reader in readers
    }
    lanes, works = [], dict[Work, int]()
    longest = 0
    for (reader, lane), room in zip(whole, rooms, strict=True):
        rows = _chosen(lane, room, parts[id(reader)])
        if len(rows) < len(lane.start):
            missing = np.ones(len(lane.start), bool)
            missing[rows] = False
            longest = max(longest, int(lane.dur[missing].max()))
        start = lane.start[rows] - offsets[readers.index(reader)]
        lanes.append(
            TimelineLane(
                rank=reader.trace.label if several else "",
                kind=lane.kind,
                device=lane.device,
                device_name=reader.device_name(lane.device),
                stream=lane.stream,
                thread=reader.trace.lanes[lane.lane].tid if lane.kind == "host" else "",
                role=reader.role(lane.lane) if lane.kind == "host" else "",
                start_ns=tuple(start.tolist()),
                length_ns=tuple(lane.dur[rows].tolist()),
                depth=tuple(lane.depth[rows].tolist()),
                work=tuple(reader.works(lane, rows, works)),
                launched_ns=reader.launched_before(lane, rows),
                left_out=len(lane.start) - len(rows),
            )
        )
    left_out = sum(lane.left_out for lane in lanes)
    first, last = parts[id(readers[0])] if left_out else (0, 0)
    return Timeline(
        length_ns=max(
            reader.end - by for reader, by in zip(readers, offsets, strict=True)
        ),
        works=tuple(works),
        lanes=tuple(lanes),
        lanes_left_out=sum(len(reader.lanes) for reader in readers)
        + sum(reader.lanes_left_out for reader in readers)
        - len(lanes),
        left_out=left_out,
        longest_left_out_ns=longest,
        whole_from_ns=first - offsets[0] if last else 0,
        whole_until_ns=last - offsets[0] if last else 0,
        library_functions=any(reader.has_library_functions for reader in readers),
    )  # fmt: skip


def _shared(counts: NDArray[np.int64], room: int) -> NDArray[np.int64]:
    """Return how many events each lane may have. Every lane gets what it needs up to a level that
    is the same for all, and the level is as high as the room allows."""
    given = np.zeros(len(counts), np.int64)
    left, waiting = room, np.argsort(counts, kind="stable").tolist()
    while waiting:
        lane = waiting.pop(0)
        given[lane] = min(int(counts[lane]), left // (len(waiting) + 1))
        left -= int(given[lane])
    return given


def _chosen(lane: _Lane, room: int, part: tuple[int, int]) -> Rows:
    """Return the rows that are shown, in order: half of the room is for the middle part, the rest
    for the longest events of the whole. Of equally long events the outer one is kept."""
    if len(lane.start) <= room:
        return np.arange(len(lane.start))
    order = np.lexsort((lane.depth, -lane.dur))
    first, last = part
    inside = (lane.start < last) & (lane.start + lane.dur > first)
    whole = order[inside[order]][: room // 2]
    others = order[~np.isin(order, whole)][: room - len(whole)]
    return np.sort(np.concatenate([whole, others]))


def _with_shares(made: Timeline, readers: Sequence["_Reader"], differ: bool) -> Timeline:
    """Add what the timeline shows in short: idle time and its main cause, and the main phase."""
    causes = np.sum([r.idle_ns for r in readers if r.idle_ns is not None] or [[0]], axis=0)
    window_ns = sum(r.window.ns * len(r.gaps) for r in readers if r.idle_ns is not None)
    if window_ns:
        main = int(np.argmax(causes))
        made = replace(made, idle_share=int(causes.sum()) / window_ns)
        if causes[main]:
            made = replace(made, main_cause=CAUSES[main],
                           main_cause_share=int(causes[main]) / int(causes.sum()))  # fmt: skip
    totals: dict[str, int] = {}
    for reader in readers:
        for name, spans in phase_spans(reader.trace, reader.links).items():
            totals[name] = totals.get(name, 0) + clip(spans, reader.start, reader.end).total
    whole = sum(reader.end - reader.start for reader in readers)
    if any(totals.values()) and whole:
        phase = max(totals, key=totals.__getitem__)
        made = replace(made, main_phase=phase, main_phase_share=totals[phase] / whole)
    return replace(made, clocks_differ=differ)


class _Reader:
    """Reads the lanes of one trace."""

    def __init__(
        self,
        trace: Trace,
        window: Window,
        shown: Callable[[str], str],
        step_numbers: Sequence[int] = (),
    ) -> None:
        self.trace, self.window, self._shown = trace, window, shown
        self.links: Links = links_of(trace)
        self.steps: Steps = steps_of(trace)
        self._step_numbers = self.steps.number
        if len(step_numbers) == len(self.steps):
            self._step_numbers = np.array(step_numbers, np.int64)
        self.has_library_functions = False
        self.start, self.end = self._span()
        self._names: dict[str, str] = {}
        self._stacks: dict[int, tuple[str, ...]] = {}
        checks = validate(trace, self.links, self.steps)
        is_known = trust_in("idle", checks).confidence != "unreliable" and window.ns > 0
        self.gaps = idle_gaps(trace, self.links, window) if is_known else ()
        self.idle_ns = sum(gaps.ns.sum(axis=0) for gaps in self.gaps) if self.gaps else None
        """Idle time by cause; None if it is not known."""
        self._moments: dict[int, GapMoments] = {}
        every = [lane for lane in self._all_lanes() if len(lane.start)]
        self.lanes = every[:MAX_LANES_PER_RANK]
        self.lanes_left_out = len(every) - len(self.lanes)

    def _span(self) -> tuple[int, int]:
        """Return what is shown: the window, and the steps or the host work that began it."""
        start, end = self.window.start_ns, self.window.end_ns
        if self.window.by_steps:
            return start, end
        if len(self.steps) and not len(self.trace.device):
            # Without a device nothing goes on after the last step, but the profiler that is stopped
            # inside an optimizer's step records this step until it has stopped.
            return int(self.steps.start[0]), int(self.steps.end[-1])
        if len(self.steps):
            start, end = min(start, int(self.steps.start[0])), max(end, int(self.steps.end[-1]))
        elif len(self.trace.ops):
            start = min(start, int(self.trace.ops.ts[0]))
            end = max(end, int(self.trace.ops.end.max()))
        return start, end

    def device_name(self, device: int) -> str:
        known = properties_of(self.trace, device) if device >= 0 else None
        return known.name if known is not None else ""

    def role(self, lane: int) -> Literal["", "main", "backward"]:
        if lane == self.links.main_lane:
            return "main"
        ops = self.trace.ops
        return "backward" if ((ops.lane == lane) & (ops.forward_thread > 0)).any() else ""

    def middle(self, rooms: Sequence[tuple[_Lane, int]]) -> tuple[int, int]:
        """Return the longest part around the middle of the trace of which every lane has room for
        all events: whole steps, where any are marked in it."""
        full = [(lane, room // 2) for lane, room in rooms if len(lane.start) > room]
        if not full:
            return self.start, self.end
        centre = int(np.median(max(full, key=lambda pair: len(pair[0].start))[0].start))
        ends = [np.sort(lane.start + lane.dur) for lane, _ in full]
        fits, too_long = 0, max(centre - self.start, self.end - centre)
        while too_long - fits > 1:
            reach = (fits + too_long) // 2
            counts = (
                np.searchsorted(lane.start, centre + reach)
                - np.searchsorted(end, centre - reach, side="right") - room
                for (lane, room), end in zip(full, ends, strict=True)
            )  # fmt: skip
            fits, too_long = (fits, reach) if max(counts) > 0 else (reach, too_long)
        low, high = centre - fits, centre + fits
        inside = (self.steps.start >= low) & (self.steps.end <= high)
        if inside.any():
            return int(self.steps.start[inside][0]), int(self.steps.end[inside][-1])
        return low, high

    # ------------------------------------------------------------------ lanes

    def _all_lanes(self) -> "list[_Lane]":
        steps = self.steps
        plain = [
            self._lane("steps", steps.start, steps.end - steps.start, np.arange(len(steps))),
            self._lane("phases", *self._phases()),
        ]
        for number, gaps in enumerate(self.gaps):
            lane = self._lane("idle", gaps.start, gaps.dur, np.arange(len(gaps.start)))
            plain.append(lane._replace(device=gaps.device, lane=number))
        streams = sorted(self._streams(), key=lambda lane: (lane.device, -int(lane.dur.sum())))
        threads = sorted(
            self._threads(),
            key=lambda lane: (lane.lane != self.links.main_lane, -int(lane.dur.sum())),
        )
        room = max(MAX_LANES_PER_RANK - len(plain) - len(threads[:4]), 1)
        return [*plain, *streams[:room], *threads, *streams[room:]]

    def _phases(self) -> tuple[Times, Times, Rows]:
        """Return start, length and number of each phase. Short pauses between two pieces of one
        phase are filled: the time between two operators belongs to their phase."""
        spans = phase_spans(self.trace, self.links).values()
        start, end = (np.concatenate([one[i] for one in spans]) for i in (0, 1))
        phase = np.repeat(np.arange(len(spans)), [len(one) for one in spans])
        order = np.argsort(start, kind="stable")
        start, end, phase = start[order], end[order], phase[order]
        opens = np.ones(len(start), bool)
        opens[1:] = (phase[1:] != phase[:-1]) | (start[1:] - end[:-1] > MAX_PHASE_PAUSE_NS)
        first = np.flatnonzero(opens)
        last = np.append(first[1:], len(start)) - 1 if len(first) else first
        start, end = np.maximum(start[first], self.start), np.minimum(end[last], self.end)
        return start, end - start, phase[first]

    def _lane(self, kind: LaneKind, start: Times, dur: Times, row: Rows) -> _Lane:
        keep = (dur > 0) & (start < self.end) & (start + dur > self.start)
        start, dur, row = start[keep], dur[keep], row[keep].astype(np.int64)
        return _Lane(kind, start, dur, _depth(start, dur), np.zeros(len(row), np.int64), row)

    def _streams(self) -> "list[_Lane]":
        device = self.trace.device
        pairs, number = distinct(device.device, device.stream)
        lanes = []
        for index, (which, stream) in enumerate(pairs.tolist()):
            rows = np.flatnonzero(number == index)
            lane = self._lane("device", device.ts[rows], device.dur[rows], rows)
            lanes.append(lane._replace(device=which, stream=stream))
        return lanes

    def _threads(self) -> "list[_Lane]":
        kept = {name: self._host_rows(name) for name in _TABLES}
        lanes = []
        for number in range(len(self.trace.lanes)):
            parts: list[tuple[Times, Times, Rows, Rows]] = []
            for code, name in enumerate(_TABLES):
                events: Events = getattr(self.trace, name)
                own = kept[name][events.lane[kept[name]] == number]
                parts.append((events.ts[own], events.dur[own], np.full(len(own), code), own))
            start, dur, table, row = map(np.concatenate, zip(*parts, strict=True))
            order = np.lexsort((table, -dur, start))
            start, dur, table, row = start[order], dur[order], table[order], row[order]
            depth = _depth(start, dur)
            shallow = depth < MAX_DEPTH
            if shallow.any():
                lanes.append(_Lane("host", start[shallow], dur[shallow], depth[shallow],
                                   table[shallow], row[shallow], lane=number))  # fmt: skip
        return lanes

    def _host_rows(self, name: str) -> Rows:
        """Return the rows of a table that are shown. Step marks have a lane of their own; of Python
        functions, the user's are shown, what these call directly, and modules."""
        events: Events = getattr(self.trace, name)
        keep = (events.dur > 0) & (events.ts < self.end) & (events.end > self.start)
        if name == "annotations":
            keep &= ~self.trace.names_where(events.name, lambda n: n.startswith("ProfilerStep"))
        elif name == "frames" and len(events):
            keep &= self._shown_frames()
        return np.flatnonzero(keep)

    def _shown_frames(self) -> NDArray[np.bool_]:
        names = self.trace.frames.name
        own = self.trace.names_where(names, is_own)
        if not own.any():
            own = self.trace.names_where(names, is_not_torch)
        above = self.links.frame_parent
        called = np.where(above >= 0, own[np.maximum(above, 0)], False)
        called &= ~self.trace.names_where(names, lambda n: _MODULE_CALL.search(n) is not None)
        module = self.trace.names_where(names, lambda n: n.startswith(FRAME))
        keep: NDArray[np.bool_] = own | called | module
        self.has_library_functions = not keep.all()
        return keep

    # ------------------------------------------------------------------ what events are

    def works(self, lane: _Lane, rows: Rows, known: dict[Work, int]) -> list[int]:
        """Return the work of each row as its index in `known`, to which new works are added."""
        if not len(rows):
            return []
        if lane.kind in ("steps", "phases"):
            made = self._marks(lane, rows)
            return [known.setdefault(work, len(known)) for work in made]
        columns = self._gap_columns(lane, rows) if lane.kind == "idle" else (
            self._device_columns(lane, rows) if lane.kind == "device"
            else self._host_columns(lane, rows)
        )  # fmt: skip
        pairs, number = distinct(*columns)
        tell = {"idle": self._gap, "device": self._device_work, "host": self._host_work}[lane.kind]
        index = np.array(
            [known.setdefault(work, len(known)) for work in map(tell, pairs.tolist())], np.int64
        )
        return [int(one) for one in index[number]]

    def _marks(self, lane: _Lane, rows: Rows) -> "list[Work]":
        if lane.kind == "phases":
            names = list(phase_spans(self.trace, self.links))
            return [Work(name=names[i], kind=names[i]) for i in lane.row[rows].tolist()]
        numbers = self._step_numbers[lane.row[rows]].tolist()
        return [Work(name=str(number), kind="step") for number in numbers]

    def _gap_columns(self, lane: _Lane, rows: Rows) -> tuple[Rows, ...]:
        gaps = self.gaps[lane.lane]
        if lane.lane not in self._moments:
            self._moments[lane.lane] = GapMoments(self.trace, self.links, gaps)
        moments, row = self._moments[lane.lane], lane.row[rows]
        names = self.trace.device.name.astype(np.int64)
        before, after = gaps.previous_op[row], gaps.next_op[row]
        return (
            moments.dominant[row], moments.place[row], moments.host[row],
            np.where(before >= 0, at_rows(names, before), -1),
            np.where(after >= 0, at_rows(names, after), -1),
        )  # fmt: skip

    def _gap(self, codes: list[int]) -> Work:
        cause, place, host, before, after = codes
        return Work(
            name=CAUSES[cause], kind=CAUSES[cause], place=self._place(place),
            host=self._text(host), before=self._text(before), after=self._text(after),
        )  # fmt: skip

    def _device_columns(self, lane: _Lane, rows: Rows) -> tuple[Rows, ...]:
        device, links = self.trace.device, self.links
        row = lane.row[rows]
        moment, thread = launched(self.trace, links)
        op = links.device_op[row]
        place, stack = self._where(thread[row], moment[row], self._op_info(op))
        return (
            device.name[row].astype(np.int64), device.kind[row].astype(np.int64),
            self._ops(op, "name"), self._ops(op, "shape"),
            self._modules[1][row] if self._modules is not None else _unknown(row), place, stack,
        )  # fmt: skip

    def launched_before(self, lane: _Lane, rows: Rows) -> tuple[int, ...]:
        """Return how long before its start each operation of a device was asked for."""
        if lane.kind != "device":
            return ()
        moment, thread = launched(self.trace, self.links)
        row = lane.row[rows]
        known = (thread[row] >= 0) & (moment[row] <= lane.start[rows])
        return tuple(np.where(known, lane.start[rows] - moment[row], -1).tolist())

    def _device_work(self, codes: list[int]) -> Work:
        name, sort, op, shape, module, place, stack = codes
        text, operator = self.trace.text(name), self.trace.text(op)
        kind = {Kind.MEMCPY: "transfer", Kind.MEMSET: "copy"}.get(Kind(sort))
        return Work(
            name=self._cut(text), kind=kind or category_of(text, operator),
            place=self._place(place), operator=self._cut(operator), module=self._module(module),
            shape=self._shape(shape), stack=self._stack(stack),
        )  # fmt: skip

    def _host_columns(self, lane: _Lane, rows: Rows) -> tuple[Rows, ...]:
        table, row, start = lane.table[rows], lane.row[rows], lane.start[rows]
        name, op, module = _unknown(row), _unknown(row), _unknown(row)
        for number, of in enumerate(_TABLES):
            events: Events = getattr(self.trace, of)
            own = np.flatnonzero(table == number)
            name[own] = events.name[row[own]]
        calls, ops = np.flatnonzero(table == 3), np.flatnonzero(table == 2)
        op[calls] = self.links.call_op[row[calls]]
        shape_of = op.copy()
        shape_of[ops] = row[ops]
        if self._modules is not None:
            module[shape_of >= 0] = self._modules[0][shape_of[shape_of >= 0]]
        place, stack = self._where(np.full(len(row), lane.lane), start, self._op_info(shape_of))
        return (
            name, table, phase_codes(self.trace, self.links, start), self._ops(op, "name"),
            self._ops(shape_of, "shape"), module, place, stack,
        )  # fmt: skip

    def _host_work(self, codes: list[int]) -> Work:
        name, table, phase, op, shape, module, place, stack = codes
        text = self.trace.text(name)
        return Work(
            name=self._cut(self._short(text)), kind=self._host_kind(text, _TABLES[table], phase),
            place=self._place(place), operator=self._cut(self.trace.text(op)),
            module=self._module(module), shape=self._shape(shape), stack=self._stack(stack),
        )  # fmt: skip

    def _host_kind(self, name: str, table: str, phase: int) -> str:
        if _COLLECTIVE.search(name):
            return "communication"
        if table == "calls":
            for kind, test in _CALL_KINDS:
                if test(name):
                    return kind
            return "runtime"
        return CODED_PHASES[phase]

    # ------------------------------------------------------------------ texts

    def _where(self, lanes: Rows, times: Times, info: Rows) -> tuple[Rows, Rows]:
        """Return the codes of the places of moments, and of their stacks: a row of `Trace.frames`,
        or below -1 the recorded stack of an operator, by its info."""
        place = self._places.at_or_main(lanes, times)
        stack = np.where(info >= 0, -2 - info, -1)
        if len(self.trace.frames):
            main = self.links.main_lane
            for lane in np.unique(lanes).tolist():
                rows = np.flatnonzero(lanes == lane)
                stack[rows] = self._places.calls_at(lane, times[rows])[0]
            away = np.flatnonzero((stack == -1) & (lanes != main))
            stack[away] = self._places.calls_at(main, times[away])[0]
            # calls from the same line have the same stack
            stack = self._numbered_stacks(stack)
        place = np.where(lanes < 0, -1, place)
        return place, stack

    def _numbered_stacks(self, rows: Rows) -> Rows:
        """Return each stack by one row that has the same functions."""
        found, number = np.unique(rows, return_inverse=True)
        first: dict[tuple[str, ...], int] = {}
        return np.array([first.setdefault(self._stack(row), row) for row in found.tolist()],
                        np.int64)[number]  # fmt: skip

    def _stack(self, code: int) -> tuple[str, ...]:
        """Return the callers of a function of the user's, or a recorded stack."""
        if code == -1:
            return ()
        if code not in self._stacks:
            self._stacks[code] = self._callers(code) if code >= 0 else self._recorded(-2 - code)
        return self._stacks[code]

    def _callers(self, row: int) -> tuple[str, ...]:
        above = self._places.caller_of(row)
        if above < 0:
            return ()
        name = self._frame(self.trace.text(int(self.trace.frames.name[above])))
        return (name, *self._stack(above))[:MAX_STACK]

    def _recorded(self, info: int) -> tuple[str, ...]:
        stack = self.trace.info(info).get("Call stack")
        own = [f for f in stack.split(";") if is_own(f)] if isinstance(stack, str) else []
        return tuple(self._frame(frame) for frame in own[1 : MAX_STACK + 1])

    def _short(self, text: str) -> str:
        """Return a Python function by its name, and a library's with its file. Others stay."""
        if text.startswith(FRAME):
            return text.removeprefix(FRAME)
        if text.startswith("<built-in "):
            return f"{short_name(text)}()"
        place = place_of(text)
        if place is None:
            return text
        return f"{place.function}()" if is_own(text) else f"{place.function}() {place.file}"

    def _frame(self, text: str) -> str:
        if text not in self._names:
            file, _, rest = text.partition("(")
            whole = f"{self._shown(file)}({rest}" if rest else text
            self._names[text] = _shortened(whole, MAX_FRAME_LENGTH)
        return self._names[text]

    def _place(self, code: int) -> Place | None:
        place = self._places.place(code)
        if place is None:
            return None
        return Place(file=self._shown(place.file), line=place.line, function=place.function)

    def _shape(self, code: int) -> str:
        dims = self.trace.shape(code).dims
        given = [str(one).replace(" ", "") for one in dims if one not in ([], "", None)]
        return _shortened(" ".join(given), MAX_SHAPE_LENGTH)

    def _module(self, number: int) -> str:
        if number < 0 or self._tree is None:
            return ""
        return self._cut(" / ".join(path_of(self._tree, number)))

    def _text(self, code: int) -> str:
        return self._cut(self.trace.text(code)) if code >= 0 else ""

    def _cut(self, text: str) -> str:
        return _shortened(text, MAX_NAME_LENGTH)

    def _ops(self, rows: Rows, column: str) -> Rows:
        values: Rows = getattr(self.trace.ops, column).astype(np.int64)
        return np.where(rows >= 0, at_rows(values, rows), -1)

    def _op_info(self, rows: Rows) -> Rows:
        return _unknown(rows) if len(self.trace.frames) else self._ops(rows, "info")

    @property
    def _places(self) -> Places:
        return user_places(self.trace, self.links)

    @property
    def _tree(self) -> Modules | None:
        return module_paths(self.trace, self.links, self.window)

    @property
    def _modules(self) -> tuple[Rows, Rows] | None:
        """Return the modules of operators and of device operations."""
        tree = self._tree
        return None if tree is None else modules_of_work(self.trace, self.links, tree)


_CALL_KINDS: tuple[tuple[str, Callable[[str], bool]], ...] = (
    ("synchronisation", is_sync_call),
    ("transfer", is_copy_call),
    ("allocator", is_allocator_call),
    ("launch", lambda name: _LAUNCH.search(name) is not None),
)


def _depth(start: Times, dur: Times) -> Rows:
    """Return how many rows enclose each row. Rows are ordered by start, the longer first."""
    ended = np.searchsorted(np.sort(start + dur), start, side="right")
    depth: Rows = np.arange(len(start)) - ended
    return depth


def _unknown(rows: Rows) -> Rows:
    return np.full(len(rows), -1, np.int64)


def _shortened(text: str, limit: int) -> str:
    """Return the text, cut in the middle: both ends of a kernel's name tell what it is."""
    if len(text) <= limit:
        return text
    tail = (limit - 1) // 2
    return f"{text[: limit - 1 - tail]}…{text[len(text) - tail :]}"
