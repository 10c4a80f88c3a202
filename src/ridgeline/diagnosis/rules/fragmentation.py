"""Memory the allocator holds and cannot use: reserved far above allocated, and calls of the driver
for more while steps run."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import SATURATED, Case
from ridgeline.diagnosis.memory_room import LARGE, device_bytes, peak_bytes
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.step_work import SegmentCalls
from ridgeline.records.trace import Place
from ridgeline.source.kept_tensors import GraphNames

LEAST_SHARE = 0.01
LEAST_CALLS = 1.0
"""A step: a program that has settled asks the driver for no memory at all."""
UNUSED = 0.3
"""Of what is reserved: blocks are rounded up and cached, so a tenth or two lies idle in every
program."""

EXPANDABLE = (
    'os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # before `import torch`'
)
LONGEST_FIRST = """\
# once, before the first step: memory for the longest batch, into which every other one fits
loss_fn(model(longest), targets).backward()
optimizer.zero_grad()"""

RULE = Rule(id="fragmentation", family="memory", budget="overhead", needs=("gpu",))


def look(case: Case) -> Iterator[Finding]:
    segments = _segments(case)
    peak, reserved = peak_bytes(case), _reserved(case)
    unused = max(reserved - peak, 0) / reserved if reserved and peak else 0.0
    whole = device_bytes(case)
    asks = segments.calls >= LEAST_CALLS
    wasted = unused >= UNUSED and (asks or (bool(whole) and reserved >= LARGE * whole))
    share = _share(case, segments) if asks else 0.0
    retried = case.memory.retries > 0 and unused >= UNUSED
    growing = (case.memory.growth_bytes_per_step or 0.0) > 0 or _grows(case)
    if growing or not (share >= LEAST_SHARE or wasted or retried):
        return  # a program whose own memory grows must ask for more
    place = _place(case, segments.place)
    yield make_finding(
        RULE,
        claim=_claim(segments, unused, reserved, share >= LEAST_SHARE),
        share=share if share >= LEAST_SHARE else 0.0,
        memory=unused if wasted or retried else 0.0,
        evidence=_evidence(case, segments, peak, reserved),
        place=place,
        change=EXPANDABLE if wasted or retried else LONGEST_FIRST,
        confidence="high" if asks and unused >= UNUSED else "medium",
    )


def _segments(case: Case) -> SegmentCalls:
    return case.traced_memory.segments if case.traced_memory is not None else SegmentCalls()


def _grows(case: Case) -> bool:
    return case.traced_memory is not None and case.traced_memory.growth_bytes > 0


def _reserved(case: Case) -> int:
    traced = case.traced_memory
    in_trace = traced.reserved_bytes if traced is not None and traced.device != "cpu" else 0
    return case.memory.device_reserved_bytes or max(in_trace, 0)


def _share(case: Case, segments: SegmentCalls) -> float:
    """The GPU's idle time for it, or the host's time in those calls where the GPU waits for the
    host anyway: the driver's own, which tracing does not lengthen."""
    busy = case.busy or 0.0
    calls = 0.0 if busy >= SATURATED else min(case.device_share(segments.host_ns), 1 - busy)
    return max(case.idle("allocator"), calls)


def _claim(segments: SegmentCalls, unused: float, reserved: int, costs: bool) -> str:
    calls = f"the driver is asked for memory {units.significant(segments.calls)} times a step"
    lies = f"{units.percent(unused)} of the {units.bytes_(reserved)} torch holds is never used"
    if costs and unused >= UNUSED:
        return f"{calls}, and {lies}"
    return calls if costs else lies


def _evidence(case: Case, segments: SegmentCalls, peak: int, reserved: int) -> list[Evidence]:
    rows = []
    if segments.calls:
        text = (
            f"{units.significant(segments.calls)} a step, "
            f"{units.seconds(segments.host_ns / 1e9)} a traced step"
        )
        rows.append(Evidence(what="cudaMalloc and cudaFree", text=text, value=segments.calls))
    if reserved and peak:
        text = f"{units.bytes_(reserved)} reserved, {units.bytes_(peak)} allocated at the peak"
        rows.append(Evidence(what="memory", text=text, value=float(reserved - peak)))
    idle = case.idle("allocator")
    if idle:
        rows.append(Evidence(what="GPU idle for it", text=units.percent(idle), value=idle))
    if case.memory.retries:
        text = f"{case.memory.retries} allocations freed cached blocks and tried again"
        rows.append(Evidence(what="retries", text=text, value=float(case.memory.retries)))
    return rows


def _place(case: Case, measured: Place | None) -> Place | None:
    """The model's call in the function that asks, where its source can be read."""
    modules = case.capture.modules if case.capture is not None else ()
    if measured is None:
        largest = max(modules, key=lambda m: m.parameter_bytes, default=None)
        file, _, line = (largest.place if largest is not None else "").rpartition(":")
        return Place(file=file, line=int(line)) if line.isdigit() else None
    source = case.sources.get(measured.file)
    if source is None:
        return measured
    scope = source.scope(measured.line)
    calls = GraphNames(source).model_calls(scope)
    looped = sorted(calls, key=lambda call: (-source.loops(call), call.lineno))
    line_ = looped[0].lineno if looped else measured.line
    return Place(file=measured.file, line=line_, function=measured.function)
