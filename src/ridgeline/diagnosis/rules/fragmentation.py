"""Memory that the allocator holds and cannot use: reserved far above allocated, and calls of the
driver for more while steps run."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.memory_room import MIN_LARGE_SHARE, device_bytes, device_peak_bytes
from ridgeline.diagnosis.rule import Rule, gain_without, make_finding, measured
from ridgeline.diagnosis.rules._user_code import fix_code, model_call, source_of, variable
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.step_work import SegmentCalls
from ridgeline.records.trace import Place
from ridgeline.source.kept_tensors import GraphNames

MIN_SHARE = 0.01
MIN_DRIVER_CALLS = 1.0
"""Calls of the driver a step. A program that has settled makes none at all."""
MIN_UNUSED_SHARE = 0.3
"""Share of the reserved memory that is never used. Blocks are rounded up and cached, so a tenth or
two lies idle in every program."""
WAITS_BEHIND_FACTOR = 1.5
"""The most that goes with the driver's calls, as a multiple of their own time: each makes the host
wait for the device, and launches come late after it. 1.30 × was gained where the calls took 16 %.
"""

EXPANDABLE = (
    'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # before `import torch`'
)
LONGEST_FIRST = """\
# once, before the first step: memory for the longest batch, into which every other one fits
loss_fn(model(longest), targets).backward()
optimizer.zero_grad()"""

RULE = Rule(id="fragmentation", family="memory", budget="overhead", needs=("gpu",))


def look(case: Case) -> Iterator[Finding]:
    traced = case.traced_memory
    segments = traced.segments if traced is not None else SegmentCalls()
    peak, reserved = device_peak_bytes(case), _reserved(case)
    unused = max(reserved - peak, 0) / reserved if reserved and peak else 0.0
    whole = device_bytes(case)
    asks = segments.calls >= MIN_DRIVER_CALLS
    large = bool(whole) and reserved >= MIN_LARGE_SHARE * whole
    retried = case.memory.retries > 0
    wasted = unused >= MIN_UNUSED_SHARE and (asks or large or retried)
    share = _share(case, segments) if asks else 0.0
    grows = traced is not None and traced.growth_bytes > 0
    grows = grows or (case.memory.growth_bytes_per_step or 0.0) > 0
    if grows or not (share >= MIN_SHARE or wasted):
        return  # a program whose own memory grows must ask for more
    yield make_finding(
        RULE,
        claim=_claim(segments, unused, reserved, share >= MIN_SHARE),
        share=share if share >= MIN_SHARE else 0.0,
        bound=gain_without(WAITS_BEHIND_FACTOR * share) if share >= MIN_SHARE else 1.0,
        memory=unused if wasted else 0.0,
        evidence=_evidence(case, segments, peak, reserved),
        place=_place(case, segments.place),
        fix="expandable-segments" if wasted else "",
        change=_change(case) if wasted else LONGEST_FIRST,
        confidence="high" if asks and unused >= MIN_UNUSED_SHARE else "medium",
    )


def _change(case: Case) -> str:
    fix = variable("expandable-segments", "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    return fix_code(case, None, fix) or EXPANDABLE


def _reserved(case: Case) -> int:
    traced = case.traced_memory
    in_trace = traced.reserved_bytes if traced is not None and traced.device != "cpu" else 0
    return case.memory.device_reserved_bytes or max(in_trace, 0)


def _share(case: Case, segments: SegmentCalls) -> float:
    """Return the GPU's idle time for driver calls, or the host's time in those calls if the GPU
    waits for the host anyway. Tracing does not lengthen the driver's own time."""
    busy = case.busy or 0.0
    calls = 0.0 if busy >= SATURATED else min(case.device_share(segments.host_ns), 1 - busy)
    return max(case.idle("allocator"), calls)


def _claim(segments: SegmentCalls, unused: float, reserved: int, costs: bool) -> str:
    calls = f"the driver is asked for memory {units.significant(segments.calls)} times a step"
    lies = f"{units.percent(unused)} of the {units.bytes_(reserved)} torch holds is never used"
    if costs and unused >= MIN_UNUSED_SHARE:
        return f"{calls}, and {lies}"
    return calls if costs else lies


def _evidence(case: Case, segments: SegmentCalls, peak: int, reserved: int) -> list[Evidence]:
    rows = []
    if segments.calls:
        seconds = units.seconds(segments.host_ns / 1e9)
        text = f"{units.significant(segments.calls)} a step, {seconds} a traced step"
        rows.append(measured("cudaMalloc and cudaFree", text, segments.calls))
    if reserved and peak:
        text = f"{units.bytes_(reserved)} reserved, {units.bytes_(peak)} allocated at the peak"
        rows.append(measured("memory", text, reserved - peak))
    if idle := case.idle("allocator"):
        rows.append(measured("GPU idle for it", units.percent(idle), idle))
    if retries := case.memory.retries:
        text = f"{retries} allocations freed cached blocks and tried again"
        rows.append(measured("retries", text, retries))
    return rows


def _place(case: Case, measured_at: Place | None) -> Place | None:
    """Return the model's call in the function that asks, if its source can be read."""
    source = source_of(case, measured_at)
    if measured_at is None or source is None:
        return measured_at or model_call(case)
    scope = source.scope(measured_at.line)
    calls = GraphNames(source).model_calls(scope)
    looped = sorted(calls, key=lambda call: (-source.loops(call), call.lineno))
    line = looped[0].lineno if looped else measured_at.line
    return Place(file=measured_at.file, line=line, function=measured_at.function)
