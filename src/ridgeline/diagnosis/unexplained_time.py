"""The time of a step that no finding explains: how near the step is to its ceiling, and the largest
loss."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case, not_recorded
from ridgeline.diagnosis.limit import winner
from ridgeline.diagnosis.shares import (
    MIN_ROOFLINE_COVERAGE,
    WAITS,
    Kind,
    Shares,
    Wait,
    largest_cause,
    overhead_causes,
)
from ridgeline.diagnosis.step_times import share_of
from ridgeline.records.finding import CodePlace, Finding, Loss, LossNeeds
from ridgeline.records.machine import MAX_SHARE_OF_CEILING

MIN_PART_SHARE = 0.05
"""A smaller part of the step is not named."""
MAX_PARTS = 3
MIN_WAIT_SHARE, MIN_WAIT_SHARE_CPU = 0.2, 0.5
"""If this share of the step is not the model's work, the silence of the rules is no all-clear. On a
CPU, Python and the starts of operators are half of a step of a small model that has no fault."""
MIN_WORKER_SAMPLES = 15
"""Fewer samples do not tell how much of their time workers wait."""
_NAMED_WAITS: tuple[Kind, ...] = ("input", "transfer", "communication")
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
    """Why it is no all-clear that the rules found nothing; empty if it is one, or if they did."""


def remains(case: Case, explained: Mapping[Kind, float] | None = None) -> Remains:
    """Return what the step's time is beside the findings. `explained` is the share of the step that
    findings account for, by kind of waiting."""
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
    known = case.work is not None and case.work.coverage >= MIN_ROOFLINE_COVERAGE
    if known and case.share_of("compute") >= case.share_of("memory"):
        attained, name = _of_the_peak(case)
        if attained is not None:
            return attained, name
    work, busy = case.work, case.busy
    if work is None or busy is None or work.attained is None:
        return None, ""
    told = (work.compute_share or 0.0) + (work.memory_share or 0.0)
    if told < MIN_ROOFLINE_COVERAGE:
        return None, ""
    binds = "memory" if (work.memory_share or 0.0) > (work.compute_share or 0.0) else "arithmetic"
    return work.attained * told * busy, f"roofline ({binds} for most of it)"


def _of_the_peak(case: Case) -> tuple[float | None, str]:
    """Return the share of the arithmetic's peak, and its name. A trace alone has no untraced step:
    its own length is taken."""
    of = case.efficiency
    if of.mfu is not None:
        source = "datasheet" if of.ceiling_source == "datasheet" else "measured here"
        return of.mfu, f"{of.ceiling_dtype} peak ({source})"
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
    least = MIN_WAIT_SHARE if case.on_gpu else MIN_WAIT_SHARE_CPU
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
    """Return the share of each kind of waiting that findings do not explain. A wait of the host may
    hold copies: what a finding explains beyond the overhead counts as transfers, as in the budgets
    of findings."""
    left = {kind: shares.of[kind] - explained.get(kind, 0.0) for kind in WAITS}
    left["transfer"] += min(left["overhead"], 0.0)
    return {kind: max(share, 0.0) for kind, share in left.items()}


def _named_wait(case: Case, shares: Shares, explained: Mapping[Kind, float]) -> str:
    """Return why a wait is unexplained that the verdict is named after, however much of the step is
    work."""
    loaders = case.capture.loaders if case.capture is not None else ()
    fed_beside = case.on_gpu or any(one.workers and one.batches for one in loaders)
    kind = winner(shares, ["input"] if fed_beside else [])
    share = case.share_of(kind)
    left = {str(wait): rest for wait, rest in waits_left(shares, explained).items()}
    if kind not in _NAMED_WAITS or share < MIN_PART_SHARE or left[kind] < share / 2:
        return ""
    known = "; ".join(_known_of(kind, case)) or "nothing recorded tells its cause"
    return f"no rule explains the {_percent(share)} of {_PARTS[kind]}{_cause(kind, case)}: {known}"


def _known_of(kind: Kind, case: Case) -> list[str]:
    """Return what speaks against the usual causes, or for one outside the program."""
    said, view, others = [], case.python, case.telemetered
    if kind == "input" and view is not None and view.worker_samples >= MIN_WORKER_SAMPLES:
        idle = view.worker_idle_samples / view.worker_samples
        if idle > 0.5:
            said.append(f"workers had nothing to do {_percent(idle)} of their time")
    if others.crowded and others.other_cores is not None:
        said.append(f"other programs took {others.other_cores:.1f} of {others.cores} cores")
    return said


def _cause(kind: Kind, case: Case) -> str:
    """Return the largest of the device's waits that counts as this kind, in words."""
    if not case.on_gpu:
        return ""
    top = largest_cause(case.study, kind)
    if top is None:
        return ""
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
    largest = sorted(named, key=lambda part: -part[0])[:MAX_PARTS]
    said = [f"{name} {_percent(share)}{mostly}"
            for share, name, mostly in largest if share >= MIN_PART_SHARE]  # fmt: skip
    return ", ".join(said)


def _mostly(kind: Kind, case: Case) -> str:
    """Return the kind of operator that is most of the device's work, in words."""
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


MIN_SHARE = 0.1
"""A loss of a smaller share of the step is not worth a line."""
MIN_OWN_CODE_SHARE_CPU = 0.2
"""On a CPU, the program's own code outside model, loss and optimizer is reported from this share of
the step on, without the time that other processes took. A loop that logs and schedules takes a
tenth of a short step in any program."""
MIN_OVERHEAD_SHARE_CPU = 0.5
"""On a CPU, Python and the starts of operators are reported from this share of the step on, without
the time that other processes took. They take half of the step of a small model that has no fault.
"""
MIN_PAUSE_SHARE = 0.2
"""Pauses are reported from this share of all time on. Evaluations and checkpoints that take less
are normal in training."""
MIN_SHARE_BESIDE_FINDING = 0.3
"""A loss of this share of the step is reported even where a finding explains a larger part."""
MAX_PLACES = 3
PAUSES_RULE = "idle-between-epochs"
MIN_PLACE_PCT = 3.0


def largest_loss(
    case: Case, explained: Mapping[Kind, float], findings: Sequence[Finding]
) -> Loss | None:
    """Return the largest loss that no finding explains, or None. `explained` is the share of the
    step that findings account for, by kind of waiting."""
    if case.shares is None or not_recorded(case):
        return None
    told = max((f.share_pct / 100 for f in findings if not f.shares_with), default=0.0)
    candidates = [one for one in (_pauses(case, findings), _waiting(case, explained)) if one]
    largest = max(candidates, key=lambda loss: loss.share_pct, default=None)
    if largest is None or largest.share_pct < 100 * min(told, MIN_SHARE_BESIDE_FINDING):
        return None
    # A pause is the program's own code too: the finding about a larger one has said where.
    paused = max((f.share_pct for f in findings if f.rule == PAUSES_RULE), default=0.0)
    if largest.kind == "overhead" and largest.share_pct <= paused:
        return None
    return largest


def _pauses(case: Case, findings: Sequence[Finding]) -> Loss | None:
    """Return the loss in pauses, which the step time leaves out: a share of all time, not of the
    step. Return None if it is small or has a finding."""
    share = case.times.pause_share
    if share < MIN_PAUSE_SHARE or any(f.rule == PAUSES_RULE for f in findings):
        return None
    spent: Counter[str] = Counter()
    for step in case.pauses:
        spent.update({str(phase): ns for phase, ns in step.host.items()})
    [(phase, _)] = spent.most_common(1) or [("", 0)]
    return Loss(share_pct=round(100 * share, 1), kind="pauses", phase=phase, needs=_needs(case))


def _waiting(case: Case, explained: Mapping[Kind, float]) -> Loss | None:
    assert case.shares is not None
    if case.on_gpu and case.shares.busy >= SATURATED:
        return None
    left = waits_left(case.shares, explained)
    kind: Wait = max(left, key=lambda one: left[one])
    own = min(_own_share(case), left["overhead"])
    undisturbed = max(1 - case.shares.preempted, 1e-9)
    least = MIN_OVERHEAD_SHARE_CPU * undisturbed
    if not case.on_gpu and kind == "overhead" and left[kind] < least:
        if own < MIN_OWN_CODE_SHARE_CPU * undisturbed:
            return None
        left[kind] = own
    if left[kind] < MIN_SHARE:
        return None
    overhead = kind == "overhead"
    return Loss(
        share_pct=round(100 * left[kind], 1),
        kind=kind,
        cause=_idle_cause(case, kind),
        own_code_pct=round(100 * own, 1) if overhead else 0.0,
        places=_places(case, own) if overhead else (),
        needs=_needs(case) if overhead else "",
    )


def _own_share(case: Case) -> float:
    """Return the share of the step in the program's own Python code. On a GPU only the part counts
    that the device waits for. On a CPU the light window tells what is outside the training phases,
    and the trace tells the rest."""
    if case.on_gpu:
        return case.idle("other host")
    traced = case.host_share(case.sites.own_code.ns)
    return max(share_of(case.times, "other"), traced) if case.times.phases else traced


def _places(case: Case, own: float) -> tuple[CodePlace, ...]:
    """Return the user's functions that take the time, or their lines if Python was sampled. On a
    GPU return the places at which the device waits for the host."""
    if case.on_gpu:
        return _idle_places(case)
    asked = case.run is not None and case.run.settings.python
    if asked and case.python is not None:
        lines = [one for one in case.python.lines if one.process == "main" and one.file]
        left = 100 * (1 - (case.shares.preempted if case.shares is not None else 0.0))
        named = [(one.file, one.line, one.function, left * one.share) for one in lines]
    else:
        code = case.sites.own_code
        whole = code.ns or 1.0
        named = [
            (place.file, place.line, place.function, 100 * own * ns / whole)
            for place, ns in code.places
        ]
    found = [
        CodePlace(file=file, line=line, function=function, share_pct=round(share, 1))
        for file, line, function, share in named
        if share >= MIN_PLACE_PCT
    ]
    return tuple(found[:MAX_PLACES])


def _idle_places(case: Case) -> tuple[CodePlace, ...]:
    """Return the first place of each cause of idling that counts as overhead. Causes at the same
    place are added up."""
    shares: defaultdict[tuple[str, int, str], float] = defaultdict(float)
    for cause in overhead_causes(case.study) if case.study is not None else ():
        if cause.places:
            at = cause.places[0]
            shares[at.file, at.line, at.function] += 100 * case.idle(cause.cause)
    found = [
        CodePlace(file=file, line=line, function=function, share_pct=round(share, 1))
        for (file, line, function), share in sorted(shares.items(), key=lambda item: -item[1])[
            :MAX_PLACES
        ]
        if share >= MIN_PLACE_PCT
    ]
    return tuple(found)


def _needs(case: Case) -> LossNeeds:
    """Return what the user has to record to learn more, or "" if nothing would help."""
    if case.kind == "trace":
        return "" if case.sites.stacks else "stacks"
    asked = case.run is not None and case.run.settings.python
    return "" if asked else "python"


def _idle_cause(case: Case, kind: Kind) -> str:
    """Return the largest cause of the device's waiting of this kind, or "" if it is not known."""
    cause = largest_cause(case.study, kind) if case.on_gpu else None
    return cause.cause if cause is not None else ""
