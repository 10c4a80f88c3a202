"""A run directory to its summary: read, time, study, decide.

Every part is tried alone, so that a killed, empty or damaged run still says what it can. With
several ranks the figures are of rank 0, and throughput is taken times the number of ranks.
"""

import itertools
import math
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.build_case import Traced, case_of_run, device_with_ceilings, traced
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.findings import findings
from ridgeline.diagnosis.limit import limit
from ridgeline.diagnosis.machine_use import energy, telemetered
from ridgeline.diagnosis.memory_use import memory_use, with_death_for_memory
from ridgeline.diagnosis.python_view import python_view, settled
from ridgeline.diagnosis.rank_delays import lateness
from ridgeline.diagnosis.recorded_run import Attempts, FileNames, RunRead, read_run
from ridgeline.diagnosis.shares import preemption
from ridgeline.diagnosis.step_times import (
    SteadySteps,
    efficiency,
    region_times,
    steady_steps,
    throughput,
    times_of,
)
from ridgeline.records.finding import Finding, Findings
from ridgeline.records.machine import Device
from ridgeline.records.run import Capture, OutOfMemory, PythonView, Sampled, Status, Step, Target
from ridgeline.records.run_directory import RunDirectory, is_process_alive
from ridgeline.records.run_summary import (
    Efficiency,
    Energy,
    MemoryUse,
    Missing,
    NextCommand,
    RankEnd,
    RunSummary,
    StepTimes,
    SyncPoint,
    Telemetered,
    Throughput,
    Verdict,
)


def _silent(text: str) -> None:
    pass


def conclude(directory: RunDirectory, on_progress: Callable[[str], None] = _silent) -> RunSummary:
    """Raises only where the run was written by a newer version."""
    return concluded_case(directory, on_progress)[0]


def concluded_case(
    directory: RunDirectory, on_progress: Callable[[str], None] = _silent
) -> tuple[RunSummary, Case | None]:
    """The same, with all that it was drawn from."""
    attempts = Attempts()
    on_progress("reading the run")
    read = read_run(directory, attempts)
    capture = read.capture
    steady, times = _timed(read, attempts)
    device = attempts.part("the ceilings", lambda: _device(read))
    on_progress("studying the trace")
    found = _traced(directory, read, device, attempts)
    on_progress("deciding")
    rate = throughput(times, steady.phase_steps, read.ranks, len(steady.pauses))
    work = efficiency(found.work, times, device)
    seen, spent = _machine(read, steady, rate, attempts)
    taken = preemption(capture, seen)
    seen = replace(seen, preempted_share=taken.light if taken is not None else None)
    spent = with_reasons(spent, read, rate)
    memory = (
        attempts.part("the memory", lambda: memory_use(capture, read.steps, read.telemetry))
        or MemoryUse()
    )
    read = attempts.part("the end", lambda: with_death_for_memory(read, memory)) or read
    capture = read.capture
    sampled = attempts.part("the Python samples", directory.sampled) or ()
    view = attempts.part("the Python view", lambda: _python(sampled, read))
    asked = sampled if read.run.settings.python else ()  # else only the rules look at it
    shown = attempts.part("the Python view", lambda: python_view(asked) if asked else None)
    case = attempts.part(
        "the case",
        lambda: case_of_run(
            read, found, times=times, throughput=rate, efficiency=work, memory=memory,
            telemetered=seen, python=view, device=device, pauses=steady.pauses,
        ),
    )  # fmt: skip
    late = attempts.part("the late rank", lambda: lateness(case)) if case is not None else None
    late = late and replace(late, place=_short(late.place, read))
    verdict = attempts.part(
        "the verdict",
        lambda: limit(
            times, work=found.work, study=found.study, memory=memory, telemetered=seen,
            capture=capture, efficiency=work, fed=found.fed, late=late,
        ),
    ) or Verdict(bound="unknown", sentence="unknown: no verdict could be drawn")  # fmt: skip
    verdict = replace(verdict, place=_short(verdict.place, read))
    on_progress("looking for causes")
    summary = replace(
        _identity(directory, read, verdict, attempts),
        step=times,
        regions=attempts.part("the regions", lambda: region_times(steady.steps)) or (),
        throughput=rate,
        efficiency=work,
        memory=memory,
        energy=spent,
        telemetry=seen,
        sync_points=_sync_points(found.syncs, case, read),
        python=shown,
        findings=_findings(case, read, attempts) if case is not None else Findings(),
        missing=left_out(read, times, rate, found, work, spent, device),
        next=next_commands(directory, read.run.target, verdict, device, shown, capture),
    )
    problems = (*(capture.problems if capture is not None else ()), *attempts.failures)
    return replace(summary, problems=tuple(dict.fromkeys(problems))), case


def _sync_points(
    syncs: Sequence[SyncPoint], case: Case | None, read: RunRead
) -> tuple[SyncPoint, ...]:
    """Return the synchronisation points, each at the line of its function that was seen making most
    of these calls, if that is known. A trace has only the line where the function begins."""
    told = []
    calls = read.capture.calls if read.capture is not None else ()
    for point in syncs:
        file, _, line = point.place.rpartition(":")
        source = case.sources.get(file) if case is not None and line.isdecimal() else None
        name = point.call.removeprefix("aten::")
        lines = source.lines_calling(int(line), name) if source is not None else ()
        times = {one.line: one.times for one in calls if one.name == name and one.line in lines}
        place = f"{file}:{max(times, key=lambda at: times[at])}" if times else point.place
        told.append(replace(point, place=_short(place, read)))
    return tuple(told)


def _findings(case: Case, read: RunRead, attempts: Attempts) -> Findings:
    drawn = findings(case, attempts)
    names = FileNames(read.run, read.capture)
    loss = drawn.loss
    if loss is not None:
        places = tuple(replace(one, file=names.shown(one.file)) for one in loss.places)
        loss = replace(loss, places=places)
    return replace(drawn, findings=tuple(_named(one, names) for one in drawn.findings), loss=loss)


def _named(finding: Finding, names: FileNames) -> Finding:
    """With its file under the one name it has in the report."""
    file = names.shown(finding.file)
    told = (replace(one, text=names.short(one.text)) for one in finding.evidence)
    own = finding.id.replace(finding.file, file, 1) if finding.file else finding.id
    return replace(finding, id=own, file=file, evidence=tuple(told))


def _identity(
    directory: RunDirectory, read: RunRead, verdict: Verdict, attempts: Attempts
) -> RunSummary:
    """What ran, how it ended, and the verdict; no figure yet."""
    capture, status = read.capture, read.run.status
    if status != "damaged":
        status = attempts.part("the status", directory.status) or status
    return RunSummary(
        name=directory.path.name,
        run_dir=str(directory.path),
        command=command_line(read.run.target),
        status=status,
        why=read.run.why or (capture.why if capture is not None else ""),
        verdict=verdict,
        device=_device_name(read),
        ranks=read.ranks,
        rank_ends=_rank_ends(read),
        losses=_losses(read.steps),
        loss_broke=_loss_broke(read.steps),
        out_of_memory=_out_of_memory(read),
        recompiles=_recompiles(capture),
        graph_breaks=_graph_breaks(capture),
        bytes_on_disk=attempts.part("the size", directory.size) or 0,
    )


def _rank_ends(read: RunRead) -> tuple[RankEnd, ...]:
    """Return how other ranks ended, if they ended badly before the rank that the report shows: an
    error of the shown rank (a closed connection, a signal) then only follows from theirs. Return
    also ranks that still run although the shown one has ended, and ranks that never imported torch.
    """

    def end_ns(capture: Capture) -> int:
        return capture.ended_ns or read.last_seen_ns.get(capture.rank, 0)

    shown = read.capture
    found = []
    for one in read.captures:
        if shown is None or one.rank == shown.rank:
            continue
        gone = one.ended == "running" and not is_process_alive(one.pid, 0.0)
        status: Status = "killed" if gone else one.ended
        badly = status in ("raised", "killed") and 0 < end_ns(one) < (end_ns(shown) or math.inf)
        stuck = status == "running" and shown.ended != "running"
        if badly or stuck or not one.torch_imported:
            end = RankEnd(
                rank=one.rank, status=status, why=one.why, torch_imported=one.torch_imported
            )
            found.append((end_ns(one), end))
    return tuple(end for _, end in sorted(found, key=lambda pair: pair[0]))


def _timed(read: RunRead, attempts: Attempts) -> tuple[SteadySteps, StepTimes]:
    steady = attempts.part("the steps", lambda: steady_steps(read.steps)) or SteadySteps()
    counted, stepping = len(read.steps), read.capture.stepping if read.capture is not None else ""
    taken = read.capture.steps_taken if read.capture is not None else None
    times = attempts.part(
        "the step times", lambda: times_of(steady, counted, stepping, read.on_gpu)
    )
    times = times or StepTimes(counted=counted, stepping=stepping)
    return steady, replace(times, taken=taken)


def _device(read: RunRead) -> Device | None:
    return device_with_ceilings(read.capture) if read.capture is not None and read.steps else None


def _traced(
    directory: RunDirectory, read: RunRead, device: Device | None, attempts: Attempts
) -> Traced:
    rank = read.capture.rank if read.capture is not None else 0
    path = directory.trace_file(rank)
    if not path.is_file():
        path = path.with_suffix("")  # not packed yet: the run was killed, watcher and all
    if not path.is_file():
        return Traced()
    windows = read.capture.windows if read.capture is not None else ()
    steps = sum(window.steps for window in windows if window.kind == "traced")
    return traced(path, steps, device, attempts)


def _machine(
    read: RunRead, steady: SteadySteps, rate: Throughput, attempts: Attempts
) -> tuple[Telemetered, Energy]:
    """Over the longest stretch of steady steps that no trace interrupts."""
    run = _longest_stretch(steady.steps)
    if not run:
        return Telemetered(), Energy()
    start, end = run[0].start_ns, run[-1].start_ns + run[-1].dur_ns
    settings, samples = read.run.settings, (rate.samples_per_step or 0.0) * len(run)
    seen = attempts.part(
        "the telemetry",
        lambda: telemetered(read.telemetry, start, end, on_gpu=read.on_gpu, cores=_all_cores(read)),
    )
    spent = attempts.part(
        "the energy",
        lambda: energy(
            read.all_telemetry, start, end, len(run), samples, settings.price_per_hour,
            settings.carbon_g_per_kwh, on_gpu=read.on_gpu, samples_s=rate.samples_s,
        ),
    )  # fmt: skip
    return seen or Telemetered(), spent or Energy()


def _all_cores(read: RunRead) -> int:
    """0 where the host's use cannot be split into the program's and others': a program held to
    some of the processors, or several ranks, each seen by a watcher of its own."""
    cores = read.run.environment.cores
    return cores if read.ranks == 1 and cores >= (os.cpu_count() or 1) else 0


def _longest_stretch(steps: Sequence[Step]) -> list[Step]:
    """Steps that follow each other: the place of a step less its index is the same in a stretch."""
    stretches = itertools.groupby(enumerate(steps), key=lambda at: at[1].index - at[0])
    return max(([step for _, step in held] for _, held in stretches), key=len, default=[])


def _python(sampled: Sequence[Sampled], read: RunRead) -> PythonView | None:
    since = min((step.start_ns for step in read.steps if step.window == "light"), default=0)
    return python_view(settled(sampled, since)) if sampled else None


def _device_name(read: RunRead) -> str:
    if read.capture is None or not read.capture.torch_imported:
        return ""
    return read.capture.device.name or ("GPU" if read.on_gpu else "CPU")


def _losses(steps: Sequence[Step]) -> tuple[float, float] | None:
    seen = [step.loss for step in steps if step.loss is not None]
    finite = [loss for loss in seen if math.isfinite(loss)]
    return (seen[0], seen[-1]) if finite else None


def _loss_broke(steps: Sequence[Step]) -> str:
    broken = [step for step in steps if step.loss_broke]
    first = min(broken, key=lambda step: step.index, default=None)
    return f"{first.loss_broke} at step {first.index}" if first is not None else ""


def _out_of_memory(read: RunRead) -> OutOfMemory | None:
    full = read.capture.out_of_memory if read.capture is not None else None
    if full is None:
        return None
    alive = tuple((_short(place, read), size, blocks) for place, size, blocks in full.alive)
    return replace(full, place=_short(full.place, read), alive=alive)


def _short(place: str, read: RunRead) -> str:
    """As it was typed: under the one name its file has in the report."""
    return FileNames(read.run, read.capture).place(place)


def _recompiles(capture: Capture | None) -> tuple[str, ...]:
    found = capture.compilations if capture is not None else ()
    return tuple(
        f"{one.place or one.function}: {one.recompile_reason}"
        for one in found
        if one.recompile_reason
    )


def _graph_breaks(capture: Capture | None) -> tuple[str, ...]:
    """With their place where Dynamo told it, else by its counter."""
    if capture is None:
        return ()
    placed = [
        f"{one.place or one.function}: {reason}"
        for one in capture.compilations
        for reason in one.graph_breaks
    ]
    counted = [
        reason if times == 1 else f"{reason} ({units.count(times)} times)"
        for reason, times in capture.graph_breaks.items()
    ]
    return tuple(dict.fromkeys(placed or counted))


ENOUGH = 0.9
"""Share of operator time with a formula above which what is left out is no news."""


def left_out(
    read: RunRead,
    times: StepTimes,
    rate: Throughput,
    found: Traced,
    work: Efficiency,
    spent: Energy,
    device: Device | None,
) -> tuple[str, ...]:
    capture = read.capture
    said = [*(capture.missing if capture is not None else ()), *_of_children(read)]
    if times.counted:
        said += _of_work(read, times, found, work, device)
        said += _of_rates(read, rate, spent)
    return tuple(dict.fromkeys(said))


def _of_children(read: RunRead) -> Iterator[str]:
    for one in read.capture.children if read.capture is not None else ():
        place = FileNames(read.run, read.capture).place(one.place)
        yield (
            f"{units.plural(one.processes, 'process', 'processes')} that the program started with "
            f"{one.function}() ({place}): only the process that started them is recorded"
        )


def _of_work(
    read: RunRead, times: StepTimes, found: Traced, work: Efficiency, device: Device | None
) -> Iterator[str]:
    if found.work is None:
        # The program says itself why it traced nothing, where it knows.
        if not any("trace" in text for text in (read.capture.missing if read.capture else ())):
            are = "is" if times.counted == 1 else "are"
            steps = units.plural(times.counted, "step")
            short = f": {steps} {are} too few" if _few(times) else ""
            yield f"no step was traced{short}; FLOPs, MFU and the reasons for waiting are not known"
        return
    if work.flops_per_step is None:
        yield f"FLOPs: {found.work.trust.why or 'no matrix product was seen in the traced steps'}"
    elif work.coverage is not None and work.coverage < ENOUGH:
        names = ", ".join(work.uncounted[:3])
        without = f": no formula for {names}" if names else ""
        yield f"FLOPs cover {units.percent(work.coverage)} of operator time{without}"
    if work.flops_per_step is not None and work.mfu is None:
        yield _no_mfu(read, found.work.dtype, work, device)
    yield from found.work.notes


def _no_mfu(read: RunRead, dtype: str, work: Efficiency, device: Device | None) -> str:
    kind = "GPU" if read.on_gpu else "processor"
    again = "ridgeline hardware --measure on a quiet machine replaces it"
    if work.ceiling_state == "exceeded" and work.flops_s and work.ceiling_flops_s:
        rates = f"{units.flops(work.flops_s)} here, {units.flops(work.ceiling_flops_s)} the ceiling"
        why = "ceiling exceeded, probably measured on a busy machine"
        return f"MFU: {dtype} {why} ({rates}); {again}"
    if work.ceiling_state in ("disturbed", "exceeded"):
        why = "was measured while the machine was busy"
        if work.ceiling_state == "exceeded":
            why = "was exceeded by a program"
        return f"MFU: the {dtype} ceiling of this {kind} {why} and is not used; {again}"
    which = f"{dtype} ceiling" if device is not None else "ceiling"
    return f"MFU: no {which} of this {kind} is known; ridgeline hardware --measure finds it"


def _of_rates(read: RunRead, rate: Throughput, spent: Energy) -> Iterator[str]:
    if rate.steps_s and not (rate.samples_s or rate.tokens_s):
        yield "samples a second: the batch's size was not recognised"
    if not read.telemetry:
        yield "no telemetry was recorded"
    elif spent.joules_per_step is None and rate.steps_s:
        yield (
            "energy: the timed steps were over too soon for the counter"
            if _counted(read)
            else "energy: no counter of it can be read here"
        )
    if read.ranks > 1:
        yield (
            f"times and work are of one rank; throughput is taken times {read.ranks}, "
            "as in data parallelism"
        )


def with_reasons(spent: Energy, read: RunRead, rate: Throughput) -> Energy:
    """Return `spent` with a reason for each figure that was asked for and is not known."""
    asked, cost, carbon = read.run.settings, spent.cost_missing, spent.carbon_missing
    if asked.price_per_hour is not None and spent.cost_per_million_samples is None:
        cost = "no-samples" if rate.steps_s else "no-steps"
    if asked.carbon_g_per_kwh is not None and spent.carbon_g_per_million_samples is None:
        carbon = _why_no_carbon(spent, read, rate)
    return replace(spent, cost_missing=cost, carbon_missing=carbon)


def _why_no_carbon(spent: Energy, read: RunRead, rate: Throughput) -> Missing:
    if not read.telemetry:
        return "no-telemetry"
    if not _counted(read):
        return "no-counter"
    if not rate.steps_s:
        return "no-steps"
    return "too-short" if spent.joules_per_step is None else "no-samples"


def _few(times: StepTimes) -> bool:
    return times.counted < 20


def _counted(read: RunRead) -> bool:
    """Whether any counter that would serve this program was seen."""
    gpus = [d for t in read.telemetry for d in t.devices] if read.on_gpu else []
    if any(d.energy_j is not None or d.power_w is not None for d in gpus):
        return True
    return any(t.package_energy_j is not None for t in read.telemetry)


_IN_PYTHON = ("input-bound", "launch/overhead-bound")
_AGAIN = ("script", "module")
_WORTH_SAMPLING = 20
"""Steps below which a sampler sees nothing."""
_LONGEST = 160


def command_line(target: Target) -> str:
    """As it was typed after `ridgeline run`."""
    before = {"module": ["-m"], "code": ["-c"]}.get(target.kind, [])
    words = [*before, target.name, *target.arguments] if target.name else []
    return " ".join(shlex.quote(word) for word in words)


def next_commands(
    directory: RunDirectory,
    target: Target,
    verdict: Verdict,
    device: Device | None,
    view: PythonView | None,
    capture: Capture | None,
) -> tuple[NextCommand, ...]:
    commands = []
    trace = directory.trace_file(capture.rank if capture is not None else 0)
    long = capture is not None and capture.steps >= _WORTH_SAMPLING
    if verdict.bound in _IN_PYTHON and view is None and long and target.kind in _AGAIN:
        again = f"ridgeline run --python {command_line(target)}"
        text = again if len(again) <= _LONGEST else "ridgeline run --python …"
        commands.append(NextCommand("python", text))
    if trace.is_file():
        several = capture is not None and capture.world > 1  # only all traces show who was late
        looked_at = directory.path if several else trace
        text = f"ridgeline trace {shlex.quote(_near(looked_at))}"
        commands.append(NextCommand("trace", text))
    if capture is not None and capture.steps and not _measured(device):
        commands.append(NextCommand("ceilings", "ridgeline hardware --measure"))
    return tuple(commands)


def _measured(device: Device | None) -> bool:
    return device is not None and any(
        c.quantity == "matmul" and c.state == "usable" for c in device.ceilings
    )


def _near(path: Path) -> str:
    """As short as it can be typed from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
