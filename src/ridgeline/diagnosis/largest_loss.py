"""The largest part of the time that no finding explains: how much, where, and what would tell more.

A report with one finding of 1.07 × and 76 % of the step unmentioned misleads. So where no finding
explains the largest loss, the report names it with all that is known of it. A busy device, or a
loss too small to matter, is not worth a line.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence

from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.recorded import not_recorded
from ridgeline.diagnosis.remains import waits_left
from ridgeline.diagnosis.shares import Kind, Wait, kind_of, overhead_causes
from ridgeline.diagnosis.step_times import share_of
from ridgeline.records.finding import CodePlace, Finding, Loss, LossNeeds

MIN_SHARE = 0.1
"""A loss of a smaller share of the step is not worth a line."""
MIN_OWN_CODE_SHARE_CPU = 0.2
"""On a CPU, the program's own code outside model, loss and optimizer is reported from this share of
the step on. A loop that logs and schedules takes a tenth of a short step in any program."""
MIN_OVERHEAD_SHARE_CPU = 0.5
"""On a CPU, Python and the starts of operators are reported from this share of the step on. They
take half of the step of a small model that has no fault."""
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
    if not case.on_gpu and kind == "overhead" and left[kind] < MIN_OVERHEAD_SHARE_CPU:
        if own < MIN_OWN_CODE_SHARE_CPU:
            return None
        left[kind] = own
    if left[kind] < MIN_SHARE:
        return None
    overhead = kind == "overhead"
    return Loss(
        share_pct=round(100 * left[kind], 1),
        kind=kind,
        cause=_cause(case, kind),
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


def _cause(case: Case, kind: Kind) -> str:
    """Return the largest cause of the device's waiting of this kind, or "" if it is not known."""
    if not case.on_gpu or case.study is None:
        return ""
    found = [c for c in case.study.idle.causes if c.ns > 0 and kind_of(c.cause) == kind]
    return max(found, key=lambda cause: cause.ns).cause if found else ""
