"""How much of the device's waiting for launches no specific fault explains."""

from collections import defaultdict

from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rule import MOST_SHARE, Rule
from ridgeline.diagnose.rules import (
    clip_by_tensor,
    metrics_by_tensor,
    python_loop,
    unfused_optimizer,
    zero_grad_fill,
)
from ridgeline.diagnose.rules._launch import WAITS, held_back, kernels, waiting
from ridgeline.records.op_site import OpSite

LEAST_LEFT = 0.2
"""Of the step: advice that changes how a program is run must clearly pay."""
MANY = 50
"""Launches a step: fewer take the host 0.3 ms or less."""
MOSTLY = 0.5
"""Of the kernels: so many must be small, or the device is not what is too fast."""
SMALL_NS = 10_000.0
"""A kernel this short ends before the next one can be launched."""
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
    return 0.0 if held_back(case) else max(waiting(case) - claimed, 0.0)


def bound_of(case: Case, share: float) -> float:
    """Of what ends such waiting. In a trace alone `share` is an estimate: the bound is by the
    waiting the trace shows. And no step is shorter than the device's work."""
    told, shown = waiting(case), case.idle(*WAITS)
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
    """Many kernels a step, and most of them small."""
    every = launches(case)
    little = kernels(site for site in case.sites.ops if small(site))
    return every >= MANY and little >= MOSTLY * every


def launches(case: Case) -> float:
    """Kernels a step, those of replayed graphs left out."""
    return kernels(case.sites.ops)


def small(site: OpSite) -> bool:
    count = kernels([site])
    return bool(count) and site.device_ns / max(count, site.calls) < SMALL_NS


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
