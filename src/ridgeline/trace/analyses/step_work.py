"""What a traced step did: FLOPs, bytes, what bound them, and how much of the step they were.

FLOPs are counted from the operators the host called, each once (`work_owners`), as executed: a
checkpointed part counts each time it runs. On a GPU only operators that launched something count,
so work in a replayed CUDA graph, which no operator announces, is missing, and coverage says so.
"""

from ridgeline.records.machine import Device
from ridgeline.records.step_work import StepWork
from ridgeline.records.trace import Window
from ridgeline.records.trust import Trust
from ridgeline.trace.analyses.checkpointing import second_forward
from ridgeline.trace.analyses.device_operators import device_time
from ridgeline.trace.analyses.host_operators import COMPILED, host_time, input_spans
from ridgeline.trace.analyses.operator_time import OperatorTime, bound
from ridgeline.trace.analyses.step_counts import Counted, count_work, step_spans
from ridgeline.trace.intervals import subtract
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Trace

_ENOUGH = 0.5
"""Share of operator time below which the totals say little."""


def step_work(trace: Trace, links: Links, window: Window, device: Device | None) -> StepWork:
    """Of one step, the mean of the window's; `device` with its ceilings, None where unknown."""
    spans = step_spans(trace, window)
    on_gpu = len(trace.device) > 0
    # what a Dataset computes in the program's own process is input, not the model's work
    asked = spans if on_gpu else subtract(spans, input_spans(trace, links))
    counted = count_work(trace, links, asked)
    steps = max(window.steps, 1)
    if on_gpu:
        time = device_time(trace, links, window, counted, device, steps)
    else:
        time = host_time(trace, links, spans, counted, device, steps)
    wall = max(time.wall_ns, 1)
    told = bound(time.rows)
    works = counted.works
    by_dtype = {name: flops / steps for name, flops in counted.by_dtype().items()}
    return StepWork(
        device="cuda" if on_gpu else "cpu",
        steps=window.steps,
        step_ms=time.wall_ns / 1e6 / steps,
        flops=counted.total([w.flops for w in works]) / steps,
        all_flops=counted.total([w.all_flops for w in works]) / steps,
        recomputed_flops=counted.total_of(second_forward(trace, counted.rows)) / steps,
        skipped_flops=counted.total([w.skipped for w in works]) / steps,
        bytes=counted.total([w.bytes for w in works]) / steps,
        flops_by_dtype=by_dtype,
        dtype=next(iter(by_dtype), ""),
        coverage=time.covered,
        uncounted=time.uncounted,
        operator_ms=time.busy_ns / 1e6 / steps,
        op_share=time.busy_ns / wall,
        input_share=time.input_ns / wall,
        communication_share=time.communication_ns / wall,
        copy_share=time.copy_ns / wall,
        overhead_share=time.idle_ns / wall,
        compute_share=told.compute_share,
        memory_share=told.memory_share,
        attained=told.attained,
        compute_attained=told.compute_attained,
        memory_attained=told.memory_attained,
        operators=time.operators / steps,
        short_share=time.short_share,
        notes=_notes(trace, window, counted, time),
        trust=_trust(trace, time),
    )


def _notes(trace: Trace, window: Window, counted: Counted, time: OperatorTime) -> tuple[str, ...]:
    said = []
    if not window.steps:
        said.append("no step is marked: the whole window counts as one")
    if any(trace.device.graph > 0):
        said.append(
            "kernels of replayed CUDA graphs have no operators: their FLOPs are not counted"
        )
    if any(one.op == COMPILED or one.op.startswith("triton_") for one in time.uncounted):
        said.append("kernels made by torch.compile have no formula: their FLOPs are not counted")
    if any(work.skipped for work in counted.works):
        said.append("causal attention counts over the full square")
    return tuple(said)


def _trust(trace: Trace, time: OperatorTime) -> Trust:
    if not (trace.ops.shape >= 0).any():
        return Trust(confidence="unreliable", why="no inputs of operators were recorded")
    if time.covered < _ENOUGH:
        why = f"shapes and formulas cover {100 * time.covered:.0f} % of operator time"
        return Trust(confidence="doubtful", why=why)
    return Trust()
