"""Two traces side by side: what takes more or less time, by kernel, operator, module and cause.

Works on studies alone. They must hold all their rows: what a limit left out of one of them would
look new or gone. Figures are per step where both traces have steps, else per trace.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ridgeline import units
from ridgeline.records.trace import Difference, TraceComparison, TraceStudy
from ridgeline.records.trust import Check

NOTE = "one trace each is no proof: `ridgeline compare` measures"

Of = Literal["kernel", "op", "module", "category", "cause", "phase", "total"]
Amount = tuple[float, float]
"""Nanoseconds and how many."""
_NUMBER = re.compile(r"\d+")


def differences(before: TraceStudy, after: TraceStudy) -> TraceComparison:
    """Compare all rows of both traces, also the new ones and those that are gone. In each kind the
    largest change comes first."""
    per: Literal["step", "trace"] = (
        "step" if before.window.steps > 0 and after.window.steps > 0 else "trace"
    )
    rows: list[Difference] = []
    for of, (one, other) in _tables(before, after).items():
        if of == "kernel":
            one, other = _renamed(one, other)
        rows += _rows(of, one, other, _units(before, per), _units(after, per))
    told = tuple(rows)
    alike = bool(before.devices) == bool(after.devices)
    lengths = (before.window.ns / _units(before, per), after.window.ns / _units(after, per))
    return TraceComparison(
        before=before.label,
        after=after.label,
        per=per,
        before_ns=lengths[0],
        after_ns=lengths[1],
        differences=told,
        validation=_checks(before, after, per),
        verdict=verdict(
            per, *lengths, told, max(len(before.devices), 1), max(len(after.devices), 1)
        )
        if alike
        else not_comparable("before" if before.devices else "after"),
        note=NOTE,
    )


def _units(study: TraceStudy, per: str) -> int:
    return study.window.steps if per == "step" else 1


def _tables(
    before: TraceStudy, after: TraceStudy
) -> dict[Of, tuple[Mapping[str, Amount], Mapping[str, Amount]]]:
    # the host's time where a trace has no device work: device time would make all of it new
    device = all(
        s.devices and (any(row.device_ns for row in s.ops) or s.kernels) for s in (before, after)
    )
    idle = all(s.idle.trust.confidence != "unreliable" for s in (before, after))
    both = (before, after)
    tables: dict[Of, list[Mapping[str, Amount]]] = {
        "total": [_total(s, _known(before, after)) for s in both],
        "cause": [_sum((c.cause, c.ns, c.gaps) for c in s.idle.causes if idle) for s in both],
        "phase": [_sum((p.phase, p.host_ns, 0) for p in s.phases) for s in both],
        "category": [_sum((c.category, c.device_ns, c.count) for c in s.categories) for s in both],
        "module": [
            _sum((m.path, m.device_ns if device else m.host_ns, m.count) for m in s.modules)
            for s in both
        ],
        "op": [
            _sum((o.name, o.device_self_ns if device else o.host_self_ns, o.count) for o in s.ops)
            for s in both
        ],
        "kernel": [_sum((k.name, k.total_ns, k.count) for k in s.kernels) for s in both],
    }
    if bool(before.devices) != bool(after.devices):
        # windows are of the device's activity where there is one: no common measure but the host's
        tables = {of: tables[of] for of in ("phase", "module", "op")}
    return {of: (one, other) for of, (one, other) in tables.items()}


def _sum(rows: Iterable[tuple[str, float, float]]) -> Mapping[str, Amount]:
    """Add up rows of one name: operators may come by shape."""
    total: dict[str, Amount] = defaultdict(lambda: (0.0, 0.0))
    for name, ns, count in rows:
        total[name] = (total[name][0] + ns, total[name][1] + count)
    return total


def _known(before: TraceStudy, after: TraceStudy) -> bool:
    """Return whether both traces can tell busy from idle on all their devices."""
    told = [
        [d.busy_ns is not None and d.idle_ns is not None for d in s.devices]
        for s in (before, after)
    ]
    return all(one and all(one) for one in told)


def _total(study: TraceStudy, known: bool) -> Mapping[str, Amount]:
    """Return the window, and the mean busy and idle time of its devices."""
    rows: dict[str, Amount] = {"window": (study.window.ns, 1)}
    if known:
        devices = len(study.devices)
        rows["busy"] = (sum(d.busy_ns or 0 for d in study.devices) / devices, devices)
        rows["idle"] = (sum(d.idle_ns or 0 for d in study.devices) / devices, devices)
    return rows


def _rows(
    of: Of, before: Mapping[str, Amount], after: Mapping[str, Amount], was: int, is_: int
) -> list[Difference]:
    rows = []
    for name in dict.fromkeys([*before, *after]):
        one, other = before.get(name, (0.0, 0.0)), after.get(name, (0.0, 0.0))
        if not any((*one, *other)):
            continue
        rows.append(
            Difference(
                of=of,
                name=name,
                before_ns=one[0] / was,
                after_ns=other[0] / is_,
                before_count=one[1] if of == "total" else one[1] / was,
                after_count=other[1] if of == "total" else other[1] / is_,
            )
        )
    return rows if of == "total" else sorted(rows, key=lambda row: (-abs(row.change_ns), row.name))


def _renamed(
    before: Mapping[str, Amount], after: Mapping[str, Amount]
) -> tuple[Mapping[str, Amount], Mapping[str, Amount]]:
    """Make one row of a kernel that is gone and one that is new, if their names differ in numbers
    only.

    Tile sizes and vector widths are chosen by shape and alignment: a 128x64 tile in place of 128x32
    is the same work done otherwise, not work that vanished.
    """
    gone, new = set(before) - set(after), set(after) - set(before)
    alike = {_NUMBER.sub("#", name) for name in gone} & {_NUMBER.sub("#", name) for name in new}

    def folded(rows: Mapping[str, Amount], lone: set[str]) -> Mapping[str, Amount]:
        masks = {name: _NUMBER.sub("#", name) for name in lone}
        return _sum(
            (masks[name] if masks.get(name) in alike else name, *amount)
            for name, amount in rows.items()
        )

    return folded(before, gone), folded(after, new)


def _checks(before: TraceStudy, after: TraceStudy, per: str) -> tuple[Check, ...]:
    """Return what was wrong with either trace, and what makes them hard to compare."""
    checks = []
    names = [sorted({d.name for d in s.devices if d.name}) for s in (before, after)]
    if names[0] != names[1] and all(names):
        claim = f"different devices: {', '.join(names[0])} before, {', '.join(names[1])} after"
        checks.append(Check(id="devices-differ", severity="warning", claim=claim))
    if bool(before.devices) != bool(after.devices):
        claim = (
            f"only the trace {'before' if before.devices else 'after'} has device work: the "
            "host's times are compared, and with a device they include waiting for it"
        )
        checks.append(Check(id="device-work-differs", severity="warning", claim=claim))
    elif len(before.devices) != len(after.devices):
        claim = f"{len(before.devices)} devices before, {len(after.devices)} after"
        checks.append(Check(id="device-count-differs", severity="warning", claim=claim))
    if per == "trace":
        claim = "no step marks in both traces: the whole traces are compared, however long they are"
        checks.append(Check(id="no-common-steps", severity="warning", claim=claim))
    if before.torch != after.torch and before.torch and after.torch:
        claim = f"different versions of torch: {before.torch} before, {after.torch} after"
        checks.append(Check(id="torch-differs", severity="note", claim=claim))
    for when, study in (("before", before), ("after", after)):
        if per == "step" and study.window.note:
            claim = f"{when}: {study.window.note}; a step is the window by its {study.window.steps}"
            checks.append(Check(id="window-edges", severity="note", claim=claim))
        if study.kernels_left_out:
            claim = f"{when}: {study.kernels_left_out} kernels are not in the table compared"
            count = study.kernels_left_out
            checks.append(Check(id="rows-left-out", severity="warning", claim=claim, count=count))
        checks += [_of(when, check) for check in study.validation if check.severity != "note"]
    return tuple(checks)


def _of(when: str, check: Check) -> Check:
    return Check(
        id=check.id,
        severity=check.severity,
        claim=f"{when}: {check.claim}",
        count=check.count,
        affects=check.affects,
    )


MIN_CHANGE_SHARE = 0.01
"""A smaller change is called none: two steps of one trace differ by more."""
_MAX_PARTS = 2
_CAUSES = {
    "input": "input wait",
    "transfer": "waiting for transfers",
    "launch-bound": "launch-bound idling",
    "allocator": "waiting for the allocator",
    "compile": "compilation",
    "other host": "other host time",
    "between kernels": "gaps between kernels",
    "unknown": "unexplained idling",
}


def verdict(
    per: str,
    before_ns: float,
    after_ns: float,
    rows: Sequence[Difference],
    devices_before: int = 1,
    devices_after: int = 1,
) -> str:
    change = after_ns - before_ns
    what = "a step" if per == "step" else "the trace"
    small = MIN_CHANGE_SHARE * max(before_ns, after_ns)
    if abs(change) < small or not change:
        said = f"{what} takes the same time ({_time(after_ns)})"
    else:
        share = f" ({_percent(change / before_ns)})" if before_ns > 0 else ""
        said = f"{what} takes {_more(change)}{share}"
    parts = _parts(rows, max(small, 0.1 * abs(change)), devices_before, devices_after)
    return f"{said}: {'; '.join(parts)}" if parts else said


def not_comparable(with_device: str) -> str:
    """Return the verdict where only one trace has a device: its time and the host's give no
    speedup."""
    return (
        f"these cannot be compared as device time: only the trace {with_device} has device work; "
        "below is the host's time alone"
    )


def _parts(
    rows: Sequence[Difference], least: float, devices_before: int, devices_after: int
) -> list[str]:
    """Return the idle causes that changed, then the device's own work; without a device, the host's
    work."""
    causes = [
        (r.after_ns / devices_after - r.before_ns / devices_before, _CAUSES.get(r.name, r.name))
        for r in rows
        if r.of == "cause"
    ]
    causes.sort(key=lambda part: -abs(part[0]))
    each = " a device" if max(devices_before, devices_after) > 1 else ""
    parts = [f"{name} {_more(ns)}{each}" for ns, name in causes if abs(ns) >= least][:_MAX_PARTS]
    busy = next((r for r in rows if r.of == "total" and r.name == "busy"), None)
    if busy is None:
        ops = [r for r in rows if r.of == "op" and abs(r.change_ns) >= least]
        top = sorted(ops, key=lambda r: -abs(r.change_ns))
        return parts + [f"{r.name} {_more(r.change_ns)}" for r in top[:_MAX_PARTS]]
    if abs(busy.change_ns) < max(least, MIN_CHANGE_SHARE * max(busy.before_ns, busy.after_ns)):
        return [*parts, "kernels equal"]
    kinds = [r for r in rows if r.of == "category" and r.change_ns * busy.change_ns > 0]
    top = sorted(kinds, key=lambda r: -abs(r.change_ns))[:1]
    return [
        *parts,
        f"kernels {_more(busy.change_ns)}" + "".join(f", most in {r.name}" for r in top),
    ]


def _more(ns: float) -> str:
    return f"{_time(abs(ns))} {'less' if ns < 0 else 'more'}"


def _time(ns: float) -> str:
    return units.seconds(ns / 1e9)


def _percent(share: float) -> str:
    return f"{'+' if share > 0 else ''}{units.percent(share)}"
