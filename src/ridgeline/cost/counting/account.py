"""The account of one counted pass: its cost (`cost_of`) and its memory (`memory_of`).

`count` runs the pass and returns both. Memory in training is that of the steady state: the state of
the optimizer exists before forward begins, and gradients do not, because zero_grad sets them to
None.
"""

from typing import Any, Literal

import torch
from msgspec import Struct
from torch.nn.parameter import is_lazy

from ridgeline.cost.counting.counter import Site, Tally, display_path
from ridgeline.cost.counting.kernel_memory import unknown_kernel, workspace_bytes
from ridgeline.cost.counting.ledger import Entry
from ridgeline.cost.counting.parameters import OptimizerAccount, count_by_module, count_parameters
from ridgeline.cost.counting.passes import Pass, device_of, run_pass
from ridgeline.records.cost import (
    PHASES,
    Backend,
    Cost,
    LiveTensor,
    Memory,
    ModuleCost,
    OpCost,
    Parameters,
    Phase,
    Totals,
    Unformulated,
)

MAX_LIVE_TENSORS = 12


def memory_of(
    result: Pass, backend: Backend, step: OptimizerAccount | None, training: bool
) -> Memory:
    state = step.state_bytes if step is not None else 0
    ops = {site.op for site in result.mode.tallies}
    workspaces = workspace_bytes(result.device, training, ops)
    unknown = {op for op in ops if unknown_kernel(result.device, op)}
    activations = [e for e in result.ledger.entries if _is_activation(e, result)]
    in_pass = result.ledger.peak_bytes + state
    in_step = result.end_bytes + state + (step.temporary_bytes if step else 0)
    stepping = training and in_step > in_pass
    alive = _at_peak(result)
    at_peak = _by_kind(alive, result, training)
    if result.ledger.peak_transient_bytes:
        inside = result.ledger.peak_transient_bytes
        at_peak["temporaries"] = at_peak.get("temporaries", 0) + inside
    phase, op, module = result.ledger.peak_context
    if stepping:
        still_held = result.end_bytes - sum(result.static_bytes.values()) - result.gradient_bytes
        at_peak = {
            **result.static_bytes,
            "gradients": result.gradient_bytes,
            "activations": still_held,  # the output, which the caller still holds
            "temporaries": step.temporary_bytes if step else 0,
        }
        phase, op, module = "optimizer", "", ""
    if state:
        at_peak["optimizer"] = state
    if workspaces:
        at_peak["workspaces"] = workspaces
    by_module: dict[str, int] = {}
    for entry in activations:
        by_module[entry.module] = by_module.get(entry.module, 0) + entry.bytes
    return Memory(
        mode="training" if training else "inference",
        source="predicted",
        backend=backend,
        parameters_bytes=result.static_bytes["parameters"],
        buffers_bytes=result.static_bytes["buffers"],
        inputs_bytes=result.static_bytes["inputs"],
        gradients_bytes=result.gradient_bytes,
        optimizer_bytes=state,
        activations_bytes=(
            sum(e.bytes for e in activations) if training else at_peak.get("activations", 0)
        ),
        temporaries_bytes=at_peak.get("temporaries", 0),
        peak_bytes=(max(in_pass, in_step) if training else in_pass) + workspaces,
        workspaces_bytes=workspaces,
        optimizer=step.name if step is not None else "",
        peak_phase=phase,
        peak_op=op,
        peak_module=module,
        at_peak={kind: size for kind, size in at_peak.items() if size},
        largest_at_peak=() if stepping else _largest(alive, result, training),
        activations_by_module=by_module if training else {},
        unpredicted=tuple(sorted(unknown | result.ledger.unpredicted)),
    )


def _is_activation(entry: Entry, result: Pass) -> bool:
    """Return whether forward made a tensor that is still needed when backward begins."""
    return (
        entry.kind == "intermediate"
        and entry.born <= result.forward_end
        and (entry.died is None or entry.died > result.forward_end)
    )


def _kind(entry: Entry, result: Pass, training: bool) -> str:
    if entry.kind != "intermediate":
        return entry.kind
    if not training:
        return "activations"
    return "activations" if _is_activation(entry, result) else "temporaries"


def _at_peak(result: Pass) -> list[Entry]:
    return result.ledger.alive_at(result.ledger.peak_event)


def _by_kind(alive: list[Entry], result: Pass, training: bool) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for entry in alive:
        kind = _kind(entry, result, training)
        sizes[kind] = sizes.get(kind, 0) + entry.bytes
    return sizes


def _largest(alive: list[Entry], result: Pass, training: bool) -> tuple[LiveTensor, ...]:
    moving = [e for e in alive if e.kind not in ("parameters", "buffers")]
    moving.sort(key=lambda e: -e.bytes)
    return tuple(
        LiveTensor(
            kind=_kind(e, result, training), bytes=e.bytes, shape=e.shape, dtype=e.dtype,
            op=e.op, module=e.module,
        )
        for e in moving[:MAX_LIVE_TENSORS]
    )  # fmt: skip


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
    """Return the coverage in percent and the operators without a formula. Coverage is by moved
    bytes, which are known without a formula too."""
    # The optimizer moves much and computes little: it would hide missing formulas of the model.
    ops = tuple(o for o in ops if o.phase != "optimizer")
    missing: dict[str, Totals] = {}
    for op in ops:
        if not op.formulated:
            missing[op.op] = missing.get(op.op, Totals()) + op.totals
    moved = sum(o.totals.bytes for o in ops)
    uncounted = sum(t.bytes for t in missing.values())
    percent = 100.0 if moved == 0 else 100.0 * (moved - uncounted) / moved
    if missing and percent == 100.0:
        percent = 99.99  # 100 % is only reported if nothing is missing
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
    """Return the modules that contain "a.b.c": the model "", "a", "a.b" and itself."""
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
    for op, error in result.mode.failed.items():
        notes.append(f"{op} has a formula that could not read this call: {error}")
    return tuple(notes)


def join(inference: Cost, training: Cost) -> Cost:
    """Return the cost with the forward of inference and the other phases of training."""
    by_path = {m.path: m for m in inference.modules}
    ops = (
        *(o for o in inference.ops if o.phase == "forward"),
        *(o for o in training.ops if o.phase != "forward"),
    )
    modules = tuple(_joined_module(by_path.get(m.path), m) for m in training.modules)
    notes = tuple(dict.fromkeys((*inference.notes, *training.notes)))
    return assemble(ops, modules, inference.backend, notes)


def _joined_module(inference: ModuleCost | None, training: ModuleCost) -> ModuleCost:
    phases: dict[Phase, Totals] = {p: t for p, t in training.phases.items() if p != "forward"}
    if inference is not None and "forward" in inference.phases:
        phases = {"forward": inference.phases["forward"], **phases}
    return ModuleCost(
        path=training.path,
        type=training.type,
        calls=inference.calls if inference is not None else training.calls,
        parameters=training.parameters,
        phases=phases,
        activation_bytes=training.activation_bytes,
    )


class Account(Struct, frozen=True, kw_only=True):
    """The parameters, cost and memory of one pass of a model with one set of inputs."""

    parameters: Parameters
    cost: Cost
    memory: Memory


def count(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    backend: Literal["auto", "real", "fake", "meta"] = "auto",
    training: bool = False,
    optimizer: str = "",
    accumulating: bool = False,
    known_step: OptimizerAccount | None = None,
) -> Account:
    """Run the model once under the counter, and return what it costs.

    `backend` chooses the tensors: "fake" and "meta" compute nothing, and "real" runs the model.
    "auto" chooses meta for a model on meta and fake for others, and falls back to real if the model
    needs values that fake tensors do not have. With `training`, forward and backward run in train
    mode, and `optimizer` adds its step; `known_step` is its account if it was made before. With
    `accumulating`, the gradients of an earlier micro-batch exist when forward begins. Otherwise the
    model runs in eval mode without gradients.
    """
    kwargs = kwargs or {}
    notes: list[str] = []
    if any(is_lazy(p) for p in model.parameters()):
        with torch.no_grad():  # lazy modules get their shapes from a first batch
            model(*args, **kwargs)
    result, used = _run(model, args, kwargs, backend, training, notes, accumulating)
    step = None
    if known_step is not None:
        step = known_step
    elif training and optimizer:
        parameters = list(model.parameters())
        trained = [parameters[position] for position in result.trained]
        # torch steps lists of tensors on a GPU by default, and one tensor at a time on a CPU.
        foreach = device_of(model, args, kwargs).type in ("cuda", "meta")
        step = OptimizerAccount(optimizer, trained, foreach)
        if step.estimated:
            notes.append(f"{step.name}: state estimated from its format, step not counted")
    notes += result.notes
    memory = memory_of(result, used, step, training)
    cost = cost_of(model, result, used, step, memory.activations_by_module, tuple(notes))
    return Account(parameters=count_parameters(model), cost=cost, memory=memory)


def _run(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    backend: Literal["auto", "real", "fake", "meta"],
    training: bool,
    notes: list[str],
    accumulating: bool = False,
) -> tuple[Pass, Backend]:
    if backend != "auto":
        return run_pass(model, args, kwargs, backend, training, accumulating), backend
    first: Backend = "meta" if device_of(model, args, kwargs).type == "meta" else "fake"
    try:
        return run_pass(model, args, kwargs, first, training, accumulating), first
    except Exception as error:
        if first == "meta":
            raise
        # A real run decides: the model runs, or raises its own error.
        result = run_pass(model, args, kwargs, "real", training, accumulating)
        lines = str(error).strip().splitlines()
        notes.append(f"counted on a real run: {lines[0][:200] if lines else type(error).__name__}")
        return result, "real"
