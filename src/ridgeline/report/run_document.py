"""A run's summary as the document of `-o result.json`: plain keys, fractions of 1, None unknown."""

from typing import Any

import msgspec

from ridgeline.records.run_summary import RunSummary, StepTimes, Verdict
from ridgeline.report.finite import finite
from ridgeline.report.run_told import next_of
from ridgeline.report.views.findings import findings_data


def document(summary: RunSummary) -> dict[str, Any]:
    found = finite(_document(summary))
    assert isinstance(found, dict)
    return found


def _document(summary: RunSummary) -> dict[str, Any]:
    efficiency = summary.efficiency
    return {
        "schema": summary.schema,
        "verdict": summary.verdict.bound,
        "because": _because(summary.verdict),
        **findings_data(summary.findings),
        "step": _step(summary.step),
        "regions": [_plain(region) for region in summary.regions],
        "throughput": _plain(summary.throughput),
        "mfu": efficiency.mfu,
        "flops": {
            "per_step": efficiency.flops_per_step,
            "per_s": efficiency.flops_s,
            "ceiling": efficiency.ceiling_flops_s,
            "ceiling_name": efficiency.ceiling,
            "ceiling_state": efficiency.ceiling_state or None,
            "coverage": efficiency.coverage,
            "uncounted": list(efficiency.uncounted),
        },
        "memory": _plain(summary.memory),
        "energy": _plain(summary.energy),
        "telemetry": _plain(summary.telemetry),
        "device": summary.device,
        "ranks": summary.ranks,
        "rank_ends": [_plain(end) for end in summary.rank_ends],
        "run_dir": summary.run_dir,
        "bytes_on_disk": summary.bytes_on_disk,
        "name": summary.name,
        "command": summary.command,
        "status": summary.status,
        "why": summary.why,
        "losses": None
        if summary.losses is None
        else {"first": summary.losses[0], "last": summary.losses[1]},
        "loss_broke": summary.loss_broke,
        "out_of_memory": _plain(summary.out_of_memory) if summary.out_of_memory else None,
        "sync_points": [_plain(point) for point in summary.sync_points],
        "recompiles": list(summary.recompiles),
        "graph_breaks": list(summary.graph_breaks),
        "python": None if summary.python is None else _plain(summary.python),
        "missing": list(summary.missing),
        "problems": list(summary.problems),
        "next": list(next_of(summary)),
    }


def _because(verdict: Verdict) -> dict[str, Any]:
    return {
        "sentence": verdict.sentence,
        "numbers": [_plain(number) for number in verdict.numbers],
        "place": verdict.place,
        "confidence": verdict.trust.confidence,
        "why": verdict.trust.why,
    }


def _step(step: StepTimes) -> dict[str, Any]:
    return {
        "median_ms": step.median_ms,
        "ci": None if step.ci is None else list(step.ci),
        "mean_ms": step.mean_ms,
        "phases": {
            phase.phase: {"ms": phase.ms, "ci": list(phase.ci), "share": phase.share}
            for phase in step.phases
        },
        "steps": step.steps,
        "counted": step.counted,
        "taken": step.taken,
        "warmup_steps": step.warmup_steps,
        "compile_steps": list(step.compile_steps),
        "clock": step.clock,
        "stepping": step.stepping,
        "confidence": step.trust.confidence,
        "why": step.trust.why,
    }


def _plain(record: msgspec.Struct) -> Any:
    """Every field, also those at their default: a reader finds each key in each document."""
    return msgspec.to_builtins(record)
