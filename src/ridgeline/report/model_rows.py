"""A model report as labelled lines: what the side-by-side table, Markdown and CSV all print."""

from ridgeline import units
from ridgeline.records.cost import PHASES, Memory, Phase
from ridgeline.records.model import ModelReport, Placement


def side_by_side(reports: list[ModelReport]) -> list[tuple[str, str, list[str]]]:
    """(group, label, a value for each model), without lines that are empty for all."""
    columns = [{(g, label): value for g, label, value in rows(r)} for r in reports]
    labels = dict.fromkeys(key for column in columns for key in column)
    lines = [(g, label, [c.get((g, label), "") for c in columns]) for g, label in labels]
    return [line for line in lines if any(line[2])]


def rows(report: ModelReport) -> list[tuple[str, str, str]]:
    """(group, label, value), the same labels in the same order for every model."""
    return [
        *_identity(report),
        *_work(report),
        *_memory(report),
        *_speed(report),
    ]


def share_of_ceiling(place: Placement) -> str:
    """Return the share of the ceiling, such as 38 %, or why there is no share."""
    if place.percent_of_ceiling is not None:
        return f"{units.significant(place.percent_of_ceiling, 2)} %"
    return _NO_SHARE.get(place.ceiling_state, "—")


_NO_SHARE = {
    "disturbed": "not known: the ceiling was measured on a busy machine",
    "exceeded": "not known: ceiling exceeded, probably measured on a busy machine",
}


def _identity(report: ModelReport) -> list[tuple[str, str, str]]:
    p = report.parameters
    return [
        ("model", "target", report.target),
        ("model", "input", " ".join(report.inputs)),
        ("model", "parameters", units.count(p.total)),
        ("model", "trainable", units.count(p.trainable)),
        ("model", "arithmetic", report.cost.dtype),
    ]


def _work(report: ModelReport) -> list[tuple[str, str, str]]:
    cost = report.cost
    forward = cost.phases["forward"]

    def flop(phase: Phase) -> str:
        return units.flop(cost.phases[phase].flops)

    causal = forward.flops - forward.skipped_flops if forward.skipped_flops else 0
    return [
        ("work", "MACs, forward", units.count(forward.macs)),
        ("work", "FLOPs, forward", flop("forward")),
        ("work", "…causal part alone", units.flop(causal) if causal else ""),
        *(("work", f"FLOPs, {p}", flop(p)) for p in PHASES[1:3]),
        ("work", "all FLOPs, forward", units.flop(forward.all_flops)),
        ("work", "bytes, forward", units.bytes_(forward.bytes)),
        ("work", "intensity", f"{units.significant(_intensity(report))} FLOP/B"),
        ("work", "coverage", f"{units.significant(cost.coverage_percent, 4)} %"),
    ]


def _intensity(report: ModelReport) -> float:
    forward = report.cost.phases["forward"]
    return forward.flops / forward.bytes if forward.bytes else 0.0


def _memory(report: ModelReport) -> list[tuple[str, str, str]]:
    memory = report.memory
    found = [
        ("memory", f"{name}, bytes", units.bytes_(size) if size else "")
        for name, size in kinds(memory)
    ]
    found.append(("memory", f"peak, {memory.mode}", units.bytes_(memory.peak_bytes)))
    if report.mode == "inference" and report.training_memory is not None:
        training = report.training_memory
        label = f"peak, training ({training.optimizer})"
        found.append(("memory", label, units.bytes_(training.peak_bytes)))
    if report.measured_peak is not None:
        found.append(("memory", "peak, measured", units.bytes_(report.measured_peak.peak_bytes)))
    if report.fit is not None:
        label = f"largest batch in {units.bytes_(report.fit.budget_bytes)}"
        found.append(("memory", label, str(report.fit.batch)))
    return found


def kinds(memory: Memory) -> list[tuple[str, int]]:
    return [
        ("parameters", memory.parameters_bytes),
        ("buffers", memory.buffers_bytes),
        ("inputs", memory.inputs_bytes),
        ("gradients", memory.gradients_bytes),
        ("optimizer state", memory.optimizer_bytes),
        ("activations", memory.activations_bytes),
        ("temporaries at peak", memory.temporaries_bytes),
    ]


def _speed(report: ModelReport) -> list[tuple[str, str, str]]:
    place = report.placement
    if report.latency is None:
        found = [("speed", "latency", "—")]
    else:
        s = report.latency.summary
        low, high = units.seconds(s.ci_low_ns / 1e9), units.seconds(s.ci_high_ns / 1e9)
        per_second = report.samples / (s.median_ns / 1e9)
        found = [
            ("speed", "latency", units.seconds(s.median_ns / 1e9)),
            ("speed", "95 % interval", f"{low} – {high}"),
            ("speed", "p95", "—" if s.p95_ns is None else units.seconds(s.p95_ns / 1e9)),
            ("speed", "throughput", f"{units.significant(per_second)} samples/s"),
            ("speed", "achieved", units.flops(place.flops_per_second or 0)),
            ("speed", "of the ceiling", share_of_ceiling(place)),
        ]
    return [*found, ("speed", "limited by", place.bottleneck)]
