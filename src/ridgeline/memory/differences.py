"""Compares two studies of memory: what needs more at the peak, and what less."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set

from ridgeline.records.facts import Place
from ridgeline.records.memory import (
    DeviceMemory,
    MemoryChange,
    MemoryComparison,
    MemoryKind,
    MemoryStudy,
    Owner,
)

Line = tuple[Place | None, MemoryKind]
Sums = dict[Line, tuple[Place | None, int]]
"""The place and the bytes of each line."""


def differences(before: MemoryStudy, after: MemoryStudy) -> MemoryComparison:
    """Compare the devices with the highest peaks. Both studies must have a device."""
    first, second = before.devices[0], after.devices[0]
    kinds = {kind.value: size for kind, size in first.peak.by_kind.items()}
    later_kinds = {kind.value: size for kind, size in second.peak.by_kind.items()}
    return MemoryComparison(
        before=before,
        after=after,
        before_device=first.device,
        after_device=second.device,
        changes=(
            *_totals(first, second),
            *_named("kind", kinds, later_kinds),
            *_lines(first.peak.owners, second.peak.owners),
            *_named("module", first.peak.by_module, second.peak.by_module),
        ),
    )


def _totals(first: DeviceMemory, second: DeviceMemory) -> Iterable[MemoryChange]:
    pairs = [
        ("peak", first.peak.bytes, second.peak.bytes),
        ("reserved", first.peak.reserved_bytes, second.peak.reserved_bytes),
    ]
    if first.fragmentation is not None and second.fragmentation is not None:
        stuck = (first.fragmentation.stuck_bytes, second.fragmentation.stuck_bytes)
        pairs.append(("stuck", *stuck))
    for name, earlier, later in pairs:
        yield MemoryChange(of="total", name=name, before_bytes=earlier, after_bytes=later)


def _named(of: str, before: Mapping[str, int], after: Mapping[str, int]) -> list[MemoryChange]:
    changes = [
        MemoryChange(
            of="kind" if of == "kind" else "module",
            name=name,
            before_bytes=before.get(name, 0),
            after_bytes=after.get(name, 0),
        )
        for name in {**after, **before}
    ]
    return _ordered(changes)


def _lines(before: Iterable[Owner], after: Iterable[Owner]) -> list[MemoryChange]:
    """Compare line by line. What has no equal line on the other side is compared by its function,
    because an edit moves the lines below it."""
    sums = [_sums(before), _sums(after)]
    exact = sums[0].keys() & sums[1].keys()
    changes = [
        MemoryChange(
            of="line", name="", place=sums[1][line][0], kind=line[1],
            before_bytes=sums[0][line][1], after_bytes=sums[1][line][1],
        )
        for line in exact
    ]  # fmt: skip
    return _ordered([*changes, *_moved_lines(sums, exact)])


def _moved_lines(sums: Sequence[Sums], exact: Set[Line]) -> Iterator[MemoryChange]:
    """Yield the changes of lines without an equal one. Where a function has as many of them before
    as afterwards they are compared in their order, else all together."""
    functions: dict[Line, tuple[list[Line], list[Line]]] = defaultdict(lambda: ([], []))
    for side, owners in enumerate(sums):
        for line in owners.keys() - exact:
            functions[_without_line(line[0]), line[1]][side].append(line)
    for lines in functions.values():
        ordered = [sorted(side, key=lambda line: (line[0] and line[0].line) or 0) for side in lines]
        groups = [(ordered[0], ordered[1])]
        if len(ordered[0]) == len(ordered[1]):
            groups = [([one], [other]) for one, other in zip(*ordered, strict=True)]
        for before, after in groups:
            sizes = [
                sum(owners[line][1] for line in side)
                for owners, side in zip(sums, (before, after), strict=True)
            ]
            shown = sums[1][after[0]] if after else sums[0][before[0]]
            yield MemoryChange(
                of="line", name="", place=shown[0], kind=(after or before)[0][1],
                before_bytes=sizes[0], after_bytes=sizes[1],
            )  # fmt: skip


def _sums(owners: Iterable[Owner]) -> Sums:
    """Return the place and the bytes of each line, by a key that has no folders: the two programs
    may have run elsewhere."""
    sums: Sums = {}
    for owner in owners:
        key = (_without_folder(owner.place), owner.kind)
        sums[key] = (owner.place, sums.get(key, (None, 0))[1] + owner.bytes)
    return sums


def _without_folder(place: Place | None) -> Place | None:
    if place is None:
        return None
    return Place(re.split(r"[/\\]", place.file)[-1], place.line, place.function)


def _without_line(place: Place | None) -> Place | None:
    return None if place is None else Place(place.file, None, place.function)


def _ordered(changes: Iterable[MemoryChange]) -> list[MemoryChange]:
    return sorted(changes, key=lambda change: (-abs(change.change_bytes), -change.after_bytes))
