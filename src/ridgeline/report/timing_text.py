"""One timing in a few lines, for `print`."""

from ridgeline.records.latency import Latency
from ridgeline.report.comparison_numbers import median, time
from ridgeline.units import plural


def timing_text(latency: Latency, name: str) -> str:
    """step  12.3 ms [12.1, 12.5] · p95 13 ms · 200 samples of 4 calls · wall"""
    summary = latency.summary
    parts = [median(summary)]
    for label, value in (("p95", summary.p95_ns), ("p99", summary.p99_ns)):
        if value is not None:
            parts.append(f"{label} {time(value)}")
    each = f" of {latency.block_calls:,} calls" if latency.block_calls > 1 else ""
    parts += [f"{plural(summary.count, 'sample')}{each}", latency.clock]
    warnings = list(latency.warnings)
    if not latency.steady and not any("steady" in text for text in warnings):
        warnings.insert(0, "steady state was not reached")
    lines = [f"{name}  {' · '.join(part for part in parts if part)}"]
    return "\n".join([*lines, *(f"  warning: {text}" for text in warnings)])
