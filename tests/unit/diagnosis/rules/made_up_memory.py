"""Cases of programs whose memory grows, is short, or is given back to the driver."""

from typing import Any

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.records.run import (
    Capture,
    DeviceSeen,
    Environment,
    ModuleSeen,
    OptimizerSeen,
    RunFile,
    Target,
)
from ridgeline.records.run_summary import MemoryUse
from ridgeline.records.step_work import TraceMemory
from ridgeline.source.file import SourceFiles
from tests.unit.diagnosis.made_up_steps import noisy
from tests.unit.diagnosis.made_up_verdict import study, times, work

MIB, GIB = 2**20, 2**30
FILE = "/job/train.py"

KEEPS_GRAPH = """\
import torch

def main():
    history = []
    for x, y in loader:
        loss = F.mse_loss(model(x), y)
        loss.backward()
        held = F.mse_loss(model(x), y)
        history.append(held)
"""
KEEPS_NONE = KEEPS_GRAPH.replace("append(held)", "append(held.item())")
KEEPS_TENSOR = KEEPS_GRAPH.replace("append(held)", "append(held.detach())")


def capture(**changed: Any) -> Capture:
    made = Capture(
        stepping="optimizer", steps=46, ended="finished",
        device=DeviceSeen(kind="cuda", name="NVIDIA H200", memory_bytes=140 * GIB),
        modules=(ModuleSeen(name="Net", calls=46, parameters=1000, parameter_bytes=4000,
                            place=f"{FILE}:6"),),
        optimizers=(OptimizerSeen(name="AdamW", steps=46, anchor=True, place=f"{FILE}:7"),),
    )  # fmt: skip
    return replace(made, **changed)


def case(text: str = KEEPS_NONE, *, gpu: bool = True, **changed: Any) -> Case:
    """A run of 100 ms steps on an H200; nothing wrong with its memory."""
    made = Case(
        on_gpu=gpu,
        run=RunFile(
            name="r", status="finished", target=Target(kind="script", name="train.py"),
            environment=Environment(directory="/job", memory_bytes=64 * GIB),
        ),
        capture=capture(),
        steps=tuple(noisy(40)),
        times=times({"forward": 0.4, "backward": 0.6}, gpu=gpu),
        work=work(0.9, gpu=gpu),
        study=study({"launch-bound": 0.1}),
        memory=MemoryUse(device_peak_bytes=10 * GIB, device_reserved_bytes=11 * GIB,
                         device_total_bytes=140 * GIB, host_peak_bytes=GIB,
                         growth_bytes_per_step=0.0),
        traced_memory=TraceMemory(device="cuda:0" if gpu else "cpu", absolute=gpu,
                                  step_ends_bytes=(GIB, GIB, GIB), peak_bytes=10 * GIB,
                                  reserved_bytes=11 * GIB, forward_bytes=4.0 * GIB, nodes=90.0,
                                  backwards=True),
        sources=SourceFiles(texts={FILE: text}),
    )  # fmt: skip
    return replace(made, **changed)


def growing(text: str, each: int = 8 * MIB, unrun: float = 0.0, **changed: Any) -> Case:
    """The same, and each step leaves `each` bytes behind."""
    made = case(text, **changed)
    assert made.traced_memory is not None
    return replace(
        made,
        memory=replace(made.memory, growth_bytes_per_step=float(each)),
        traced_memory=replace(
            made.traced_memory, step_ends_bytes=(GIB, GIB + each, GIB + 2 * each), unrun_nodes=unrun
        ),
    )
