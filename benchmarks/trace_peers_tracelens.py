"""TraceLens on one trace, as a whole process: run by `trace_peers.py` with a Python that has it.

Loads and builds its tree, then the GPU timeline and the kernel launchers; prints one JSON line.
"""

import importlib.metadata
import json
import sys
import time


def main() -> None:
    begun = time.perf_counter()
    from TraceLens import TreePerfAnalyzer

    took = {"import": time.perf_counter() - begun}
    begun = time.perf_counter()
    loaded = TreePerfAnalyzer.from_file(sys.argv[1])
    took["load"] = time.perf_counter() - begun
    failed = {}
    for name in ("get_df_gpu_timeline", "get_df_kernel_launchers"):
        begun = time.perf_counter()
        try:
            getattr(loaded, name)()
        except Exception as error:  # a failed analysis must not lose the other's time
            failed[name] = type(error).__name__
        took[name] = time.perf_counter() - begun
    versions = f"TraceLens {importlib.metadata.version('TraceLens')}"
    print(
        json.dumps({"versions": versions, "took": took, "failed": failed, "idle_and_all_us": None})
    )


if __name__ == "__main__":
    main()
