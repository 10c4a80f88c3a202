"""The memory of the traced steps: what is allocated at the peak by kind and by line, the levels
over the steps, and what each line allocates and gives back.

What a block is for follows from when it is allocated and how long it lives. A block of the forward
that is still there when the backward begins is an activation. A block of the backward that outlives
it is a gradient. What the models and optimizers hold is known by address, before the first traced
step and after the last. On a CPU the allocator does not report the release of blocks that are older
than the recording. So memory that other objects held before it is not in these figures.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ridgeline.records.facts import Place
from ridgeline.records.memory import (
    DeviceMemory,
    Growth,
    LevelsOverTime,
    LineMemory,
    MemoryKind,
    MemoryStudy,
    Owner,
    Peak,
)
from ridgeline.records.step_memory import PHASES, LineRange, Stock, TracedAllocations

MAX_OWNERS = 40
MAX_LINES = 60
MAX_GROWTHS = 10
MAX_LEVELS = 600
"""Moments of a level that are kept: two for each pixel of a narrow page."""
MIN_GROWTH_STEPS = 2
"""A block counts as left behind once it has outlived this many ends of steps. The variables of a
loop outlive one: they are overwritten in the next step."""
_OTHER, _INPUT, _FORWARD, _BACKWARD, _OPTIMIZER, _ZERO_GRAD = range(len(PHASES))
_KINDS = tuple(MemoryKind)
_NUMBER = {kind: number for number, kind in enumerate(_KINDS)}
_NEVER = np.iinfo(np.int64).max

Numbers = NDArray[np.int64]
Resolve = Callable[[LineRange], Place | None]


def known_place(line: LineRange) -> Place | None:
    """Return the place at the beginning of a range of lines."""
    return Place(line.file, line.line, line.function)


def study_traced_steps(
    found: TracedAllocations, source: str, *, first_step: int = 0, resolve: Resolve = known_place
) -> MemoryStudy:
    """Return the study of the traced steps. `first_step` is the number of the first of them.
    `resolve` names the line within a range of lines."""
    places = [resolve(line) for line in found.places]
    devices = [
        _Device(found, code, name, first_step, places).memory()
        for code, name in enumerate(found.devices)
    ]
    devices.sort(key=lambda device: (device.device == "cpu", -device.peak.bytes))
    return MemoryStudy(
        source=source,
        origin="trace",
        devices=tuple(devices),
        has_stacks=bool(found.places),
        steps=_steps(found),
    )


def _steps(found: TracedAllocations) -> int:
    """Return how many steps were traced as a whole. The profiler marks one more as it stops, with
    nothing in it."""
    last = found.at_ns[-1] if found.at_ns else 0
    return max(sum(start <= last for start in found.step_starts_ns), 1)


class _Device:
    """The blocks of one device."""

    def __init__(
        self,
        found: TracedAllocations,
        code: int,
        name: str,
        first_step: int,
        places: Sequence[Place | None],
    ) -> None:
        self._found = found
        self._name = name
        self._first_step = first_step
        self._places = places
        rows = np.flatnonzero(np.array(found.device, np.int64) == code)

        def column(values: Sequence[int]) -> Numbers:
            return np.array(values, np.int64)[rows]

        self._at, self._address = column(found.at_ns), column(found.address)
        self._bytes, self._allocated = column(found.bytes), column(found.allocated)
        self._module, self._operator = column(found.module), column(found.operator)
        self._phase = self._phases(column(found.phase))
        self._place = self._lines(column(found.place))
        starts = [start for start in found.step_starts_ns if start <= found.at_ns[-1]]
        self._starts = np.array(starts or [found.at_ns[0]], np.int64)
        self._steps = len(self._starts)

    def memory(self) -> DeviceMemory:
        lines = self._line_memory()
        return DeviceMemory(
            device=self._name,
            peak=self._peak(),
            levels=self._levels(),
            lines=tuple(lines[:MAX_LINES]),
            lines_left_out=max(len(lines) - MAX_LINES, 0),
            growth=tuple(self._growth()[:MAX_GROWTHS]),
            events=len(self._at),
            end_bytes=int(self._total[-1]) if len(self._total) else 0,
        )

    def _phases(self, phase: Numbers) -> Numbers:
        """Return the phase of each event. Marks such as those of an optimizer's step are known by
        their time alone."""
        unknown = np.flatnonzero(phase == _OTHER)
        for span in self._found.spans:
            inside = (self._at[unknown] >= span.start_ns) & (self._at[unknown] < span.end_ns)
            phase[unknown[inside]] = span.phase
        return phase

    def _lines(self, place: Numbers) -> Numbers:
        """Return the code of the line of each event. The thread of a GPU's backward has no Python:
        the main thread's line at that moment, which called the backward, stands in."""
        unknown = np.flatnonzero(place < 0)
        for span in self._found.spans:
            inside = (self._at[unknown] >= span.start_ns) & (self._at[unknown] < span.end_ns)
            place[unknown[inside]] = span.place
        return place

    def _spans(self, phase: int) -> tuple[Numbers, Numbers]:
        """Return the starts and the ends of the times in one phase, in order."""
        spans = [span for span in self._found.spans if span.phase == phase]
        starts = np.array([span.start_ns for span in spans], np.int64)
        return starts, np.maximum.accumulate(np.array([span.end_ns for span in spans], np.int64))

    # ------------------------------------------------------------ blocks

    @cached_property
    def _pairs(self) -> tuple[Numbers, Numbers]:
        """For each block the row that allocates it, and the row that releases it or -1."""
        made: list[int] = []
        released: list[int] = []
        live: dict[int, int] = {}
        for row, (address, size) in enumerate(
            zip(self._address.tolist(), self._bytes.tolist(), strict=True)
        ):
            if size > 0:
                live[address] = len(made)
                made.append(row)
                released.append(-1)
            elif size < 0 and address in live:
                released[live.pop(address)] = row
        return np.array(made, np.int64), np.array(released, np.int64)

    @cached_property
    def _made(self) -> Numbers:
        return self._pairs[0]

    @cached_property
    def _released_ns(self) -> Numbers:
        """When each block was released; `_NEVER` if it still lives at the end."""
        released = self._pairs[1]
        return np.where(released >= 0, self._at[np.maximum(released, 0)], _NEVER)

    @cached_property
    def _block_step(self) -> Numbers:
        return self._step_of(self._at[self._made])

    def _step_of(self, moments: Numbers) -> Numbers:
        """Return the index of the traced step at each moment."""
        return np.maximum(np.searchsorted(self._starts, moments, side="right") - 1, 0)

    @cached_property
    def _step_ends(self) -> Numbers:
        return np.append(self._starts[1:], max(self._found.ends_ns, int(self._at[-1]) + 1))

    @cached_property
    def _kind(self) -> Numbers:
        """The number of the kind of each block."""
        made, made_ns, gone_ns = self._made, self._at[self._made], self._released_ns
        phase, step = self._phase[made], self._block_step
        step_end = self._step_ends[step]
        kind = np.full(len(made), _NUMBER[MemoryKind.TEMPORARY], np.int64)

        backward_starts, _ = self._spans(_BACKWARD)
        backward = _next(backward_starts, made_ns)
        trained = backward < step_end
        forward_starts, forward_ends = self._spans(_FORWARD)
        forward_end = _covering_end(forward_starts, forward_ends, made_ns)
        until = np.where(trained, backward, np.minimum(forward_end, step_end))
        in_forward = (phase == _FORWARD) | (phase == _OTHER)
        before_forward = (phase == _OTHER) & (_next(forward_starts, made_ns) < step_end)
        before_forward &= ~_any_between(forward_starts, self._starts[step], made_ns)
        stays = gone_ns > until
        kind[in_forward & stays & trained] = _NUMBER[MemoryKind.ACTIVATION]
        kind[(phase == _FORWARD) & stays & ~trained] = _NUMBER[MemoryKind.ACTIVATION]
        kind[(phase == _OTHER) & ~trained & (gone_ns > step_end)] = _NUMBER[MemoryKind.UNKNOWN]
        needed = gone_ns > _next(forward_starts, made_ns)
        kind[before_forward & needed] = _NUMBER[MemoryKind.INPUT]
        kind[(phase == _INPUT) & (gone_ns > made_ns)] = _NUMBER[MemoryKind.INPUT]

        for of_phase, outlives in (
            (_BACKWARD, MemoryKind.GRADIENT), (_OPTIMIZER, MemoryKind.OPTIMIZER_STATE),
        ):  # fmt: skip
            starts, ends = self._spans(of_phase)
            end = _covering_end(starts, ends, made_ns)
            kind[(phase == of_phase) & (gone_ns > end)] = _NUMBER[outlives]

        end_of_trace = gone_ns == _NEVER
        old = end_of_trace & (self._steps - 1 - step >= MIN_GROWTH_STEPS)
        settled = kind == _NUMBER[MemoryKind.GRADIENT]
        settled |= kind == _NUMBER[MemoryKind.OPTIMIZER_STATE]
        kind[old & settled] = _NUMBER[MemoryKind.UNKNOWN]  # unless it is known by its address
        # A tensor that a line made before a forward and keeps for ever was no input of it.
        kept_by = set(self._place[made[old]].tolist())
        kept = np.isin(self._place[made], list(kept_by))
        kind[kept & (kind == _NUMBER[MemoryKind.INPUT])] = _NUMBER[MemoryKind.UNKNOWN]
        held = {a: stock.kind for stock in self._stock(self._found.after) for a in stock.addresses}
        for block in np.flatnonzero(end_of_trace).tolist():
            known = held.get(int(self._address[made[block]]))
            if known is not None:
                kind[block] = _NUMBER[known]
        return kind

    def _stock(self, every: Sequence[Stock]) -> list[Stock]:
        return [stock for stock in every if stock.device == self._name]

    # ------------------------------------------------------------ levels

    @cached_property
    def _before(self) -> dict[MemoryKind, int]:
        """Return the bytes before the first event, by kind. A GPU's allocator tells the sum, and a
        CPU's does not."""
        held = {stock.kind: stock.bytes for stock in self._stock(self._found.before)}
        if self._name != "cpu" and len(self._at):
            first = int(self._allocated[0] - self._bytes[0])
            unknown = first - sum(held.values())
            if unknown > 0:
                held[MemoryKind.UNKNOWN] = unknown
        return held

    @cached_property
    def _changes(self) -> tuple[Numbers, Numbers, Numbers]:
        """The moment, the kind and the bytes of each change of the level, in order of time."""
        made, released = self._pairs
        gone = np.flatnonzero(released >= 0)
        rows = np.concatenate([made, released[gone]])
        kinds = np.concatenate([self._kind, self._kind[gone]])
        sizes = np.concatenate([self._bytes[made], -self._bytes[made[gone]]])
        at = self._at[rows]
        old = self._releases_of_old_blocks()
        if old:
            at = np.concatenate([at, [moment for moment, _, _ in old]])
            kinds = np.concatenate([kinds, [_NUMBER[kind] for _, kind, _ in old]])
            sizes = np.concatenate([sizes, [-size for _, _, size in old]])
            rows = np.concatenate([rows, np.full(len(old), -1)])
        order = np.lexsort((rows, at))
        return at[order], kinds[order], sizes[order]

    def _releases_of_old_blocks(self) -> list[tuple[int, MemoryKind, int]]:
        """Return the releases of blocks that are older than the recording. A CPU does not report
        them: its gradients are taken to go when they are cleared, if they are made anew."""
        stocks = self._stock(self._found.before)
        if self._name == "cpu":
            return self._old_gradients(stocks)
        held = {address: stock.kind for stock in stocks for address in stock.addresses}
        _, released = self._pairs
        matched = set(released.tolist())
        releases = []
        for row in np.flatnonzero(self._bytes < 0).tolist():
            if row not in matched:
                kind = held.get(int(self._address[row]), MemoryKind.UNKNOWN)
                releases.append((int(self._at[row]), kind, -int(self._bytes[row])))
        return releases

    def _old_gradients(self, stocks: Sequence[Stock]) -> list[tuple[int, MemoryKind, int]]:
        before = next((s for s in stocks if s.kind is MemoryKind.GRADIENT), None)
        if before is None or not before.bytes:
            return []
        after = {
            address
            for stock in self._stock(self._found.after)
            if stock.kind is MemoryKind.GRADIENT
            for address in stock.addresses
        }
        made_anew = set(self._address[self._made].tolist())
        kept = [a for a in before.addresses if a in after and a not in made_anew]
        if len(kept) == len(before.addresses):
            return []
        cleared = [span.start_ns for span in self._found.spans if span.phase == _ZERO_GRAD]
        cleared = cleared or [s.start_ns for s in self._found.spans if s.phase == _BACKWARD]
        gone = before.bytes * (1 - len(kept) / max(len(before.addresses), 1))
        return [(cleared[0], MemoryKind.GRADIENT, int(gone))] if cleared else []

    @cached_property
    def _by_kind(self) -> Numbers:
        """The level of each kind after each change: a row for each kind."""
        at, kinds, sizes = self._changes
        levels = np.zeros((len(_KINDS), len(at)), np.int64)
        levels[kinds, np.arange(len(at))] = sizes
        levels = np.cumsum(levels, axis=1)
        for kind, size in self._before.items():
            levels[_NUMBER[kind]] += size
        return levels

    @cached_property
    def _total(self) -> Numbers:
        return np.asarray(self._by_kind.sum(axis=0), np.int64)

    def _levels(self) -> LevelsOverTime:
        at, _, _ = self._changes
        rows = _kept_rows(at, self._total, MAX_LEVELS)
        begin = int(self._starts[0])
        return LevelsOverTime(
            at_ns=tuple((at[rows] - begin).tolist()),
            levels={
                kind: tuple(self._by_kind[number, rows].tolist())
                for number, kind in enumerate(_KINDS)
                if self._by_kind[number].any()
            },
            step_starts_ns=tuple((self._starts - begin).tolist()),
            left_out=len(at) - len(rows),
        )

    # ------------------------------------------------------------ the peak, lines, growth

    def _peak(self) -> Peak:
        at, _, _ = self._changes
        if not len(at):
            return Peak(bytes=sum(self._before.values()), at_ns=0, by_kind=self._before)
        top = int(self._total.argmax())
        moment = int(at[top])
        live = np.flatnonzero((self._at[self._made] <= moment) & (self._released_ns > moment))
        owners, modules = self._owners(live)
        by_kind = {
            kind: int(self._by_kind[number, top])
            for number, kind in enumerate(_KINDS)
            if self._by_kind[number, top] > 0
        }
        owned: dict[MemoryKind, int] = defaultdict(int)
        for owner in owners:
            owned[owner.kind] += owner.bytes
        tensors = {stock.kind: stock.tensors for stock in self._stock(self._found.before)}
        old = [
            Owner(place=None, kind=kind, bytes=size - owned[kind], blocks=tensors.get(kind, 0))
            for kind, size in by_kind.items()
            if size > owned[kind]
        ]
        owners = sorted([*owners, *old], key=lambda owner: -owner.bytes)
        row = int(np.searchsorted(self._at, moment, side="right")) - 1
        return Peak(
            bytes=int(self._total[top]),
            at_ns=moment - int(self._starts[0]),
            step=self._first_step + int(self._step_of(at[top : top + 1])[0]),
            phase=PHASES[int(self._phase[max(row, 0)])],
            by_kind=by_kind,
            owners=tuple(owners[:MAX_OWNERS]),
            owners_left_out=max(len(owners) - MAX_OWNERS, 0),
            by_module=modules,
            before_recording_bytes=sum(owner.bytes for owner in old),
        )

    def _owners(self, blocks: Numbers) -> tuple[list[Owner], dict[str, int]]:
        """Return the owners of some blocks by line and kind, and their bytes by module."""
        sums: dict[tuple[int, int], list[int]] = {}
        by_module: dict[str, int] = defaultdict(int)
        module_of: dict[tuple[int, int], dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for block in blocks.tolist():
            row = int(self._made[block])
            key, size = (int(self._place[row]), int(self._kind[block])), int(self._bytes[row])
            total = sums.setdefault(key, [0, 0])
            total[0] += size
            total[1] += 1
            module = int(self._module[row])
            module_of[key][module] += size
            if module >= 0:
                by_module[self._found.modules[module]] += size
        owners = []
        for (place, kind), (size, count) in sums.items():
            modules = module_of[place, kind]
            module = max(modules, key=lambda code: modules[code])
            owners.append(
                Owner(
                    place=self._place_of(place), kind=_KINDS[kind], bytes=size, blocks=count,
                    module=self._found.modules[module] if module >= 0 else "",
                )
            )  # fmt: skip
        return owners, dict(sorted(by_module.items(), key=lambda item: -item[1])[:MAX_OWNERS])

    def _place_of(self, code: int) -> Place | None:
        return self._places[code] if code >= 0 else None

    def _line_memory(self) -> list[LineMemory]:
        """Return what each line does with memory in a step. Ranges of lines that resolve to the
        same line are one."""
        resolved: dict[Place | None, int] = {}
        code = {
            number: resolved.setdefault(self._place_of(number), len(resolved))
            for number in (-1, *range(len(self._places)))
        }
        line = np.array([code[number] for number in self._place.tolist()], np.int64)
        made, released = self._pairs
        # The first step gives back blocks that are older than the recording, unseen on a CPU.
        counts = self._step_of(self._at) >= min(self._steps - 1, 1)
        steps = max(self._steps - 1, 1)
        lines = []
        for place, number in resolved.items():
            mine = np.flatnonzero(line[made] == number)
            running = (line == number) & counts
            given_back = -int(self._bytes[running & (self._bytes < 0)].sum())
            counted = made[mine][counts[made[mine]]]
            allocated = int(self._bytes[counted].sum())
            if not len(mine) and not given_back:
                continue
            kinds = np.bincount(
                self._kind[mine], weights=self._bytes[made[mine]], minlength=len(_KINDS)
            )
            gone = mine[released[mine] >= 0]
            at = np.concatenate([made[mine], released[gone]])
            sizes = np.concatenate([self._bytes[made[mine]], -self._bytes[made[gone]]])
            level = np.cumsum(sizes[np.argsort(at, kind="stable")])
            lines.append(
                LineMemory(
                    place=place,
                    allocated_bytes=allocated / steps,
                    released_bytes=given_back / steps,
                    high_water_bytes=int(level.max(initial=0)),
                    largest_bytes=int(self._bytes[made[mine]].max(initial=0)),
                    blocks=len(counted) / steps,
                    kind=_KINDS[int(kinds.argmax())] if len(mine) else MemoryKind.TEMPORARY,
                )
            )
        return sorted(lines, key=lambda one: -one.allocated_bytes)

    def _growth(self) -> list[Growth]:
        """Return the lines that leave blocks behind in every step that is old enough to tell."""
        steps = self._steps - MIN_GROWTH_STEPS
        if steps < 1:
            return []
        held = {a for stock in self._stock(self._found.after) for a in stock.addresses}
        left = np.flatnonzero((self._released_ns == _NEVER) & (self._block_step < steps))
        groups: dict[tuple[int, int], list[int]] = defaultdict(list)
        for block in left.tolist():
            row = int(self._made[block])
            if int(self._address[row]) not in held:
                groups[int(self._place[row]), int(self._kind[block])].append(block)
        grown = []
        for (place, kind), blocks in groups.items():
            if len(set(self._block_step[blocks].tolist())) < steps:
                continue
            size = int(self._bytes[self._made[blocks]].sum())
            grown.append(
                Growth(
                    place=self._place_of(place), kind=_KINDS[kind], bytes_per_step=size / steps,
                    blocks_per_step=len(blocks) / steps, steps=steps,
                )
            )  # fmt: skip
        return sorted(grown, key=lambda one: -one.bytes_per_step)


def _next(starts: Numbers, moments: Numbers) -> Numbers:
    """Return the first start at or after each moment; `_NEVER` if there is none."""
    return np.append(starts, _NEVER)[np.searchsorted(starts, moments, side="left")]


def _covering_end(starts: Numbers, ends: Numbers, moments: Numbers) -> Numbers:
    """Return the end of the last span that began before each moment; the moment itself if there is
    none."""
    if not len(starts):
        return moments
    before = np.searchsorted(starts, moments, side="right") - 1
    return np.where(before >= 0, np.maximum(ends[np.maximum(before, 0)], moments), moments)


def _any_between(starts: Numbers, first: Numbers, last: Numbers) -> NDArray[np.bool_]:
    """Return whether a span begins between two moments."""
    low, high = np.searchsorted(starts, first), np.searchsorted(starts, last)
    return np.asarray(high > low, bool)


def _kept_rows(at: Numbers, level: Numbers, most: int) -> Numbers:
    """Return at most so many rows: both ends, and the lowest and the highest of each of equally
    long stretches of time."""
    if len(at) <= most:
        return np.arange(len(at))
    stretches = (most - 2) // 2
    part = (at - at[0]) / max(int(at[-1] - at[0]), 1)
    stretch = np.minimum((part * stretches).astype(np.int64), stretches - 1)
    order = np.lexsort((level, stretch))
    cuts = np.flatnonzero(np.diff(stretch[order])) + 1
    lowest = order[np.append(0, cuts)]
    highest = order[np.append(cuts, len(order)) - 1]
    return np.unique(np.concatenate([lowest, highest, [0, len(at) - 1, int(level.argmax())]]))
