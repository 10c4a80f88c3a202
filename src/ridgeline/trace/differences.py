"""Two traces compared: what takes more or less time, by kernel, operator, module and cause.

The studies must have all their rows: a row that a limit left out of one study would look new or
gone. Figures are per step if both traces have steps, else per trace.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from ridgeline import units
from ridgeline.records.facts import Check
from ridgeline.records.trace import Difference, TraceComparison, TraceStudy

NOTE = "one trace each is no proof: `ridgeline compare` measures"

Of = Literal["kernel", "op", "module", "category", "cause", "phase", "total"]
Amount = tuple[float, float]
"""Nanoseconds, and the number of calls."""
_NUMBER = re.compile(r"\d+")


def differences(before: TraceStudy, after: TraceStudy) -> TraceComparison:
    """Compare all rows of both traces, also the new ones and those that are gone. In each kind the
    largest change comes first."""
    per: Literal["step", "trace"] = (
        "step" if before.window.steps > 0 and after.window.steps > 0 else "trace"
    )
    rows: list[Difference] = []
    for of, (before_rows, after_rows) in _tables(before, after).items():
        if of == "kernel":
            before_rows, after_rows = _renamed(before_rows, after_rows)
        rows += _rows(of, before_rows, after_rows, _units(before, per), _units(after, per))
    all_rows = tuple(rows)
    is_comparable = bool(before.devices) == bool(after.devices)
    lengths = (before.window.ns / _units(before, per), after.window.ns / _units(after, per))
    return TraceComparison(
        before=before.label,
        after=after.label,
        per=per,
        before_ns=lengths[0],
        after_ns=lengths[1],
        differences=all_rows,
        validation=_checks(before, after, per),
        verdict=verdict(
            per, *lengths, all_rows, max(len(before.devices), 1), max(len(after.devices), 1)
        )
        if is_comparable
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
        study.devices and (any(row.device_ns for row in study.ops) or study.kernels)
        for study in (before, after)
    )
    idle = all(study.idle.trust.confidence != "unreliable" for study in (before, after))
    both = (before, after)
    tables: dict[Of, list[Mapping[str, Amount]]] = {
        "total": [_total(study, _known(before, after)) for study in both],
        "cause": [
            _sum((cause.cause, cause.ns, cause.gaps) for cause in study.idle.causes if idle)
            for study in both
        ],
        "phase": [
            _sum((phase.phase, phase.host_ns, 0) for phase in study.phases) for study in both
        ],
        "category": [
            _sum((cause.category, cause.device_ns, cause.count) for cause in study.categories)
            for study in both
        ],
        "module": [
            _sum(
                (module.path, module.device_ns if device else module.host_ns, module.count)
                for module in study.modules
            )
            for study in both
        ],
        "op": [
            _sum(
                (op.name, op.device_self_ns if device else op.host_self_ns, op.count)
                for op in study.ops
            )
            for study in both
        ],
        "kernel": [
            _sum((kernel.name, kernel.total_ns, kernel.count) for kernel in study.kernels)
            for study in both
        ],
    }
    if bool(before.devices) != bool(after.devices):
        # windows are of the device's activity where there is one: no common measure but the host's
        tables = {of: tables[of] for of in ("phase", "module", "op")}
    return {of: (before_rows, after_rows) for of, (before_rows, after_rows) in tables.items()}


def _sum(rows: Iterable[tuple[str, float, float]]) -> Mapping[str, Amount]:
    """Add up rows of one name: operators may come by shape."""
    total: dict[str, Amount] = defaultdict(lambda: (0.0, 0.0))
    for name, ns, count in rows:
        total[name] = (total[name][0] + ns, total[name][1] + count)
    return total


def _known(before: TraceStudy, after: TraceStudy) -> bool:
    """Return whether both traces can tell busy from idle on all their devices."""
    known = [
        [d.busy_ns is not None and d.idle_ns is not None for d in s.devices]
        for s in (before, after)
    ]
    return all(known_devices and all(known_devices) for known_devices in known)


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
        old, new = before.get(name, (0.0, 0.0)), after.get(name, (0.0, 0.0))
        if not any((*old, *new)):
            continue
        rows.append(
            Difference(
                of=of,
                name=name,
                before_ns=old[0] / was,
                after_ns=new[0] / is_,
                before_count=old[1] if of == "total" else old[1] / was,
                after_count=new[1] if of == "total" else new[1] / is_,
            )
        )
    return rows if of == "total" else sorted(rows, key=lambda row: (-abs(row.change_ns), row.name))


def _renamed(
    before: Mapping[str, Amount], after: Mapping[str, Amount]
) -> tuple[Mapping[str, Amount], Mapping[str, Amount]]:
    """Join a kernel that is gone and one that is new if only the numbers in their names differ.

    Tile sizes and vector widths depend on shape and alignment: a kernel with a 128x64 tile in place
    of 128x32 does the same work.
    """
    gone, new = set(before) - set(after), set(after) - set(before)
    shared_masks = {_NUMBER.sub("#", name) for name in gone} & {
        _NUMBER.sub("#", name) for name in new
    }

    def folded(rows: Mapping[str, Amount], lone: set[str]) -> Mapping[str, Amount]:
        masks = {name: _NUMBER.sub("#", name) for name in lone}
        return _sum(
            (masks[name] if masks.get(name) in shared_masks else name, *amount)
            for name, amount in rows.items()
        )

    return folded(before, gone), folded(after, new)


def _checks(before: TraceStudy, after: TraceStudy, per: str) -> tuple[Check, ...]:
    """Return the checks of both traces, and the checks that make them hard to compare."""
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
"""A smaller change is called none, because two steps of one trace differ by more."""
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
    unit = "a step" if per == "step" else "the trace"
    small = MIN_CHANGE_SHARE * max(before_ns, after_ns)
    if abs(change) < small or not change:
        sentence = f"{unit} takes the same time ({_time(after_ns)})"
    else:
        share = f" ({_percent(change / before_ns)})" if before_ns > 0 else ""
        sentence = f"{unit} takes {_change_text(change)}{share}"
    parts = _parts(rows, max(small, 0.1 * abs(change)), devices_before, devices_after)
    return f"{sentence}: {'; '.join(parts)}" if parts else sentence


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
    parts = [f"{name} {_change_text(ns)}{each}" for ns, name in causes if abs(ns) >= least][
        :_MAX_PARTS
    ]
    busy = next((r for r in rows if r.of == "total" and r.name == "busy"), None)
    if busy is None:
        ops = [r for r in rows if r.of == "op" and abs(r.change_ns) >= least]
        top = sorted(ops, key=lambda r: -abs(r.change_ns))
        return parts + [f"{r.name} {_change_text(r.change_ns)}" for r in top[:_MAX_PARTS]]
    if abs(busy.change_ns) < max(least, MIN_CHANGE_SHARE * max(busy.before_ns, busy.after_ns)):
        return [*parts, "kernels equal"]
    kinds = [r for r in rows if r.of == "category" and r.change_ns * busy.change_ns > 0]
    top = sorted(kinds, key=lambda r: -abs(r.change_ns))[:1]
    return [
        *parts,
        f"kernels {_change_text(busy.change_ns)}" + "".join(f", most in {r.name}" for r in top),
    ]


def _change_text(ns: float) -> str:
    return f"{_time(abs(ns))} {'less' if ns < 0 else 'more'}"


def _time(ns: float) -> str:
    return units.seconds(ns / 1e9)


def _percent(share: float) -> str:
    return f"{'+' if share > 0 else ''}{units.percent(share)}"
