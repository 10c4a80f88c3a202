"""A ledger read as memory: what each kind took, and what was alive at the peak.

Training is accounted in steady state: the optimizer's state exists before forward begins and
gradients do not (zero_grad sets them to None).
"""

from ridgeline.cost.counting.ledger import Entry
from ridgeline.cost.counting.optimizers import OptimizerAccount
from ridgeline.cost.counting.passes import Pass
from ridgeline.records.cost import Backend, LiveTensor, Memory

LARGEST = 12


def memory_of(
    result: Pass, backend: Backend, step: OptimizerAccount | None, training: bool
) -> Memory:
    state = step.state_bytes if step is not None else 0
    kept = [e for e in result.ledger.entries if _is_activation(e, result)]
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
    by_module: dict[str, int] = {}
    for entry in kept:
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
            sum(e.bytes for e in kept) if training else at_peak.get("activations", 0)
        ),
        temporaries_bytes=at_peak.get("temporaries", 0),
        peak_bytes=max(in_pass, in_step) if training else in_pass,
        optimizer=step.name if step is not None else "",
        peak_phase=phase,
        peak_op=op,
        peak_module=module,
        at_peak={kind: size for kind, size in at_peak.items() if size},
        largest_at_peak=() if stepping else _largest(alive, result, training),
        activations_by_module=by_module if training else {},
    )


def _is_activation(entry: Entry, result: Pass) -> bool:
    """Made by forward and still needed when backward begins."""
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
        for e in moving[:LARGEST]
    )  # fmt: skip
