"""The roofline of a traced step: its operators, modules and kernels against the ceilings of the
device, on a GPU or a CPU alike.

It is made from the sites of operators, which a case holds, so that no trace is read again. Times,
calls and work are of one step.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Literal

from msgspec.structs import replace

from ridgeline.records.machine import Device
from ridgeline.records.run_page import ModuleWork
from ridgeline.records.sites import OpSite, Sites
from ridgeline.records.trace import Place, Roofline, RooflineRow, attained_share
from ridgeline.trace.analyses.recorded_calls import OpWork, shape_text
from ridgeline.trace.analyses.roofline import Hint, row_of
from ridgeline.trace.trace import Shape

MAX_ROWS = 200
"""Operators, modules and kernels that are kept of each. More would overlap in a picture, and nobody
reads a longer table."""
MAX_UNCOVERED = 10
MAX_TREE_NODES = 1_500
"""Modules of a tree: a model of 100 layers has some 1,200."""


def operator_roofline(sites: Sites, device: Device | None, limit: int = MAX_ROWS) -> Roofline:
    """Return the roofline; without a known device its rows have rates, and no ceilings."""
    whole = sum(site.work_ns for site in sites.ops) + sites.left_out_ns
    if whole <= 0:
        return Roofline(device=device.name if device is not None else "")
    inputs = {id(site): shape_text(Shape(dims=site.dims, types=site.types)) for site in sites.ops}

    def by_call(site: OpSite) -> tuple[str, str, str]:
        return site.op, inputs[id(site)], site.dtype

    operators = [
        _row(key[0], key[1], group, whole, device) for key, group in _grouped(sites.ops, by_call)
    ]
    unknown: dict[str, float] = defaultdict(float)
    for site in sites.ops:
        if not site.bytes:
            unknown[site.op] += site.work_ns
    known_ns = sum(site.work_ns for site in sites.ops if site.bytes)
    largest = sorted(unknown.items(), key=lambda pair: -pair[1])[:MAX_UNCOVERED]
    with_work = [site for site in sites.ops if site.bytes]
    return Roofline(
        device=device.name if device is not None else "",
        rows=_longest(operators, limit),
        covered=known_ns / whole,
        uncovered=tuple((op, round(ns)) for op, ns in largest),
        modules=_longest(
            [
                _sum(str(path), group, whole, device)
                for path, group in _grouped(with_work, lambda site: site.module)
                if path
            ],
            limit,
        ),
        kernels=_longest(list(_kernels(with_work, whole, device)), limit),
        ceilings=device.ceilings if device is not None else (),
    )


def _grouped(
    sites: Iterable[OpSite], key: Callable[[OpSite], Hashable]
) -> list[tuple[tuple[str, ...] | str, list[OpSite]]]:
    groups: dict[Hashable, list[OpSite]] = defaultdict(list)
    for site in sites:
        groups[key(site)].append(site)
    return list(groups.items())  # type: ignore[arg-type]


def _longest(rows: Sequence[RooflineRow], limit: int) -> tuple[RooflineRow, ...]:
    return tuple(sorted(rows, key=lambda row: -row.device_ns)[:limit])


def _row(
    op: str, inputs: str, group: Sequence[OpSite], whole: float, device: Device | None
) -> RooflineRow:
    """Return the row of calls of one operator with equal inputs."""
    ns, calls = sum(site.work_ns for site in group), sum(site.calls for site in group)
    count = max(round(calls), 1)
    work = OpWork(
        flops=round(sum(site.executed_flops for site in group) / count),
        bytes=round(sum(site.bytes for site in group) / count),
        dtype=group[0].dtype,
    )
    row = row_of(op, inputs, work, Hint(), count, round(ns), max(round(whole), 1), device)
    if not work.bytes:
        row = replace(row, bound="", attained=None, over_ceiling=False, ceiling=None, source="")
    return replace(row, place=_place(group), module=_longest_of(group, lambda site: site.module))


def _place(group: Sequence[OpSite]) -> Place | None:
    times: dict[Place, float] = defaultdict(float)
    for site in group:
        if site.place is not None:
            times[site.place] += site.work_ns
    return max(times, key=lambda place: times[place], default=None)


def _longest_of(group: Sequence[OpSite], name_of: Callable[[OpSite], str]) -> str:
    times: dict[str, float] = defaultdict(float)
    for site in group:
        times[name_of(site)] += site.work_ns
    return max(times, key=lambda name: times[name], default="")


def _sum(name: str, group: Sequence[OpSite], whole: float, device: Device | None) -> RooflineRow:
    """Return the row of different operators together. Its bound is that of most of its time, and
    its share of the ceiling is that of its operators, weighted by time."""
    rows = [_row(site.op, "", [site], whole, device) for site in group]
    ns = sum(row.device_ns for row in rows)
    flops = sum(row.flops * row.count for row in rows)
    moved = sum(row.bytes * row.count for row in rows)
    seconds = ns / 1e9 or 1.0
    bounds: tuple[Literal["compute", "memory"], ...] = ("compute", "memory")
    times = {kind: sum(row.device_ns for row in rows if row.bound == kind) for kind in bounds}
    bound: Literal["compute", "memory", ""] = ""
    if any(times.values()):
        bound = "compute" if times["compute"] >= times["memory"] else "memory"
    largest = max(rows, key=lambda row: row.device_ns)
    total = max(round(whole), 1)
    return RooflineRow(
        op=name,
        shape="",
        dtype=largest.dtype,
        count=sum(row.count for row in rows),
        device_ns=ns,
        share=ns / total,
        flops=flops,
        bytes=moved,
        flops_s=flops / seconds,
        bytes_s=moved / seconds,
        intensity=flops / moved if moved else 0.0,
        bound=bound,
        attained=attained_share(rows),
        source=largest.source,
        place=_place(group),
    )


def _kernels(sites: Iterable[OpSite], whole: float, device: Device | None) -> Iterable[RooflineRow]:
    """Yield the kernels that are the only one of their operators: of several, nothing tells which
    did how much of the work."""
    alone: dict[str, list[OpSite]] = defaultdict(list)
    for site in sites:
        if len(site.kernels) == 1 and site.device_ns:
            alone[site.kernels[0].name].append(site)
    for name, group in alone.items():
        yield _sum(name, group, whole, device)


def module_tree(sites: Sites, limit: int = MAX_TREE_NODES) -> tuple[ModuleWork, ...]:
    """Return the modules with the work of the modules inside them, each after the module that
    holds it; the longest ones, where there are too many. Empty where the trace shows no modules."""
    totals: dict[tuple[str, ...], list[float]] = {}
    for site in sites.ops:
        path = tuple(site.module.split(" / ")) if site.module else ()
        for depth in range(1, len(path) + 1):
            entry = totals.setdefault(path[:depth], [0.0, 0.0, 0.0])
            entry[0] += site.work_ns
            entry[1] += site.executed_flops
            entry[2] += site.bytes
    kept = sorted(totals, key=lambda path: (-totals[path][0], len(path)))[:limit]
    number: dict[tuple[str, ...], int] = {}
    made = []
    for path in sorted(kept, key=len):
        parent = number.get(path[:-1], -1)
        if len(path) > 1 and parent < 0:
            continue
        number[path] = len(number)
        ns, flops, moved = totals[path]
        made.append(ModuleWork(name=path[-1], parent=parent, ns=ns, flops=flops, bytes=moved))
    return tuple(made)
