"""Studies a snapshot of the CUDA allocator: the peak and its owners, growth, fragmentation, and
what would have helped."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ridgeline.errors import UsageError
from ridgeline.memory.advice import advice
from ridgeline.memory.call_sites import CallSites, Part
from ridgeline.memory.fragmentation import fragmentation, largest_free
from ridgeline.memory.growth import growth
from ridgeline.memory.kinds import KINDS, BlockKinds
from ridgeline.memory.snapshot import Ints, Snapshot, read_snapshot
from ridgeline.memory.timeline import BEFORE, Timeline
from ridgeline.memory.training_steps import TrainingSteps
from ridgeline.records.facts import Place, Reason, because
from ridgeline.records.memory import (
    DeviceMemory,
    LevelsOverTime,
    MemoryKind,
    MemoryNote,
    MemoryStudy,
    Owner,
    Peak,
    Shortage,
    StackMemory,
)

MAX_OWNERS = 1000
MAX_MODULES = 200
MAX_MOMENTS = 2000
"""Moments of the curve: twice the width of a screen."""
MAX_STACK_NODES = 4000
MAX_STACK_DEPTH = 100
MIN_STACK_SHARE = 1e-4
"""A frame that holds a smaller share of the peak is not drawn by itself."""
MAX_SHORTAGES = 20
MIN_LOST_SHARE = 0.05
MAX_END_DIFFERENCE = 0.01
"""The replayed events and the segments may differ by this share at the end: they are not recorded
in the same instant."""


def study_snapshot(
    path: Path,
    *,
    device: int | None = None,
    max_bytes: int | None = None,
    total_bytes: int = 0,
    outside_bytes: int | None = None,
) -> MemoryStudy:
    """Read a snapshot and study it, or one device of it.

    A snapshot does not say how large its device is, nor what else was in use there: where the
    caller knows, `total_bytes` and `outside_bytes` say it of the device that ran out of memory, or
    of the only one. `max_bytes` limits the unpacked size of the file. Raise RidgelineError if the
    file cannot be read.
    """
    snapshot = read_snapshot(path, max_bytes=max_bytes)
    devices = snapshot.devices
    if device is not None and device not in devices:
        known = ", ".join(map(str, devices)) or "none"
        raise UsageError(
            f"{path}: nothing was recorded of device {device}", f"the devices in it: {known}"
        )
    sites = CallSites(snapshot.stacks)
    studied = [
        DeviceStudy(
            snapshot,
            number,
            sites,
            total_bytes,
            outside_bytes,
            is_only=len(devices) == 1,
        )
        for number in ([device] if device is not None else devices)
    ]
    notes = [because(MemoryNote.DAMAGED, count=snapshot.damaged)] if snapshot.damaged else []
    if snapshot.devices and not snapshot.has_stacks:
        notes.append(because(MemoryNote.NO_STACKS))
    if snapshot.devices and not snapshot.has_history:
        notes.append(because(MemoryNote.NO_HISTORY))
    return MemoryStudy(
        source=str(path),
        origin="snapshot",
        devices=tuple(sorted((s.result() for s in studied), key=lambda d: -d.peak.bytes)),
        has_stacks=snapshot.has_stacks,
        has_history=snapshot.has_history,
        steps=max((s.steps.count for s in studied), default=0),
        notes=tuple(notes),
    )


class DeviceStudy:
    """The study of one device."""

    def __init__(
        self,
        snapshot: Snapshot,
        device: int,
        sites: CallSites,
        total_bytes: int,
        outside_bytes: int | None,
        *,
        is_only: bool,
    ) -> None:
        self.snapshot = snapshot
        self.device = device
        self.sites = sites
        self.timeline = Timeline(snapshot, device)
        is_meant = is_only or len(self.timeline.shortages) > 0
        self.total_bytes = total_bytes if is_meant else 0
        self.outside_bytes = outside_bytes if is_meant else None
        self.steps = TrainingSteps(self.timeline, sites)
        self.kinds = BlockKinds(self.steps)

    def result(self) -> DeviceMemory:
        timeline = self.timeline
        live = timeline.blocks.live_at(timeline.peak)
        grown = growth(self.kinds)
        filled = fragmentation(self.snapshot, timeline, self.sites)
        shortages = tuple(self._shortages())
        return DeviceMemory(
            device=f"cuda:{self.device}",
            peak=self._peak(live),
            levels=self._levels(),
            growth=grown,
            fragmentation=filled,
            shortages=shortages,
            advice=advice(self.kinds, live, grown, filled, shortages, self.outside_bytes),
            has_times=timeline.has_times or not len(timeline),
            events=len(timeline),
            events_lost=self._lost_bytes > 0,
            end_bytes=timeline.bytes_at(len(timeline) - 1),
            outside_torch_bytes=self.outside_bytes,
            notes=tuple(self._notes()),
        )

    # ------------------------------------------------------------------- the peak

    def _peak(self, live: Ints) -> Peak:
        timeline, blocks = self.timeline, self.timeline.blocks
        moment = timeline.peak
        owners = self._owners(live)
        step = int(self.steps.step_of(np.array([moment]))[0]) if self.steps.count else -1
        unknown = blocks.size[live][(blocks.start[live] < 0) & (blocks.stack[live] < 0)]
        return Peak(
            bytes=timeline.bytes_at(moment),
            at_ns=timeline.time_of(moment),
            reserved_bytes=timeline.reserved_at(moment),
            step=step if step >= 0 else None,
            phase=self.steps.phase(moment),
            by_kind=self.kinds.totals(live),
            owners=tuple(owners[:MAX_OWNERS]),
            owners_left_out=len(owners[MAX_OWNERS:]),
            by_module=self._by_module(live),
            stacks=self._tree(live),
            before_recording_bytes=int(unknown.sum()),
        )

    def _by_stack(self, live: Ints, keys: Ints) -> list[tuple[int, int, int]]:
        """Return (key, bytes, blocks) for each different key of the live blocks."""
        values, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        sums = np.zeros(len(values), np.int64)
        np.add.at(sums, inverse, self.timeline.blocks.size[live])
        return list(zip(values.tolist(), sums.tolist(), counts.tolist(), strict=True))

    def _owners(self, live: Ints) -> list[Owner]:
        keys = self.timeline.blocks.stack[live] * len(KINDS) + self.kinds.codes[live]
        sums: dict[tuple[Place | None, MemoryKind], list[int]] = defaultdict(lambda: [0, 0])
        largest: dict[tuple[Place | None, MemoryKind], tuple[int, int]] = {}
        for key, size, count in self._by_stack(live, keys):
            stack, kind = key // len(KINDS), KINDS[key % len(KINDS)]
            owner = (self.sites.place(stack), kind)
            sums[owner][0] += size
            sums[owner][1] += count
            largest[owner] = max(largest.get(owner, (0, -1)), (size, stack))
        owners = [
            Owner(
                place=place,
                kind=kind,
                bytes=size,
                blocks=count,
                module=self.sites.module(largest[place, kind][1]),
                outer=self.sites.outer(largest[place, kind][1]),
            )
            for (place, kind), (size, count) in sums.items()
        ]
        return sorted(owners, key=lambda owner: -owner.bytes)

    def _by_module(self, live: Ints) -> dict[str, int]:
        sums: dict[str, int] = defaultdict(int)
        for stack, size, _ in self._by_stack(live, self.timeline.blocks.stack[live]):
            if path := self.sites.module(stack):
                sums[path] += size
        ordered = sorted(sums.items(), key=lambda item: -item[1])
        return dict(ordered[:MAX_MODULES])

    def _tree(self, live: Ints) -> tuple[StackMemory, ...]:
        """Return the tree of the stacks of the live blocks, without calls of modules and C++, which
        double each level, and without frames too small to be seen."""
        sizes: dict[tuple[int, ...], list[int]] = defaultdict(lambda: [0, 0])
        for stack, size, count in self._by_stack(live, self.timeline.blocks.stack[live]):
            path = [
                frame
                for frame in reversed(self.sites.stacks.of(stack))
                if not self.sites.frame_parts[frame] & (Part.MODULE | Part.NATIVE)
            ][:MAX_STACK_DEPTH]
            for depth in range(1, len(path) + 1):
                entry = sizes[tuple(path[:depth])]
                entry[0] += size
                entry[1] += count
            if not path:
                entry = sizes[(-1,)]
                entry[0] += size
                entry[1] += count
        least = MIN_STACK_SHARE * int(self.timeline.blocks.size[live].sum())
        kept = sorted(
            (item for item in sizes.items() if item[1][0] >= least),
            key=lambda item: (-item[1][0], len(item[0])),  # a caller is never smaller
        )[:MAX_STACK_NODES]
        numbers: dict[tuple[int, ...], int] = {(): -1}
        nodes: list[StackMemory] = []
        for path_key, (size, count) in sorted(kept, key=lambda item: len(item[0])):
            if path_key[:-1] not in numbers:
                continue
            numbers[path_key] = len(nodes)
            frame = path_key[-1]
            file, line, function = self.sites.stacks.frames[frame] if frame >= 0 else ("", 0, "")
            nodes.append(
                StackMemory(
                    parent=numbers[path_key[:-1]],
                    function=function,
                    file=file,
                    line=line,
                    is_own=frame >= 0 and self.sites.is_own(frame),
                    bytes=size,
                    blocks=count,
                )
            )
        return tuple(nodes)

    # ------------------------------------------------------------------- over time

    def _levels(self) -> LevelsOverTime:
        timeline = self.timeline
        if not len(timeline):
            return LevelsOverTime()
        moments = self._moments()
        levels: dict[MemoryKind, tuple[int, ...]] = {}
        for code, kind in enumerate(KINDS):
            chosen = np.flatnonzero(self.kinds.codes == code)
            if len(chosen):
                level = timeline.level(chosen)[moments]
                if level.any():
                    levels[kind] = tuple(level.tolist())
        return LevelsOverTime(
            at_ns=tuple(timeline.at_ns[moments].tolist()),
            levels=levels,
            reserved=tuple(timeline.reserved[moments].tolist()),
            step_starts_ns=tuple(timeline.at_ns[self.steps.starts].tolist()),
            left_out=len(timeline) - len(moments),
        )

    def _moments(self) -> Ints:
        """Return the events that the curve shows: of each of many equal parts the highest and the
        lowest, and the peak."""
        total = self.timeline.allocated
        if len(total) <= MAX_MOMENTS:
            return np.arange(len(total))
        parts = np.array_split(np.arange(len(total)), MAX_MOMENTS // 2)
        chosen = {max(self.timeline.peak, 0), len(total) - 1}
        for part in parts:
            level = total[part[0] : part[-1] + 1]
            chosen |= {int(part[0] + level.argmax()), int(part[0] + level.argmin())}
        return np.array(sorted(chosen), np.int64)

    def _shortages(self) -> Iterator[Shortage]:
        timeline = self.timeline
        for moment in timeline.shortages[-MAX_SHORTAGES:].tolist():
            asked = int(timeline.event_size[moment])
            largest, free = largest_free(timeline, moment)
            step = int(self.steps.step_of(np.array([moment]))[0]) if self.steps.count else -1
            yield Shortage(
                requested_bytes=asked,
                free_bytes=int(timeline.event_address[moment]),  # a shortage has it in its place
                total_bytes=self.total_bytes,
                largest_free_bytes=largest,
                fragmented=largest < asked <= free,
                place=self.sites.place(int(timeline.stack[moment])),
                phase=self._phase_of_shortage(moment),
                step=step if step >= 0 else None,
                at_ns=timeline.time_of(moment),
            )

    def _phase_of_shortage(self, moment: int) -> str:
        phase = self.steps.phase(moment)
        is_bare = int(self.timeline.stack[moment]) < 0
        return "backward" if not phase and is_bare and self.steps.knows_backward else phase

    # ------------------------------------------------------------------- what is missing

    @property
    def _lost_bytes(self) -> int:
        """Return the bytes in blocks whose stack was recorded, but whose allocation is gone: the
        ring of events was full."""
        blocks = self.timeline.blocks
        if not len(self.timeline):
            return 0
        lost = int(blocks.size[(blocks.start < 0) & (blocks.stack >= 0)].sum())
        # A few blocks may be left from an earlier recording of the same program.
        return lost if lost >= MIN_LOST_SHARE * self.timeline.bytes_at(BEFORE) else 0

    def _notes(self) -> Iterator[Reason]:
        timeline, blocks = self.timeline, self.timeline.blocks
        if len(timeline) and not timeline.has_times:
            yield because(MemoryNote.NO_TIMES)
        if len(timeline) and not self.steps.count:
            yield because(MemoryNote.NO_STEPS)
        if lost := self._lost_bytes:
            yield because(MemoryNote.EVENTS_LOST, bytes=lost)
        before = int(blocks.size[(blocks.start < 0) & (blocks.stack < 0)].sum())
        if len(timeline) and before:
            yield because(MemoryNote.BEFORE_RECORDING, bytes=before)
        if self.kinds.bytes_by_size:
            yield because(MemoryNote.KINDS_BY_SIZE, bytes=self.kinds.bytes_by_size)
        if timeline.unmatched:
            yield because(MemoryNote.UNMATCHED, count=timeline.unmatched)
        recorded = self.snapshot.blocks(self.device)
        in_segments = int(recorded["requested"][recorded["state"] > 0].sum())
        replayed = timeline.bytes_at(len(timeline) - 1)
        if len(recorded["size"]) and abs(replayed - in_segments) > 0.01 * max(
            replayed, in_segments
        ):
            yield because(
                MemoryNote.END_DIFFERS, replayed_bytes=replayed, snapshot_bytes=in_segments
            )
