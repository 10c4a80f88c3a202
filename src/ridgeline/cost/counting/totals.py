"""Tallies summed into a Cost: by phase, by operator, by module, with what was not counted."""

import torch

from ridgeline.cost.counting.counter import Site, Tally
from ridgeline.cost.counting.modules import display_path
from ridgeline.cost.counting.optimizers import OptimizerAccount
from ridgeline.cost.counting.parameters import count_by_module
from ridgeline.cost.counting.passes import Pass
from ridgeline.records.cost import (
    PHASES,
    Backend,
    Cost,
    ModuleCost,
    OpCost,
    Phase,
    Totals,
    Unformulated,
)


def cost_of(
    model: torch.nn.Module,
    result: Pass,
    backend: Backend,
    step: OptimizerAccount | None,
    activations: dict[str, int],
    notes: tuple[str, ...],
) -> Cost:
    tallies = dict(result.mode.tallies)
    if step is not None and step.mode is not None:
        tallies.update(step.mode.tallies)
    ops = tuple(
        OpCost(op=s.op, phase=s.phase, dtype=s.dtype, module=s.module, totals=_totals(t),
               formulated=s.formulated)
        for s, t in tallies.items()
    )  # fmt: skip
    modules = _by_module(model, result, tallies, activations)
    return assemble(ops, modules, backend, (*notes, *_notes(result, backend)))


def assemble(
    ops: tuple[OpCost, ...],
    modules: tuple[ModuleCost, ...],
    backend: Backend,
    notes: tuple[str, ...],
) -> Cost:
    coverage, missing = _coverage(ops)
    return Cost(
        backend=backend,
        phases={p: sum((o.totals for o in ops if o.phase == p), Totals()) for p in PHASES},
        ops=ops,
        modules=modules,
        coverage_percent=coverage,
        unformulated=missing,
        dtype=_arithmetic(ops),
        notes=notes,
    )


def _totals(tally: Tally) -> Totals:
    return Totals(
        calls=tally.calls, macs=tally.macs, flops=tally.flops, all_flops=tally.all_flops,
        bytes=tally.bytes, skipped_flops=tally.skipped_flops,
    )  # fmt: skip


def _coverage(ops: tuple[OpCost, ...]) -> tuple[float, tuple[Unformulated, ...]]:
    """By bytes: the one size that an operator without a formula has too."""
    # an optimizer moves much and computes little: it would hide what the model lacks
    ops = tuple(o for o in ops if o.phase != "optimizer")
    missing: dict[str, Totals] = {}
    for op in ops:
        if not op.formulated:
            missing[op.op] = missing.get(op.op, Totals()) + op.totals
    moved = sum(o.totals.bytes for o in ops)
    uncounted = sum(t.bytes for t in missing.values())
    percent = 100.0 if moved == 0 else 100.0 * (moved - uncounted) / moved
    if missing and percent == 100.0:
        percent = 99.99  # never a silent hundred
    rows = [Unformulated(op=n, calls=t.calls, bytes=t.bytes) for n, t in missing.items()]
    return percent, tuple(sorted(rows, key=lambda r: -r.bytes))


def _arithmetic(ops: tuple[OpCost, ...]) -> str:
    work: dict[str, int] = {}
    for op in ops:
        if op.phase == "forward":
            work[op.dtype] = work.get(op.dtype, 0) + (op.totals.flops << 20) + op.totals.all_flops
    return max(work, key=lambda d: work[d], default="float32")


def _by_module(
    model: torch.nn.Module,
    result: Pass,
    tallies: dict[Site, Tally],
    activations: dict[str, int],
) -> tuple[ModuleCost, ...]:
    inclusive: dict[str, dict[Phase, Totals]] = {}
    for site, tally in tallies.items():
        if site.phase == "optimizer":
            continue
        totals = _totals(tally)
        for path in _ancestors(site.module):
            phases = inclusive.setdefault(path, {})
            phases[site.phase] = phases.get(site.phase, Totals()) + totals
    kept: dict[str, int] = {}
    for module, amount in activations.items():
        for path in _ancestors(module):
            kept[path] = kept.get(path, 0) + amount
    parameters = {display_path(p): n for p, n in count_by_module(model).items()}
    return tuple(
        ModuleCost(
            path=path,
            type=kind,
            calls=result.modules.calls.get(path, 0),
            parameters=parameters.get(path, 0),
            phases=inclusive.get(path, {}),
            activation_bytes=kept.get(path, 0),
        )
        for path, kind in result.modules.types.items()
    )


def _ancestors(path: str) -> list[str]:
    """ "a.b.c" belongs to itself, "a.b", "a" and the model."""
    if not path:
        return [""]
    parts = path.split(".")
    return ["", *(".".join(parts[: i + 1]) for i in range(len(parts)))]


def _notes(result: Pass, backend: Backend) -> tuple[str, ...]:
    notes = sorted(result.mode.assumptions)
    if "MultiheadAttention" in result.modules.types.values() and not result.training:
        notes.append("nn.MultiheadAttention counted without its inference fast path")
    if result.fused_attention:
        notes.append(f"{result.fused_attention} attention calls counted as fused, as on a GPU")
    if result.mode.global_flops:
        notes.append(
            "counted per rank: distributed tensors as this rank runs them; over all ranks their "
            f"forward is {result.mode.global_flops:.4g} FLOPs"
        )
    for op, words in result.mode.failed.items():
        notes.append(f"{op} has a formula that could not read this call: {words}")
    return tuple(notes)
