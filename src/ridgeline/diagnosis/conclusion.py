"""A run directory to its summary: read, time, study, decide.

Every part is tried alone, so that a killed, empty or damaged run still says what it can. With
several ranks the figures are of rank 0, and throughput is taken times the number of ranks.
"""

import contextlib
import itertools
import math
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.build_case import Traced, case_of_run, device_with_ceilings, traced
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.findings import findings
from ridgeline.diagnosis.limit import limit, unknown
from ridgeline.diagnosis.machine_use import energy, telemetered
from ridgeline.diagnosis.memory_use import memory_use, with_death_for_memory
from ridgeline.diagnosis.python_view import python_view, settled
from ridgeline.diagnosis.rank_delays import lateness
from ridgeline.diagnosis.recorded_run import Attempts, FileNames, RunRead, read_run
from ridgeline.diagnosis.run_memory import brief, run_memory
from ridgeline.diagnosis.shares import Observed, preemption
from ridgeline.diagnosis.step_times import (
    SteadySteps,
    efficiency,
    region_times,
    steady_steps,
    throughput,
    times_of,
)
from ridgeline.errors import RidgelineError
from ridgeline.records.facts import Place, Reason, because
from ridgeline.records.finding import Findings
from ridgeline.records.machine import Device
from ridgeline.records.memory import MemoryStudy
from ridgeline.records.run import Capture, PythonView, Sampled, Status, Step, Target
from ridgeline.records.run_directory import NewerSchema, RunDirectory, is_process_alive
from ridgeline.records.run_summary import (
    Efficiency,
    Energy,
    MemoryUse,
    MissingCode,
    NextCommand,
    RankEnd,
    RunSummary,
    StepTimes,
    SyncPoint,
    Telemetered,
    Throughput,
)
from ridgeline.records.verdict import Bound, LimitCode, Verdict

MIN_FULL_COVERAGE = 0.9
"""If formulas tell the FLOPs of this share of operator time, the rest is not worth a line."""
MAX_NAMED_OPERATORS = 3
MIN_STEPS_TO_TRACE = 20
"""A program that took fewer steps was too short for a trace."""
MIN_STEPS_TO_SAMPLE = 20
"""In a program of fewer steps a sampler of Python's stacks sees nothing."""
MAX_COMMAND_LENGTH = 160
_IN_PYTHON: tuple[Bound, ...] = ("input-bound", "launch/overhead-bound")


def _silent(text: str) -> None:
    pass


def conclude(directory: RunDirectory, on_progress: Callable[[str], None] = _silent) -> RunSummary:
    """Return the summary of a run. Raise NewerSchema if a newer version wrote the run."""
    return concluded_case(directory, on_progress)[0]


def recorded_summary(directory: RunDirectory) -> RunSummary:
    """Return what was concluded. If nothing was (the run was killed, or still runs) or the summary
    is damaged, conclude from what was recorded. Raise NewerSchema as `conclude` does."""
    try:
        summary = directory.summary()
        if summary is not None:
            return summary
    except NewerSchema:
        raise
    except RidgelineError:
        pass
    return conclude(directory)


def concluded_case(
    directory: RunDirectory, on_progress: Callable[[str], None] = _silent
) -> tuple[RunSummary, Case | None]:
    """Return the summary of a run, and the case from which its findings were drawn."""
    attempts = Attempts()
    on_progress("reading the run")
    read = read_run(directory, attempts)
    steady, times = _timed(read, attempts)
    device = attempts.part("the ceilings", lambda: _device(read))
    on_progress("studying the trace")
    trace = _traced(directory, read, device, attempts)
    on_progress("deciding")
    rate = throughput(times, steady.phase_steps, read.ranks, len(steady.pauses))
    work = efficiency(trace.work, times, device)
    seen, spent = _machine(read, steady, rate, attempts)
    taken = preemption(read.capture, seen)
    seen = replace(seen, preempted_share=taken.light if taken is not None else None)
    memory = attempts.part(
        "the memory", lambda: memory_use(read.capture, read.steps, read.telemetry)
    )
    memory = memory or MemoryUse()
    read = attempts.part("the end", lambda: with_death_for_memory(read, memory)) or read
    names, capture = FileNames(read.run, read.capture), read.capture
    sampled = attempts.part("the Python samples", directory.sampled) or ()
    view = attempts.part("the Python view", lambda: _python(sampled, read))
    asked = sampled if read.run.settings.python else ()  # else only the rules look at it
    shown = attempts.part("the Python view", lambda: python_view(asked) if asked else None)
    observed = Observed(
        times=times, work=trace.work, study=trace.study, memory=memory, telemetered=seen,
        capture=capture, efficiency=work, fed=trace.fed,
    )  # fmt: skip
    case = attempts.part(
        "the case",
        lambda: case_of_run(
            read, trace, observed, throughput=rate, python=view, device=device,
            pauses=steady.pauses,
        ),
    )  # fmt: skip
    late = attempts.part("the late rank", lambda: lateness(case)) if case is not None else None
    late = late and replace(late, place=names.place(late.place))
    verdict = attempts.part("the verdict", lambda: limit(observed, late))
    verdict = verdict or unknown(because(LimitCode.FAILED))
    verdict = replace(verdict, place=names.place(verdict.place))
    on_progress("looking for causes")
    drawn = _findings(case, names, attempts) if case is not None else Findings()
    on_progress("studying memory")
    by_line = attempts.part(
        "the memory by line",
        lambda: run_memory(directory, read, case, drawn, names) if case is not None else None,
    )
    if by_line is not None:
        attempts.part("the memory by line", lambda: _keep_memory(directory, by_line))
    summary = replace(
        _identity(directory, read, verdict, names, attempts),
        step=times,
        regions=attempts.part("the regions", lambda: region_times(steady.steps)) or (),
        throughput=rate,
        efficiency=work,
        memory=memory,
        energy=with_reasons(spent, read, rate),
        telemetry=seen,
        sync_points=_sync_points(trace.syncs, case, read, names),
        python=shown,
        findings=drawn,
        memory_study=brief(by_line) if by_line is not None else None,
        missing=left_out(read, times, rate, trace, work, spent, device),
        next=next_commands(directory, read.run.target, verdict, device, shown, capture),
    )
    problems = (*(capture.problems if capture is not None else ()), *attempts.failures)
    return replace(summary, problems=tuple(dict.fromkeys(problems))), case


def _keep_memory(directory: RunDirectory, study: MemoryStudy) -> None:
    """Write the whole study for the run's page, and remove what it was made from. A run that lies
    on a full disk or belongs to someone else keeps that."""
    with contextlib.suppress(OSError):
        directory.write_whole(directory.memory_study_file.name, msgspec.json.encode(study))


def _sync_points(
    syncs: Sequence[SyncPoint], case: Case | None, read: RunRead, names: FileNames
) -> tuple[SyncPoint, ...]:
    """Return the synchronisation points, each at the line of its function that was seen making most
    of these calls, if that is known. A trace has only the line where the function begins."""
    points = []
    calls = read.capture.calls if read.capture is not None else ()
    for point in syncs:
        begin = Place.parse(point.place) or Place("")
        source = case.sources.get(begin.file) if case is not None and begin.line else None
        name = point.call.removeprefix("aten::")
        lines = source.lines_calling(begin.line or 0, name) if source is not None else ()
        times = {call.line: call.times for call in calls if call.name == name}
        seen = [line for line in lines if line in times]
        place = point.place
        if seen:
            place = f"{begin.file}:{max(seen, key=lambda line: times[line])}"
        points.append(replace(point, place=names.place(place)))
    return tuple(points)


def _findings(case: Case, names: FileNames, attempts: Attempts) -> Findings:
    """Return the findings, each file under the one name that it has in the report."""
    drawn = findings(case, attempts)
    loss = drawn.loss
    if loss is not None:
        places = tuple(replace(place, file=names.shown(place.file)) for place in loss.places)
        loss = replace(loss, places=places)
    renamed = []
    for finding in drawn.findings:
        file = names.shown(finding.file)
        own_id = finding.id.replace(finding.file, file, 1) if finding.file else finding.id
        evidence = tuple(replace(e, text=names.short(e.text)) for e in finding.evidence)
        edits = tuple(replace(edit, file=names.shown(edit.file)) for edit in finding.edits)
        renamed.append(replace(finding, id=own_id, file=file, evidence=evidence, edits=edits))
    return replace(drawn, findings=tuple(renamed), loss=loss)


def _identity(
    directory: RunDirectory, read: RunRead, verdict: Verdict, names: FileNames, attempts: Attempts
) -> RunSummary:
    """Return what ran, how it ended, and the verdict, without any figure."""
    capture, status = read.capture, read.run.status
    if status != "damaged":
        status = attempts.part("the status", directory.status) or status
    broken = [step for step in read.steps if step.loss_broke]
    first_broken = min(broken, key=lambda step: step.index, default=None)
    full = capture.out_of_memory if capture is not None else None
    if full is not None:
        alive = tuple((names.place(place), size, blocks) for place, size, blocks in full.alive)
        full = replace(full, place=names.place(full.place), alive=alive)
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
        loss_broke=(
            f"{first_broken.loss_broke} at step {first_broken.index}" if first_broken else ""
        ),
        out_of_memory=full,
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
    path = directory.stored_trace(rank)
    if path is None:
        return Traced()
    windows = read.capture.windows if read.capture is not None else ()
    steps = sum(window.steps for window in windows if window.kind == "traced")
    return traced(path, steps, device, attempts)


def _machine(
    read: RunRead, steady: SteadySteps, rate: Throughput, attempts: Attempts
) -> tuple[Telemetered, Energy]:
    """Return the telemetry and the energy of the longest stretch of steady steps that no trace
    interrupts."""
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
    """Return the processors of the machine. Return 0 if the host's use cannot be split into the
    program's and others': a program is held to some of the processors, or there are several ranks,
    each with a watcher of its own."""
    cores = read.run.environment.cores
    return cores if read.ranks == 1 and cores >= (os.cpu_count() or 1) else 0


def _longest_stretch(steps: Sequence[Step]) -> list[Step]:
    """Return the longest run of steps that follow each other. The place of a step less its index is
    the same in a stretch."""
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


def _recompiles(capture: Capture | None) -> tuple[str, ...]:
    found = capture.compilations if capture is not None else ()
    return tuple(
        f"{one.place or one.function}: {one.recompile_reason}"
        for one in found
        if one.recompile_reason
    )


def _graph_breaks(capture: Capture | None) -> tuple[str, ...]:
    """Return the graph breaks with their places as Dynamo told them, else by its counter."""
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


def left_out(
    read: RunRead,
    times: StepTimes,
    rate: Throughput,
    trace: Traced,
    work: Efficiency,
    spent: Energy,
    device: Device | None,
) -> tuple[Reason | str, ...]:
    """Return what the summary does not hold, and why: never a silent zero."""
    capture = read.capture
    missing: list[Reason | str] = []
    if capture is not None:
        names = FileNames(read.run, capture)
        missing += capture.missing
        missing += [
            because(
                MissingCode.CHILDREN, processes=one.processes, function=one.function,
                place=names.place(one.place),
            )
            for one in capture.children
        ]  # fmt: skip
    if times.counted:
        missing += _missing_work(read, times, trace, work, device)
        missing += _missing_rates(read, rate, spent)
    return tuple(
        text for number, text in enumerate(missing) if text not in missing[:number]
    )  # reasons hold dictionaries, which have no hash


def _missing_work(
    read: RunRead, times: StepTimes, trace: Traced, work: Efficiency, device: Device | None
) -> Iterator[Reason | str]:
    if trace.work is None:
        if read.capture is not None and read.capture.no_trace:
            return  # the program's process says why
        ended = read.capture is not None and read.capture.ended != "running"
        if ended and times.counted < MIN_STEPS_TO_TRACE:  # else later steps may be lost
            yield because(MissingCode.TOO_FEW_STEPS_TO_TRACE, steps=times.counted)
        else:
            yield because(MissingCode.NO_TRACED_STEP)
        return
    if work.flops_per_step is None:
        why = trace.work.trust.why
        yield because(MissingCode.FLOPS, text=why) if why else because(
            MissingCode.NO_MATRIX_PRODUCT
        )  # fmt: skip
    elif work.coverage is not None and work.coverage < MIN_FULL_COVERAGE:
        operators = ", ".join(one.op for one in work.uncounted[:MAX_NAMED_OPERATORS])
        yield because(MissingCode.PARTIAL_FLOPS, share=work.coverage, operators=operators)
    if work.flops_per_step is not None and work.mfu is None:
        yield _no_mfu(read, trace.work.dtype, work, device)
    yield from trace.work.notes


def _no_mfu(read: RunRead, dtype: str, work: Efficiency, device: Device | None) -> Reason:
    if work.ceiling_state == "exceeded" and work.flops_s and work.ceiling_flops_s:
        return because(
            MissingCode.CEILING_EXCEEDED_HERE, dtype=dtype, flops_s=work.flops_s,
            ceiling_flops_s=work.ceiling_flops_s,
        )  # fmt: skip
    code = {
        "exceeded": MissingCode.CEILING_EXCEEDED,
        "disturbed": MissingCode.CEILING_DISTURBED,
    }.get(work.ceiling_state, MissingCode.NO_CEILING)
    known = dtype if device is not None else ""
    return because(code, dtype=known, device="GPU" if read.on_gpu else "processor")


def _missing_rates(read: RunRead, rate: Throughput, spent: Energy) -> Iterator[Reason]:
    if rate.steps_s and not (rate.samples_s or rate.tokens_s):
        yield because(MissingCode.BATCH_SIZE)
    if not read.telemetry:
        yield because(MissingCode.TELEMETRY)
    elif spent.joules_per_step is None and rate.steps_s:
        counted = _has_energy_counter(read)
        yield because(MissingCode.ENERGY_TOO_SHORT if counted else MissingCode.NO_ENERGY_COUNTER)
    if read.ranks > 1:
        yield because(MissingCode.OTHER_RANKS, ranks=read.ranks)


def with_reasons(spent: Energy, read: RunRead, rate: Throughput) -> Energy:
    """Return `spent` with a reason for each figure that was asked for and is not known."""
    asked, cost, carbon = read.run.settings, spent.cost_missing, spent.carbon_missing
    if asked.price_per_hour is not None and spent.cost_per_million_samples is None:
        cost = "no-samples" if rate.steps_s else "no-steps"
    if asked.carbon_g_per_kwh is not None and spent.carbon_g_per_million_samples is None:
        if not read.telemetry:
            carbon = "no-telemetry"
        elif not _has_energy_counter(read):
            carbon = "no-counter"
        elif not rate.steps_s:
            carbon = "no-steps"
        else:
            carbon = "too-short" if spent.joules_per_step is None else "no-samples"
    return replace(spent, cost_missing=cost, carbon_missing=carbon)


def _has_energy_counter(read: RunRead) -> bool:
    """Return whether any counter that would serve this program was seen."""
    gpus = [d for t in read.telemetry for d in t.devices] if read.on_gpu else []
    if any(d.energy_j is not None or d.power_w is not None for d in gpus):
        return True
    return any(t.package_energy_j is not None for t in read.telemetry)


def command_line(target: Target) -> str:
    """Return the command as it was typed after `ridgeline run`."""
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
    long = capture is not None and capture.steps >= MIN_STEPS_TO_SAMPLE
    again = target.kind in ("script", "module")
    if verdict.bound in _IN_PYTHON and view is None and long and again:
        text = f"ridgeline run --python {command_line(target)}"
        text = text if len(text) <= MAX_COMMAND_LENGTH else "ridgeline run --python …"
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
    """Return the path as short as it can be typed from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
