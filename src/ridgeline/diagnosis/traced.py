"""What a run's trace says: opened once, studied, its work counted."""

from pathlib import Path

from msgspec import Struct

from ridgeline.diagnosis.attempts import Attempts
from ridgeline.diagnosis.hand_fed import HandFed, hand_fed, makes_input
from ridgeline.errors import UsageError
from ridgeline.records.machine import Device
from ridgeline.records.run import Capture
from ridgeline.records.run_summary import SyncPoint
from ridgeline.records.sites import InputSites, Sites
from ridgeline.records.step_work import StepWork, TraceMemory
from ridgeline.records.trace import TraceStudy, Window
from ridgeline.trace.analyses.allocations import activations
from ridgeline.trace.analyses.copy_sites import copy_sites
from ridgeline.trace.analyses.input_sites import input_sites
from ridgeline.trace.analyses.normed_convs import normed_convs
from ridgeline.trace.analyses.ops import op_sites
from ridgeline.trace.analyses.phases import optimizer_name, own_code
from ridgeline.trace.analyses.step_work import step_work
from ridgeline.trace.analyses.synchronisation import sync_costs, sync_points
from ridgeline.trace.ceilings import device_of, host_device
from ridgeline.trace.links import Links
from ridgeline.trace.places import Places
from ridgeline.trace.study import open_trace, study_one
from ridgeline.trace.trace import DeviceProperties, Trace


class Traced(Struct, frozen=True, kw_only=True):
    """Of rank 0's trace; a part that failed is None, or empty."""

    study: TraceStudy | None = None
    work: StepWork | None = None
    fed: HandFed = HandFed()
    syncs: tuple[SyncPoint, ...] = ()
    sites: Sites = Sites()
    input: InputSites = InputSites()
    memory: TraceMemory | None = None


def traced(path: Path, steps: int, device: Device | None, attempts: Attempts) -> Traced:
    """`steps`: how many were traced by the program's own count."""
    trace = attempts.part("the trace", lambda: open_trace(path, cache=False).trace)
    if trace is None:
        return Traced()
    links = Links(trace)
    study = attempts.part("the study of the trace", lambda: _study(trace, links, steps))
    if study is None:
        return Traced()
    window = study.window
    work = attempts.part("the work of a step", lambda: step_work(trace, links, window, device))
    fed = attempts.part("the input made by hand", lambda: hand_fed(trace, links, window))
    syncs = attempts.part("the synchronisations", lambda: sync_points(trace, links, window))
    sites = attempts.part("the sites of operators", lambda: sites_of(trace, links, window))
    memory = attempts.part("the memory of steps", lambda: activations(trace, links, window))
    inputs = attempts.part("the input", lambda: input_sites(trace, links, window, makes_input))
    return Traced(
        study=study, work=work, fed=fed or HandFed(), syncs=syncs or (), sites=sites or Sites(),
        memory=memory, input=inputs or InputSites(),
    )  # fmt: skip


def sites_of(trace: Trace, links: Links, window: Window) -> Sites:
    """Operators and copies of the traced steps by where they are called from."""
    ops, left_out, left_ns = op_sites(trace, links, window)
    waits = sync_costs(trace, links, window)
    return Sites(
        ops=ops,
        copies=copy_sites(trace, links, window),
        waits=waits.sites,
        replay=waits.replay,
        normed=normed_convs(trace, links, window),
        optimizer=optimizer_name(trace, window),
        own_code=own_code(trace, links, window),
        left_out=left_out,
        left_out_ns=left_ns,
        stacks=Places(trace, links).known,
        shapes=any(site.dims for site in ops),
        steps=max(window.steps, 1),
    )


def device_with_ceilings(capture: Capture) -> Device | None:
    """The device the program trained on, with what it can do at most; None where nobody knows."""
    seen = capture.device
    if seen.kind == "cpu":
        return host_device(capture.flags.threads, capture.flags.torch)
    return device_of(
        DeviceProperties(
            id=seen.index, name=seen.name, memory_bytes=seen.memory_bytes, cores=seen.cores
        )
    )


def _study(trace: Trace, links: Links, steps: int) -> TraceStudy:
    """Over the steps the program traced: the profiler marks one more, cut short, as it stops."""
    if steps > 0:
        try:
            return study_one(trace, links, f"0-{steps - 1}")
        except UsageError:  # no such marks: then all that there is
            pass
    return study_one(trace, links, "all")
