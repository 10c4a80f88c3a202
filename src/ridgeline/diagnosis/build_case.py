"""The case of a run, from its records and its trace, and the case of a trace alone."""

import os
from collections.abc import Sequence
from pathlib import Path
from platform import node

from msgspec import Struct
from msgspec.structs import asdict, replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rank_delays import AcrossRanks, of_files, of_traces
from ridgeline.diagnosis.recorded_run import Attempts, RunRead, read_run
from ridgeline.diagnosis.shares import (
    HandFed,
    Observed,
    Shares,
    cpu_shares,
    gpu_shares,
    hand_fed,
    makes_input,
)
from ridgeline.errors import UsageError
from ridgeline.records.machine import Device
from ridgeline.records.run import Capture, PythonView, RunFile, Step, training_loader
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_summary import (
    StepTimes,
    SyncPoint,
    Throughput,
)
from ridgeline.records.sites import InputSites, LateRank, Sites
from ridgeline.records.step_work import StepWork, TraceMemory
from ridgeline.records.trace import TraceStudy, Window
from ridgeline.source.file import SourceFiles
from ridgeline.trace.analyses.allocations import activations
from ridgeline.trace.analyses.busy import properties_of
from ridgeline.trace.analyses.copy_sites import copy_sites
from ridgeline.trace.analyses.input_sites import input_sites
from ridgeline.trace.analyses.kernels import kernels
from ridgeline.trace.analyses.normed_convs import normed_convs
from ridgeline.trace.analyses.ops import op_sites
from ridgeline.trace.analyses.phases import optimizer_name, own_code
from ridgeline.trace.analyses.step_work import step_work
from ridgeline.trace.analyses.synchronisation import sync_costs, sync_points
from ridgeline.trace.ceilings import device_of, emulated_here, host_device
from ridgeline.trace.links import Links, links_of
from ridgeline.trace.places import user_places
from ridgeline.trace.study import open_trace, study_one
from ridgeline.trace.trace import DeviceProperties, Trace
from ridgeline.trace.window import window_of


class TraceParts(Struct, frozen=True, kw_only=True):
    """Holds what the steps of one trace say beside its study; a failed part is None or empty."""

    work: StepWork | None = None
    fed: HandFed = HandFed()
    syncs: tuple[SyncPoint, ...] = ()
    sites: Sites = Sites()
    input: InputSites = InputSites()
    memory: TraceMemory | None = None


class Traced(TraceParts, frozen=True, kw_only=True):
    """The trace of the rank that a run shows, and what it says."""

    trace: Trace | None = None
    study: TraceStudy | None = None


def traced(path: Path, steps: int, device: Device | None, attempts: Attempts) -> Traced:
    """Open and study a run's trace. `steps` is how many the program traced by its own count."""
    trace = attempts.part("the trace", lambda: open_trace(path, cache=False).trace)
    if trace is None:
        return Traced()
    study = attempts.part("the study of the trace", lambda: _study(trace, steps))
    if study is None:
        return Traced(trace=trace)
    parts = _parts(trace, study.window, device, attempts)
    return Traced(trace=trace, study=study, **asdict(parts))


def _parts(trace: Trace, window: Window, device: Device | None, attempts: Attempts) -> TraceParts:
    links = links_of(trace)
    work = attempts.part("the work of a step", lambda: step_work(trace, links, window, device))
    fed = attempts.part("the input made by hand", lambda: hand_fed(trace, links, window))
    syncs = attempts.part("the synchronisations", lambda: sync_points(trace, links, window))
    sites = attempts.part("the sites of operators", lambda: sites_of(trace, links, window))
    memory = attempts.part("the memory of steps", lambda: activations(trace, links, window))
    inputs = attempts.part("the input", lambda: input_sites(trace, links, window, makes_input))
    return TraceParts(
        work=work, fed=fed or HandFed(), syncs=syncs or (), sites=sites or Sites(), memory=memory,
        input=inputs or InputSites(),
    )  # fmt: skip


def sites_of(trace: Trace, links: Links, window: Window) -> Sites:
    """Return operators, copies and waits of the traced steps by where they are called from."""
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
        stacks=user_places(trace, links).known,
        shapes=any(site.dims for site in ops),
        steps=max(window.steps, 1),
    )


def device_with_ceilings(capture: Capture) -> Device | None:
    """Return the device that the program trained on, with its ceilings; None if they are not
    known."""
    seen = capture.device
    if seen.kind == "cpu":
        return host_device(capture.flags.threads, capture.flags.torch)
    return device_of(
        DeviceProperties(
            id=seen.index, name=seen.name, memory_bytes=seen.memory_bytes, cores=seen.cores
        )
    )


def _study(trace: Trace, steps: int) -> TraceStudy:
    """Study the steps that the program traced: the profiler marks one more, cut short, as it
    stops."""
    links = links_of(trace)
    if steps > 0:
        try:
            return study_one(trace, links, f"0-{steps - 1}", for_findings=True)
        except UsageError:  # no such marks: then all that there is
            pass
    return study_one(trace, links, "all", for_findings=True)


def case_of_run(
    read: RunRead,
    found: Traced,
    observed: Observed,
    *,
    throughput: Throughput,
    python: PythonView | None,
    device: Device | None,
    pauses: tuple[Step, ...] = (),
) -> Case:
    case = Case(
        kind="run",
        on_gpu=read.on_gpu,
        run=read.run,
        capture=read.capture,
        steps=read.steps,
        pauses=pauses,
        telemetry=read.telemetry,
        times=observed.times,
        throughput=throughput,
        efficiency=observed.efficiency,
        memory=observed.memory,
        telemetered=observed.telemetered,
        python=python,
        study=found.study,
        work=found.work,
        traced_memory=found.memory,
        shares=observed.shares if observed.times.phases else None,
        sites=found.sites,
        syncs=found.syncs,
        input=found.input,
        fed=found.fed,
        device=device,
        emulated=_emulated(read),
        processors=_processors(read.run),
        sources=SourceFiles(_roots(read.run), called=called_lines(read.captures)),
    )
    return _with_ranks(case, _across(read, found.trace))


def case_of_trace(study: TraceStudy, traces: Sequence[Trace], attempts: Attempts) -> Case:
    """Return the case of a trace alone. Of several ranks the sites are the first one's; what they
    did to each other is in the study."""
    trace = traces[0]
    windows = [study.window] if len(traces) == 1 else [window_of(one) for one in traces]
    # the study's is the longest of the ranks', unless steps were asked for
    window = windows[0] if study.window in windows else study.window
    known = properties_of(trace, int(trace.device.device[0])) if len(trace.device) else None
    device = device_of(known) if known is not None else None
    parts = _parts(trace, window, device, attempts)
    own = None
    if len(traces) > 1:
        own = attempts.part("its kernels", lambda: kernels(trace, links_of(trace), window))
    across = _recorded_together(traces, attempts)
    if across is None:
        across = of_traces(traces, windows, attempts, study.ranks)
    case = Case(
        kind="trace",
        on_gpu=bool(len(trace.device)),
        study=study,
        rank_kernels=own[0] if own is not None else None,
        work=parts.work,
        traced_memory=parts.memory,
        shares=_shares(study, parts.work),
        sites=parts.sites,
        syncs=parts.syncs,
        input=parts.input,
        fed=parts.fed,
        device=device,
        sources=SourceFiles((Path.cwd(), Path(trace.origin.path).resolve().parent)),
    )
    return _with_ranks(case, across)


def _with_ranks(case: Case, across: AcrossRanks) -> Case:
    return replace(
        case,
        exchange=across.exchange,
        across=across.ranks,
        rank_places=across.places,
        across_ns=across.window_ns,
        steps_compared=across.steps_compared,
        late=across.late,
    )


def as_studied(case: Case, study: TraceStudy) -> Case:
    """Return the case of a trace with the step and the shares of the window of `study`. Findings
    are drawn from whole steps, and tables from the device's activity. A figure that is printed
    beside the tables must be from the same window as they are."""
    changed = replace(case, study=study)
    known = [one for one in study.devices if one.busy_ns is not None]
    if case.work is None or not case.on_gpu or len(known) != 1 or not study.window.ns:
        return changed
    device, wall, steps = known[0], study.window.ns, max(study.window.steps, 1)
    work = replace(
        case.work,
        step_ms=wall / 1e6 / steps,
        operator_ms=(device.busy_ns or 0) / 1e6 / steps,
        op_share=(device.busy_ns or 0) / wall,
        copy_share=device.exposed_copy_ns / wall,
        communication_share=device.exposed_communication_ns / wall,
    )
    return replace(changed, work=work, shares=_shares(study, work))


def _shares(study: TraceStudy, work: StepWork | None) -> Shares | None:
    if work is None or not (work.operator_ms or work.input_share):
        return None
    if work.device == "cpu":
        return cpu_shares(StepTimes(), work, study)
    return gpu_shares(StepTimes(), work, study, False) if study.idle.total_ns is not None else None


def called_lines(captures: Sequence[Capture]) -> dict[str, dict[int, frozenset[str]]]:
    """Return, for each file, the names that each of its lines was seen calling in the traced steps
    of any rank. Return nothing for a program that compiles, because compiled calls are not seen."""
    found: dict[str, dict[int, frozenset[str]]] = {}
    if any(capture.compilations for capture in captures):
        return found
    for capture in captures:
        for call in capture.calls:
            lines = found.setdefault(call.file, {})
            lines[call.line] = lines.get(call.line, frozenset()) | {call.name}
    return found


def _across(read: RunRead, *opened: Trace | None) -> AcrossRanks:
    """Return the comparison of the ranks of a run, from their steps and traces; `opened` are traces
    that need not be read again. Parts that fail are left out."""
    if read.ranks < 2:
        return AcrossRanks()
    windows = read.capture.windows if read.capture is not None else ()
    steps = sum(window.steps for window in windows if window.kind == "traced")
    found = of_files(read.trace_files, steps, Attempts(), read.rank_steps, opened)
    late = _placed(found.late, read.captures)
    if late is not None and late.beside is not None:
        late = replace(late, beside=_placed(late.beside, read.captures))
    return replace(found, late=late)


def _recorded_together(traces: Sequence[Trace], attempts: Attempts) -> AcrossRanks | None:
    """Return the comparison that the run's own verdict is drawn from, if `traces` are the traces of
    all ranks of one run; else None."""
    folder = Path(traces[0].origin.path).parent
    if len(traces) < 2 or not RunDirectory(folder).run_file.is_file():
        return None
    read = attempts.part("the run", lambda: read_run(RunDirectory(folder), Attempts()))
    given = {Path(trace.origin.path).resolve() for trace in traces}
    if read is None or {path.resolve() for path in read.trace_files} != given:
        return None
    return _across(read, *traces)


def _placed(late: LateRank | None, captures: Sequence[Capture]) -> LateRank | None:
    """Return the late rank with the line that runs its late phase: the line of its loader, its
    model or its optimizer."""
    seen = next((one for one in captures if late is not None and one.rank == late.rank), None)
    if late is None or seen is None:
        return late
    models = [one for one in seen.modules if not one.loss]
    places = {
        "input": training_loader(seen.loaders).place,
        "forward": max(models, key=lambda one: one.calls).place if models else "",
        "optimizer": next((one.place for one in seen.optimizers if one.anchor), ""),
    }
    return replace(late, place=places.get(late.phase, ""))


def _processors(run: RunFile) -> int:
    """Return the processors of this machine, if the run was made here; else 0."""
    return os.cpu_count() or 0 if run.environment.host == os.uname().nodename else 0


def _emulated(read: RunRead) -> tuple[str, ...]:
    """Return the types that the CPU has no instructions for, if the program ran on this
    machine's."""
    here = read.run.environment.host in ("", node())
    return emulated_here() if here and read.capture is not None and not read.on_gpu else ()


def _roots(run: RunFile) -> tuple[Path, ...]:
    """Return the folders in which the program's files are looked for: its own, and its script's."""
    folder = Path(run.environment.folder)
    if run.target.kind != "script":
        return (folder,)
    return (folder, (folder / run.target.name).parent)
