"""Twelve small traces, each in the form of a sort that exists: what damage is done to in tests."""

import json
from typing import Any

from traces_made import AUTOGRAD, HOST, WORKER, Made

STEPS = 6


def alike() -> dict[str, bytes]:
    """Documents by name."""
    return {
        "training": dense(_training().document()),
        "training, indented": indented(_training().document()),
        "training, a key a line": json.dumps(_training().document(), indent=1).encode(),
        "stacks and shapes": dense(_stacks().document()),
        "inference, metadata after": dense(_after(_stacks().document())),
        "capitalised": dense(_capitalised()),
        "before Kineto": dense(_bare_categories()),
        "bare array": dense(_training().events),
        "AMD graph": indented(_graphs().document()),
        "processor only": dense(_processor().document()),
        "ranks": indented(_collectives().document()),
        "memory and arrows": dense(_memory().document()),
    }


def dense(document: Any) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def indented(document: dict[str, Any]) -> bytes:
    """Kineto's layout: an event over several lines, its arguments on one."""
    events = []
    for event in document["traceEvents"]:
        lines = [f'"{key}": {json.dumps(value)}' for key, value in event.items() if key != "args"]
        args = json.dumps(event.get("args", {}))
        events.append("  {\n    " + ", ".join(lines) + ',\n    "args": {\n      ' + args[1:-1]
                      + "\n    }\n  }")  # fmt: skip
    beside = {k: v for k, v in document.items() if k != "traceEvents"}
    head = json.dumps(beside, indent=2)[:-2]
    return (
        head + ',\n  "traceEvents": [\n' + ",\n".join(events) + '\n  ],\n  "x": 1\n}\n'
    ).encode()


def _training() -> Made:
    made = Made(baseTimeNanoseconds=1_700_000_000_000_000_000)
    for step in range(STEPS):
        at = 3_800_000_000_000 + step * 1000 + 0.125
        made.span(f"ProfilerStep#{step}", at, 990)
        made.op("aten::addmm", at + 10, 100, **{"Input Dims": [[2, 3], [], [3, 4]], "Ev Idx": 3})
        made.launch("sgemm_128x64", at + 20, at + 60, 200.5, step + 1, grid=[1, 2, 3])
        made.op("AddmmBackward0", at + 400, 80, AUTOGRAD, **{"Fwd thread id": 1})
        made.launch("sgemm_nt", at + 410, at + 450, 300, 100 + step, tid=AUTOGRAD)
    return _named(made)


def _stacks() -> Made:
    made = Made(with_stack=1, record_shapes=1)
    for step in range(STEPS):
        at = step * 1000.0
        made.frame("train.py(12): step", at, 900)
        made.frame("nn.Module: Linear_0", at + 1, 500, **{"Python module id": 0})
        made.op("aten::linear", at + 5, 400, **{
            "Input Dims": [[32, 128], [64, 128]], "Input type": ["float", "float"],
            "Concrete Inputs": ["", "[1, 2]"], "Call stack": "a.py(3): f;b.py(9): g"})  # fmt: skip
        made.launch("ampere_sgemm", at + 20, at + 40, 10.001, step, block=[256, 1, 1])
    return made


def _after(document: dict[str, Any]) -> dict[str, Any]:
    events = {"traceEvents": document.pop("traceEvents")}
    listed = {"deviceProperties": [{"id": 0, "name": "H100", "numSms": 132}, {"id": 1}]}
    return events | document | listed


def _capitalised() -> dict[str, Any]:
    document = _training().document()
    old = {"cpu_op": "Operator", "kernel": "Kernel", "cuda_runtime": "Runtime"}
    for event in document["traceEvents"]:
        event["cat"] = old.get(event.get("cat", ""), "Trace")
        event["tid"] = str(event["tid"])
        event["ts"] = int(event.get("ts", 0))
    return document


def _bare_categories() -> list[dict[str, Any]]:
    return [
        {"name": f"op{i}", "ph": "X", "ts": i * 10 + 0.5, "dur": 5, "tid": 1,
         "pid": "CUDA functions" if i % 3 == 0 else "CPU functions", "args": {}}
        for i in range(40)
    ]  # fmt: skip


def _graphs() -> Made:
    made = Made()
    for step in range(STEPS):
        made.call("hipGraphLaunch", step * 500, 20, step)
        for node in range(5):
            made.kernel(f"Cijk_{node}", step * 500 + 30 + node * 10, 9.5, step, device=2,
                        **{"graph id": 4, "graph node id": 10**12 + node})  # fmt: skip
    return _named(made)


def _processor() -> Made:
    made = Made()
    for i in range(30):
        made.op(f"aten::op_{i % 4}", i * 7, 3, WORKER if i % 5 == 0 else HOST)
    return made


def _collectives() -> Made:
    made = Made(distributedInfo={"rank": 3, "world_size": 8, "backend": "nccl"})
    for i in range(8):
        made.op("record_param_comms", i * 100, 20, **{"Collective name": "allreduce"})
        made.launch("ncclDevKernel_AllReduce", i * 100 + 5, i * 100 + 20, 50, i,
                    **{"Collective name": "allreduce", "In msg nelems": 2**20, "Group size": 8,
                       "Process Group Ranks": "[0, 1, ...]", "dtype": "BFloat16"})  # fmt: skip
    return made


def _memory() -> Made:
    made = Made(profile_memory=1)
    for i in range(12):
        made.allocation(i * 10, 512 * (i + 1), 4096)
        made.launch("k", i * 10 + 1, i * 10 + 3, 2, i)
        for phase in "sf":
            made.events.append({"ph": phase, "id": i, "pid": 0, "tid": 7, "ts": i * 10 + 3,
                                "cat": "ac2g", "name": "ac2g", "bp": "e"})  # fmt: skip
    return _named(made)


def _named(made: Made) -> Made:
    for pid, name in ((100, "python"), (0, "GPU 0")):
        made.events.append({"name": "process_name", "ph": "M", "ts": 0, "pid": pid, "tid": 0,
                            "args": {"name": name}})  # fmt: skip
    return made
