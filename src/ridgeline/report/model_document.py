"""A model report as one JSON document. Figures are whole numbers or floats in the unit their name
ends with; null is "not measured", and a reason stands beside it."""

from typing import Any

import msgspec

from ridgeline.records.cost import PHASES, Cost, MeasuredPeak, Memory, ModuleCost, Totals
from ridgeline.records.latency import Latency
from ridgeline.records.model import ModelReport
from ridgeline.report.reason import reason

SCHEMA = "ridgeline.cost.study/1"

CONVENTIONS = {
    "macs": "multiply-accumulates of matmul-like operators; attention over the full square",
    "flops": "2 per MAC, plus FFTs and matrix factorisations",
    "all_flops": "flops, plus elementwise work, norms, softmax and reductions",
    "causal_flops": "flops without what causal attention skips above the diagonal",
    "bytes": "forward, ideal reuse: each operator reads inputs once and writes outputs once",
    "coverage": "percent of those bytes that belong to operators with a formula",
    "scope": "what this process runs (per rank), for the whole batch given",
    "recompute": "forward work done again in backward: checkpointing, and the scores that fused "
    "attention does not keep",
}


def document(report: ModelReport) -> dict[str, Any]:
    cost = report.cost
    forward = cost.phases["forward"]
    return {
        "schema": SCHEMA,
        "target": report.target,
        "model": report.model,
        "inputs": list(report.inputs),
        "samples": report.samples,
        "mode": report.mode,
        "device": {"kind": report.device.kind, "name": report.device.name},
        "dtype": cost.dtype,
        "backend": cost.backend,
        "parameters": report.parameters.total,
        "trainable_parameters": report.parameters.trainable,
        "frozen_parameters": report.parameters.frozen,
        "tied_parameters": report.parameters.tied,
        "parameters_by_dtype": report.parameters.by_dtype,
        "buffers": report.parameters.buffers,
        "macs": _by_phase(cost, "macs"),
        "flops": _by_phase(cost, "flops"),
        "all_flops": _by_phase(cost, "all_flops"),
        "causal_flops": {p: t.flops - t.skipped_flops for p, t in cost.phases.items()},
        "coverage": cost.coverage_percent,
        "bytes": forward.bytes,
        "bytes_by_phase": _by_phase(cost, "bytes"),
        "intensity": forward.flops / forward.bytes if forward.bytes else 0.0,
        "memory": _memory(report.memory, report.measured_peak),
        "memory_by_mode": {
            "inference": _memory(report.inference_memory, None),
            "training": _memory(report.training_memory, None) if report.training_memory else None,
        },
        "latency": _latency(report.latency, report.latency_missing),
        "throughput_per_second": _throughput(report),
        "bottleneck": report.placement.bottleneck,
        "bottleneck_reason": reason(report.placement),
        "roofline": msgspec.to_builtins(report.placement),
        "modules": [_module(m) for m in cost.modules],
        "ops": _ops(cost),
        "unformulated": [msgspec.to_builtins(u) for u in cost.unformulated],
        "sweep": msgspec.to_builtins(report.sweep),
        "fit": msgspec.to_builtins(report.fit),
        "generation": msgspec.to_builtins(report.generation),
        "notes": [*cost.notes, *report.notes],
        "conventions": CONVENTIONS,
    }


def _by_phase(cost: Cost, quantity: str) -> dict[str, int]:
    values: dict[str, int] = {p: int(getattr(cost.phases[p], quantity)) for p in PHASES}
    return {**values, "total": sum(values.values())}


def _throughput(report: ModelReport) -> float | None:
    if report.latency is None:
        return None
    return report.samples / (report.latency.summary.median_ns / 1e9)


def _memory(memory: Memory, measured: MeasuredPeak | None) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(memory)
    found["measured_peak_bytes"] = measured.peak_bytes if measured else None
    found["gap_bytes"] = measured.peak_bytes - memory.peak_bytes if measured else None
    found["measured_by"] = measured.method if measured else None
    return found


def _latency(latency: Latency | None, missing: str) -> dict[str, Any]:
    names = ("median", "ci_low", "ci_high", "mean", "std", "min", "max", "iqr", "p95", "p99")
    if latency is None:
        return {**{f"{n}_ms": None for n in names}, "samples": 0, "reason": missing}
    found: dict[str, Any] = {}
    for name in names:
        value = getattr(latency.summary, f"{name}_ns")
        found[f"{name}_ms"] = None if value is None else value / 1e6
    issue = latency.issue_median_ns
    return {
        **found,
        "samples": latency.summary.count,
        "samples_ms": [s / 1e6 for s in latency.samples_ns],
        "warmup_ms": [s / 1e6 for s in latency.warmup_ns],
        "calls_per_sample": latency.block_calls,
        "steady": latency.steady,
        "clock": latency.clock,
        "wall_median_ms": latency.wall_median_ns / 1e6,
        "issue_median_ms": None if issue is None else issue / 1e6,
        "refused": list(latency.summary.refused),
        "warnings": list(latency.warnings),
    }


def _module(module: ModuleCost) -> dict[str, Any]:
    def of(quantity: str) -> dict[str, int]:
        return {p: int(getattr(module.phases.get(p, Totals()), quantity)) for p in PHASES[:3]}

    return {
        "path": module.path,
        "type": module.type,
        "calls": module.calls,
        "parameters": module.parameters,
        "macs": of("macs"),
        "flops": of("flops"),
        "bytes": of("bytes"),
        "activation_bytes": module.activation_bytes,
    }


def _ops(cost: Cost) -> list[dict[str, Any]]:
    """Operators over all modules, heaviest first."""
    merged: dict[tuple[str, str, str, bool], Totals] = {}
    for op in cost.ops:
        key = (op.op, op.phase, op.dtype, op.formulated)
        merged[key] = merged.get(key, Totals()) + op.totals
    rows = [
        {"op": k[0], "phase": k[1], "dtype": k[2], "formulated": k[3], **msgspec.to_builtins(t)}
        for k, t in merged.items()
    ]
    return sorted(rows, key=lambda r: (-r["flops"], -r["bytes"]))
