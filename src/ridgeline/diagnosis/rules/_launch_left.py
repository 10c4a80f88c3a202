"""How much of the device's waiting for launches no specific fault explains."""

from collections import defaultdict

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import MOST_SHARE, Rule
from ridgeline.diagnosis.rules import (
    clip_by_tensor,
    metrics_by_tensor,
    python_loop,
    unfused_optimizer,
    zero_grad_fill,
)
from ridgeline.diagnosis.rules._launch import WAITS, held_back, kernels, slowed, waiting
from ridgeline.records.op_site import OpSite

LEAST_LEFT = 0.2
"""Of the step: advice that changes how a program is run must clearly pay."""
MANY = 50
"""Launches a step: fewer take the host 0.3 ms or less."""
MOSTLY = 0.5
"""Of the kernels: so many must be small, or the device is not what is too fast."""
SMALL_NS = 10_000.0
"""A kernel this short ends before any host has launched the next one."""
SLOWEST_NS = 100_000.0
"""From one launch to the next: a ResNet-50 took four hosts of H200s 28 to 55 µs a kernel. A host
that takes longer than this does other things besides."""
PAUSE_NS = 1_000_000.0
"""The longest way to a launch: an optimizer's Python over 161 tensors takes 1.1 ms, traced. What
the device waits longer for is something else: a metric in NumPy, an operator on the processor."""
CHANGING = 0.02
"""Of the calls: so many with sizes that are not in every step, and sizes are not fixed."""
_SPECIFIC = (
    (unfused_optimizer.RULE, unfused_optimizer.look),
    (clip_by_tensor.RULE, clip_by_tensor.look),
    (metrics_by_tensor.RULE, metrics_by_tensor.look),
    (python_loop.RULE, python_loop.look),
    (zero_grad_fill.RULE, zero_grad_fill.look),
)


def left(case: Case) -> float:
    """Of the step: the device waits for launches that no specific rule of this family claims."""
    claimed = sum(
        finding.share_pct / 100
        for rule, look in _SPECIFIC
        if _can(case, rule)
        for finding in look(case)
    )
    if case.telemetered.other_processes:
        return 0.0  # others use the device: its waiting is not this program's alone
    return 0.0 if held_back(case) else max(waiting(case) - claimed - pauses(case), 0.0)


def pauses(case: Case) -> float:
    """Of the step: the part of that waiting that lies in few long gaps."""
    idle = case.study.idle if case.study is not None else None
    shown = case.idle(*WAITS)
    if idle is None or not idle.total_ns or not shown:
        return 0.0
    long = sum(max(gap.dur_ns - PAUSE_NS, 0.0) for gap in idle.top if gap.cause in WAITS)
    return waiting(case) * min((1 - (case.busy or 0.0)) * long / idle.total_ns / shown, 1.0)


def bound_of(case: Case, share: float) -> float:
    """Of what ends such waiting. In a trace alone `share` is an estimate: the bound is by the
    waiting the trace shows. What looks like a pause may be launching after all. And no step is
    shorter than the device's work."""
    told, shown = waiting(case), case.idle(*WAITS)
    share = share + pauses(case)
    gone = min(share * shown / told if told else share, MOST_SHARE)
    return min(1 / (1 - gone), 1 / case.busy if case.busy else float("inf"))


def doubt_of(case: Case) -> str:
    """What makes the waiting of a trace alone doubtful."""
    if case.kind == "run":
        return ""
    if case.sites.stacks:
        return "recording Python stacks slows the host, often to half: untraced, the GPU waits less"
    return "recording slows the host a little: untraced, the device waits less"


def mostly_small(case: Case) -> bool:
    """Many kernels a step, and most of them over before the host has launched the next."""
    every = launches(case)
    return every >= MANY and kernels(small(case)) >= MOSTLY * every


def launches(case: Case) -> float:
    """Kernels a step, those of replayed graphs left out."""
    return kernels(case.sites.ops)


def small(case: Case) -> list[OpSite]:
    """Sites whose kernels are shorter than the way to the next launch."""
    pace, found = pace_ns(case), []
    for site in case.sites.ops:
        count = kernels([site])
        if count and site.device_ns / max(count, site.calls) < pace:
            found.append(site)
    return found


def pace_ns(case: Case) -> float:
    """A kernel shorter than this is small. No fixed length is: those of a ResNet-50, 26 µs in the
    mean and 23 % of them under 10, left an H200 waiting 37 % of the step for a host that needs
    40 µs."""
    pace = launch_ns(case)
    return max(pace, SMALL_NS) if pace <= SLOWEST_NS else SMALL_NS


def launch_ns(case: Case) -> float:
    """From one launch to the next, on the host and untraced: what the step takes beside waits for
    anything but launches; 0: not known."""
    many = launches(case)
    if case.busy is None or not many:
        return 0.0
    launching = case.busy + case.idle("launch-bound")
    return launching * case.step_ms * 1e6 / slowed(case) / many


def fixed_sizes(case: Case) -> bool | None:
    """Whether every step calls the same operators with the same sizes; None: not told."""
    steps = case.sites.steps
    if not case.sites.shapes or steps < 2:
        return None
    counts: dict[tuple[str, ...], float] = defaultdict(float)
    for site in case.sites.ops:
        if site.phase in ("forward", "backward", "optimizer"):
            where = f"{site.place.file}:{site.place.line}" if site.place is not None else ""
            key = (site.op, *site.within, str(site.dims), site.module, where, site.phase)
            counts[key] += site.calls
    whole = sum(counts.values())
    changing = sum(n for n in counts.values() if abs(n - round(n)) > 0.1 / steps)
    return changing <= CHANGING * whole if whole else None


def _can(case: Case, rule: Rule) -> bool:
    return all(case.has(need) for need in rule.needs)
