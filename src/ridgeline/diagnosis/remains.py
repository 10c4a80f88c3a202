"""How near a step is to the ceiling that binds, and what its time is: for where nothing is wrong.

A step that is mostly arithmetic is held against the peak of its arithmetic (MFU). One that is not
is held against its roofline: the time its operators would need at their own ceilings, over the time
the step takes. Where the device mostly waits, where the verdict names a wait, or where little was
recorded, that is no all-clear: what is known of it is said instead, and that no rule explains it.
What findings explain is taken off before.
"""

from collections.abc import Mapping

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.limit import winner
from ridgeline.diagnosis.recorded import not_recorded
from ridgeline.diagnosis.shares import TOLD, Kind, Shares, Wait, kind_of
from ridgeline.records.machine import MAX_SHARE_OF_CEILING

LEAST = 0.05
"""Of the step: a smaller part is not what remains."""
MOST = 3
WAITS, WAITS_CPU = 0.2, 0.5
"""Of the step not the model's work: from here on silence of the rules is no all-clear. On a CPU
Python and starts of operators are half of a step of a small model that has no fault."""
FEWEST = 15
"""Samples of workers: fewer do not tell how much of their time they wait."""
_NAMED: tuple[Kind, ...] = ("input", "transfer", "communication")
_PRODUCTS = ("matmul", "convolution", "attention")
_PARTS: dict[Kind, str] = {
    "input": "waiting for data",
    "transfer": "copies between host and device",
    "overhead": "Python, launches and small operators",
    "communication": "communication",
    "compute": "arithmetic",
    "memory": "memory traffic",
}


class Remains(Struct, frozen=True, kw_only=True):
    ceiling_pct: float | None = None
    ceiling: str = ""
    """bfloat16 peak (datasheet)"""
    parts: str = ""
    """arithmetic 61 % (most of it matmul), memory traffic 25 %"""
    unexplained: str = ""
    """Why the silence of the rules is no all-clear; "" where it is one, or where they speak."""


def remains(case: Case, explained: Mapping[Kind, float] | None = None) -> Remains:
    """`explained`: how much of each kind of waiting findings account for, of the step."""
    near, ceiling = _nearness(case)
    return Remains(
        ceiling_pct=None if near is None else round(100 * min(near, 1.0), 1),
        ceiling=ceiling,
        parts=_parts(case),
        unexplained=_unexplained(case, explained or {}),
    )


def _nearness(case: Case) -> tuple[float | None, str]:
    if case.efficiency.ceiling_state == "exceeded":
        return None, ""  # nearness to a ceiling that is too low says nothing
    known = case.work is not None and case.work.coverage >= TOLD
    if known and case.share_of("compute") >= case.share_of("memory"):
        attained, name = _of_the_peak(case)
        if attained is not None:
            return attained, name
    work, busy = case.work, case.busy
    if work is None or busy is None or work.attained is None:
        return None, ""
    told = (work.compute_share or 0.0) + (work.memory_share or 0.0)
    if told < TOLD:
        return None, ""
    binds = "memory" if (work.memory_share or 0.0) > (work.compute_share or 0.0) else "arithmetic"
    return work.attained * told * busy, f"roofline ({binds} for most of it)"


def _of_the_peak(case: Case) -> tuple[float | None, str]:
    """A trace alone has no untraced step: its own length is taken."""
    of = case.efficiency
    if of.mfu is not None:
        dtype, _, source = of.ceiling.partition(", ")
        return of.mfu, f"{dtype} peak ({source})" if source else f"{dtype} peak"
    work = case.work
    if work is None or not work.flops or not case.step_ms or work.trust.confidence == "unreliable":
        return None, ""
    peak = case.device.ceiling("matmul", work.dtype) if case.device is not None else None
    if peak is None or not peak.value:
        return None, ""
    share = work.flops * 1e3 / case.step_ms / peak.value
    if share > MAX_SHARE_OF_CEILING:
        return None, ""
    return share, f"{work.dtype} peak ({peak.source})"


def _unexplained(case: Case, explained: Mapping[Kind, float]) -> str:
    if why := not_recorded(case):
        return "" if explained else f"{why}, and no rule could find a cause in it"
    if case.shares is None:
        return ""
    held = 1 - case.shares.busy - case.shares.preempted
    least = WAITS if case.on_gpu else WAITS_CPU
    if held < least:
        return _named_wait(case, case.shares, explained)
    left = waits_left(case.shares, explained)
    rest = sum(left.values())
    if explained and rest < least:
        return ""
    kind = max(left, key=lambda one: left[one])
    part = f"{_PARTS[kind]} {_percent(left[kind])}{_cause(kind, case)}"
    if explained:
        return f"{_percent(rest)} of the step is neither work nor explained by a finding: {part}"
    return f"{_percent(held)} of the step is not the model's work, and no rule explains it: {part}"


def waits_left(shares: Shares, explained: Mapping[Kind, float]) -> dict[Wait, float]:
    """Waiting by kind, less what is explained. A wait of the host may hold copies: what is more
    than its overhead is of the transfers, as in the budgets of findings."""
    waits: tuple[Wait, ...] = ("input", "transfer", "overhead", "communication")
    left = {kind: shares.of[kind] - explained.get(kind, 0.0) for kind in waits}
    left["transfer"] += min(left["overhead"], 0.0)
    return {kind: max(share, 0.0) for kind, share in left.items()}


def _named_wait(case: Case, shares: Shares, explained: Mapping[Kind, float]) -> str:
    """A wait that the verdict is named after, however much of the step is work."""
    loaders = case.capture.loaders if case.capture is not None else ()
    fed_beside = case.on_gpu or any(one.workers and one.batches for one in loaders)
    kind = winner(shares, ["input"] if fed_beside else [])
    share = case.share_of(kind)
    left = {str(wait): rest for wait, rest in waits_left(shares, explained).items()}
    if kind not in _NAMED or share < LEAST or left[kind] < share / 2:
        return ""
    known = "; ".join(_known_of(kind, case)) or "nothing recorded tells its cause"
    return f"no rule explains the {_percent(share)} of {_PARTS[kind]}{_cause(kind, case)}: {known}"


def _known_of(kind: Kind, case: Case) -> list[str]:
    """What speaks against the usual causes, or for one outside the program."""
    said, view, others = [], case.python, case.telemetered
    if kind == "input" and view is not None and view.worker_samples >= FEWEST:
        idle = view.worker_idle_samples / view.worker_samples
        if idle > 0.5:
            said.append(f"workers had nothing to do {_percent(idle)} of their time")
    if others.crowded and others.other_cores is not None:
        said.append(f"other programs took {others.other_cores:.1f} of {others.cores} cores")
    return said


def _cause(kind: Kind, case: Case) -> str:
    """Of the device's waits, the largest that counts as this kind."""
    if not case.on_gpu or case.study is None:
        return ""
    found = [c for c in case.study.idle.causes if c.ns > 0 and kind_of(c.cause) == kind]
    if not found:
        return ""
    top = max(found, key=lambda cause: cause.ns)
    at = f" at {top.places[0].file}:{top.places[0].line}" if top.places else ""
    host = f", the host in {top.says}" if top.says else ""
    return f" (most of it {top.cause}{at}{host})"


def _percent(share: float) -> str:
    return f"{units.significant(100 * share, 2)} %"


def _parts(case: Case) -> str:
    if case.shares is None:
        return ""
    named = [(share, _PARTS[kind], _mostly(kind, case)) for kind, share in case.shares.of.items()]
    if case.shares.split == "guess":  # nothing tells arithmetic from memory
        named = [part for part in named if part[1] not in (_PARTS["compute"], _PARTS["memory"])]
        named.append((case.shares.busy, "the model's work", ""))
    largest = sorted(named, key=lambda part: -part[0])[:MOST]
    said = [f"{name} {_percent(share)}{mostly}"
            for share, name, mostly in largest if share >= LEAST]  # fmt: skip
    return ", ".join(said)


def _mostly(kind: Kind, case: Case) -> str:
    """The kind of operator that is most of the device's work, where the work is asked for."""
    shares = case.shares
    if kind not in ("compute", "memory") or shares is None or case.study is None:
        return ""
    compute = kind == "compute"
    rows = [r for r in case.study.categories if (r.category in _PRODUCTS) == compute]
    whole = sum(row.device_ns for row in rows)
    top = max(rows, key=lambda row: row.device_ns, default=None)
    if top is None or top.category == "other" or top.device_ns < 0.5 * whole:
        return ""
    return f" (most of it {top.category})"
