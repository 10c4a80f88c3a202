"""HTA on one trace, as a whole process; `trace_peers.py` runs it with the Python of HTA's own
environment.

    HTA_DISABLE_NS_ROUNDING=1 python benchmarks/trace_peers_hta.py TRACE

Loads, then the four analyses that answer what `ridgeline trace` also answers; prints one JSON line.
The last profiler step is included, which HTA by default drops, so that both see the same events.
"""

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable
from typing import Any

ANALYSES: dict[str, Callable[[Any], Any]] = {
    "temporal": lambda a: a.get_temporal_breakdown(visualize=False),
    "idle": lambda a: a.get_idle_time_breakdown(ranks=[0], visualize=False),
    "kernels": lambda a: a.get_gpu_kernel_breakdown(visualize=False),
    "overlap": lambda a: a.get_comm_comp_overlap(visualize=False),
}


def version() -> str:
    for name in ("tracesinght", "HolisticTraceAnalysis"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "unknown"


def main() -> None:
    begun = time.perf_counter()
    import hta.common.trace as loading
    from hta.trace_analysis import TraceAnalysis

    took = {"import": time.perf_counter() - begun}
    marking = loading.add_iteration

    def timed(*args: Any) -> Any:
        begun = time.perf_counter()
        found = marking(*args)
        took["of that step marks"] = time.perf_counter() - begun
        return found

    # It tries every step for every event, and growing a trace multiplies its steps: shown apart.
    loading.add_iteration = timed
    begun = time.perf_counter()
    loaded = TraceAnalysis(trace_files={0: sys.argv[1]}, include_last_profiler_step=True)
    took["load"] = time.perf_counter() - begun
    took["of that step marks"] = took.pop("of that step marks", 0.0)  # after the whole
    failed, busy_us = {}, None
    for name, analysis in ANALYSES.items():
        begun = time.perf_counter()
        try:
            found = analysis(loaded)
            if name == "temporal":
                row = found.iloc[0]
                busy_us = [float(row["idle_time(us)"]), float(row["kernel_time(us)"])]
        except Exception as error:  # a failed analysis must not lose the others' times
            failed[name] = type(error).__name__
        took[name] = time.perf_counter() - begun
    versions = f"{version()}, pandas {importlib.metadata.version('pandas')}"
    print(
        json.dumps(
            {"versions": versions, "took": took, "failed": failed, "idle_and_all_us": busy_us}
        )
    )


if __name__ == "__main__":
    main()
