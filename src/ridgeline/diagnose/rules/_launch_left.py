"""How much of the device's waiting for launches no specific fault explains."""

from collections import defaultdict

from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rule import Rule
from ridgeline.diagnose.rules import (
    clip_by_tensor,
    metrics_by_tensor,
    python_loop,
    unfused_optimizer,
    zero_grad_fill,
)
from ridgeline.diagnose.rules._launch import WAITS, held_back, kernels
from ridgeline.records.op_site import OpSite

LEAST_LEFT = 0.2
"""Of the step: advice that changes how a program is run must clearly pay."""
MANY = 50
"""Launches a step: fewer take the host 0.3 ms or less."""
MOSTLY = 0.5
"""Of the kernels: so many must be small, or the device is not what is too fast."""
SLOWED = {True: 1.5, False: 1.15}
"""A traced step's length on the host against an untraced one's, with Python stacks and without:
with them 1.17 on an H200 alone, 1.6 where several programs shared it; without, a guess. For traces
alone, where no untraced step is known."""
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
    return 0.0 if held_back(case) else max(_waiting(case) - claimed, 0.0)


def _waiting(case: Case) -> float:
    waits, busy = case.idle(*WAITS), case.busy
    if case.kind == "run" or busy is None or busy >= 1:
        return waits
    return waits * max(1 - SLOWED[case.sites.stacks] * busy, 0.0) / (1 - busy)


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
