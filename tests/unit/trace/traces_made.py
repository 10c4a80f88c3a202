"""Small traces built event by event, in the form torch writes them (times in microseconds)."""

import gzip
import json
from pathlib import Path
from typing import Any

from ridgeline.trace.reading.reader import parse
from ridgeline.trace.trace import Trace

HOST, AUTOGRAD, WORKER = 100, 101, 102
"""Thread ids: the main thread, the backward thread, another."""


class Made:
    """Collects events; `trace(folder)` writes and reads them."""

    def __init__(self, **beside: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.beside: dict[str, Any] = {"schemaVersion": 1, "deviceProperties": [], **beside}
        self._next = 0

    def event(self, cat: str, name: str, ts: float, dur: float, tid: Any, pid: Any = 100,
              **args: Any) -> "Made":  # fmt: skip
        self.events.append(
            {"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur,
             "args": args}
        )  # fmt: skip
        return self

    def op(self, name: str, ts: float, dur: float, tid: int = HOST, **args: Any) -> "Made":
        self._next += 1
        return self.event("cpu_op", name, ts, dur, tid, **{"External id": self._next, **args})

    def span(self, name: str, ts: float, dur: float, tid: int = HOST, **args: Any) -> "Made":
        return self.event("user_annotation", name, ts, dur, tid, **args)

    def frame(self, name: str, ts: float, dur: float, tid: int = HOST, **args: Any) -> "Made":
        self._next += 1
        ids = {"Python id": self._next, "Python parent id": None}
        return self.event("python_function", name, ts, dur, tid, **{**ids, **args})

    def call(self, name: str, ts: float, dur: float, correlation: int, tid: int = HOST,
             **args: Any) -> "Made":  # fmt: skip
        return self.event("cuda_runtime", name, ts, dur, tid, correlation=correlation, **args)

    def kernel(self, name: str, ts: float, dur: float, correlation: int = 0, device: int = 0,
               stream: int = 7, cat: str = "kernel", **args: Any) -> "Made":  # fmt: skip
        return self.event(cat, name, ts, dur, stream, pid=device, device=device, stream=stream,
                          correlation=correlation, **args)  # fmt: skip

    def launch(self, name: str, at: float, ts: float, dur: float, correlation: int,
               tid: int = HOST, **args: Any) -> "Made":  # fmt: skip
        """A cudaLaunchKernel of 5 µs at `at`, and its kernel."""
        self.call("cudaLaunchKernel", at, 5, correlation, tid)
        return self.kernel(name, ts, dur, correlation, **args)

    def allocation(self, ts: float, size: int, allocated: int, device: int = 0) -> "Made":
        self.events.append(
            {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 100,
             "tid": HOST, "ts": ts, "args": {"Total Reserved": -1, "Total Allocated": allocated,
             "Bytes": size, "Device Id": device, "Device Type": 1}}
        )  # fmt: skip
        return self

    def document(self) -> dict[str, Any]:
        return {**self.beside, "traceEvents": self.events, "traceName": "made.json"}

    def trace(self, folder: Path, name: str = "made.json") -> Trace:
        return parse(self.write(folder, name))

    def write(self, folder: Path, name: str = "made.json") -> Path:
        path = folder / name
        text = json.dumps(self.document()).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path


def steady(kernels: int = 300) -> Made:
    """Three steps of kernels alike, 20 µs apart: no single event counts for much in a headline."""
    made = Made()
    start = 1419247336000.125
    for step in range(3):
        made.span(f"ProfilerStep#{step}", start + step * 20 * kernels / 3, 20 * kernels / 3)
    for index in range(kernels):
        at = start + 20 * index
        made.op(f"aten::op{index % 5}", at, 15.5).call("cudaLaunchKernel", at + 2, 5.25, index + 1)
        made.kernel(f"kernel{index % 5}", at + 10.375, 12.5 + index % 5, index + 1)
    made.call("cudaDeviceSynchronize", start + 20 * kernels, 30.5, kernels + 1)
    return made
