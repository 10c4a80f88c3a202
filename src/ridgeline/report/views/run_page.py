"""The page of a run: the verdict and the numbers that matter, the findings, and then each part of
the record as a figure: steps, telemetry, memory, surroundings, and how all this was measured."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from statistics import mean
from typing import get_args

from ridgeline import units
from ridgeline.records.run import Phase, Step, StepWindow, Telemetry
from ridgeline.records.run_page import RunPage
from ridgeline.records.run_summary import RunSummary
from ridgeline.report.document import (
    Block,
    Document,
    Item,
    KeyNumber,
    KeyNumbers,
    Labelled,
    Paragraph,
    Section,
    Span,
    item,
    plain,
)
from ridgeline.report.drawings import Band, Curve, CurvesPlot, Mark, Unit
from ridgeline.report.numbers import share
from ridgeline.report.reasons import verdict_sentence
from ridgeline.report.views import run, run_work
from ridgeline.report.views.findings import answers_section, findings_section
from ridgeline.report.views.run_memory import memory_blocks
from ridgeline.report.views.timeline import timeline_section

PHASES: tuple[Phase, ...] = get_args(Phase)
MIN_CURVE_POINTS = 2
_WINDOWS: dict[StepWindow, str] = {
    "traced": "traced", "memory": "memory recorded", "disturbed": "disturbed",
}  # fmt: skip
"""Windows whose steps take longer than the program's own; the figures leave them out."""
UNDIVIDED = "not divided"
"""Name of the steps of which only the length is known."""
LOSS_DIGITS = 4


def document(page: RunPage) -> Document:
    summary = page.summary
    limited = summary.verdict.bound in ("unknown", "memory-capacity-bound")
    blocks: list[Block] = [*_ending(summary), KeyNumbers(tuple(_key_numbers(summary)))]
    if summary.findings.findings or (summary.step.phases and not limited):
        blocks.append(findings_section(summary.findings))
    blocks += timeline_section(
        page.timeline, page.source, summary.findings.findings, summary.python
    )
    blocks += _steps(page)
    blocks += run_work.work_sections(page)
    blocks += _python(page)
    blocks += _memory(page)
    blocks += _telemetry(page)
    if remarks := run.remarks(summary):
        blocks.append(Section(title="Remarks", blocks=(Labelled(remarks),)))
    blocks.append(answers_section(summary.findings, "page"))
    blocks.append(Section(title="Surroundings", blocks=(Labelled(tuple(_surroundings(page))),)))
    blocks.append(
        Section(title="How this was measured", blocks=(Labelled(tuple(_measuring(page))),))
    )
    return Document(
        answer=(Span(verdict_sentence(summary.verdict)),),
        about=run.about(summary),
        blocks=tuple(blocks),
        title=f"{summary.name}: {verdict_sentence(summary.verdict)}",
        footer=summary.run_dir,
    )


def _ending(summary: RunSummary) -> Iterator[Paragraph]:
    """Yield how the program ended, if that is not its own end: all numbers are of a part of it."""
    if summary.status in ("raised", "killed", "damaged"):
        for ending in run.endings(summary):
            yield Paragraph(f"the program {plain(ending.lines[0])}", "error")


def _key_numbers(summary: RunSummary) -> Iterator[KeyNumber]:
    """Yield the numbers that matter most, as far as they are known."""
    step, rate, work = summary.step, summary.throughput, summary.efficiency
    if step.median_ms is not None:
        low, high = step.ci or (step.median_ms, step.median_ms)
        note = (
            f"95 % between {_milliseconds(low)} and {_milliseconds(high)}" if step.steps > 1 else ""
        )
        yield KeyNumber("step", _milliseconds(step.median_ms), note)
    if rate.tokens_s or rate.samples_s:
        value = rate.tokens_s or rate.samples_s or 0.0
        noun = "tokens" if rate.tokens_s else "samples"
        yield KeyNumber("throughput", units.count(value), f"{noun} a second")
    if step.phases:
        largest = max(step.phases, key=lambda phase: phase.share)
        yield KeyNumber("largest phase", largest.phase, f"{share(largest.share)} of the step")
    if work.mfu is not None:
        note = f"{units.flops(work.flops_s or 0.0)} of {units.flops(work.ceiling_flops_s or 0.0)}"
        yield KeyNumber("MFU", units.percent(work.mfu), note)
    elif work.flops_s is not None:
        yield KeyNumber("arithmetic", units.flops(work.flops_s))
    memory = summary.memory
    if memory.device_peak_bytes:
        total = memory.device_total_bytes
        note = f"of {units.bytes_(total)} on the device" if total else ""
        yield KeyNumber("peak memory", units.bytes_(memory.device_peak_bytes), note)
    elif memory.host_peak_bytes:
        yield KeyNumber("peak memory", units.bytes_(memory.host_peak_bytes), "of the host")
    seen = summary.telemetry
    if seen.gpu_utilisation is not None:
        yield KeyNumber("GPU in use", share(seen.gpu_utilisation), "of the time")
    elif seen.program_cores is not None:
        used = seen.program_cores + (seen.worker_cores or 0.0)
        note = f"of {seen.cores}" if seen.cores else ""
        if seen.worker_cores:
            note += f", {units.significant(seen.worker_cores, 2)} of them by workers"
        yield KeyNumber("processors in use", units.significant(used, 2), note)


def _python(page: RunPage) -> Iterator[Section]:
    """Yield the sampled stacks of Python and its costliest lines, where they were asked for."""
    blocks: list[Block] = []
    if (plot := run_work.python_plot(page.stacks)) is not None:
        blocks.append(plot)
    if page.summary.python is not None:
        blocks += run.python_section(page.summary.python).blocks
    if blocks:
        yield Section(title="Python", blocks=tuple(blocks))


def _milliseconds(value: float) -> str:
    return units.seconds(value / 1e3)


def _steps(page: RunPage) -> Iterator[Section]:
    steps = [step for step in page.steps if step.dur_ns > 0]
    if len(steps) < MIN_CURVE_POINTS:
        return
    blocks: list[Block] = [_step_curves(page, steps), *_distribution(page)]
    losses = [step for step in steps if step.loss is not None]
    if len(losses) >= MIN_CURVE_POINTS:
        first, last = (
            units.significant(step.loss or 0.0, LOSS_DIGITS) for step in (losses[0], losses[-1])
        )
        blocks.append(CurvesPlot(
            title=f"The loss goes from {first} to {last}", from_zero=False,
            x=tuple(float(step.index) for step in losses), x_name="step", unit="",
            curves=(Curve(name="loss", values=tuple(step.loss for step in losses)),),
        ))  # fmt: skip
    if page.steps_left_out:
        blocks.append(Paragraph(
            f"{page.steps_left_out:,} further steps are not drawn; steps.jsonl has them.", "quiet"
        ))  # fmt: skip
    yield Section(title="Steps", blocks=tuple(blocks))


def _step_curves(page: RunPage, steps: Sequence[Step]) -> CurvesPlot:
    """Return each step as a stack of its phases, or as a whole where only its length is known."""
    parts = {phase: tuple(_phase_ms(step, phase) for step in steps) for phase in PHASES}
    undivided = tuple(0.0 if step.detailed else step.dur_ns / 1e6 for step in steps)
    if not any(step.detailed for step in steps):
        parts.clear()
    summary, phases = page.summary, page.summary.step.phases
    title = "Each step by its phases"
    if phases:
        largest = max(phases, key=lambda phase: phase.share)
        title = f"{largest.phase} takes {share(largest.share)} of a step"
    return CurvesPlot(
        title=title,
        x=tuple(float(step.index) for step in steps),
        x_name="step",
        unit="ms",
        stacked=True,
        stepped="around",
        curves=tuple(
            Curve(name=name, kind=kind, values=values)
            for name, kind, values in (
                *((phase, phase, values) for phase, values in parts.items()),
                (UNDIVIDED, "unknown", undivided),
            )
            if any(values)
        ),
        bands=tuple(_bands(steps, page.first_steady)),
        marks=tuple(Mark(float(i), "compiles") for i in summary.step.compile_steps[:3]),
        caption="Drag over a part to zoom in, click twice to see all again; click a phase below to "
        f"hide it. Shaded: steps that no figure counts.{_undivided(undivided)}",
    )


def _undivided(lengths: Sequence[float]) -> str:
    if not any(lengths):
        return ""
    return f" Steps that are {UNDIVIDED} were only timed, because they are short."


def _distribution(page: RunPage) -> Iterator[CurvesPlot]:
    found, step = page.step_ms, page.summary.step
    if found is None or step.median_ms is None:
        return
    beyond = f" {units.plural(found.beyond, 'step')} took longer." if found.beyond else ""
    yield CurvesPlot(
        title=f"Half of the steps take {_milliseconds(step.median_ms)} or less",
        x=found.edges, x_name="time of a step", x_unit="ms", unit="count", stacked=True,
        stepped="after", marks=(Mark(step.median_ms, "median"),),
        curves=(Curve(name="steps", values=(*found.counts, 0)),),
        caption=f"How many of the {units.plural(step.steps, 'steady step')} took how long.{beyond}",
    )  # fmt: skip


def _phase_ms(step: Step, phase: Phase) -> float:
    if not step.detailed:
        return 0.0
    known = step.device or step.host
    if phase == "other":
        return max(step.dur_ns - sum(known.values()), 0) / 1e6 + known.get("other", 0) / 1e6
    return known.get(phase, 0) / 1e6


def _bands(steps: Sequence[Step], first_steady: int | None) -> Iterator[Band]:
    """Yield the runs of steps that are not counted."""

    def meaning(step: Step) -> str:
        is_early = step.window == "settle" or (first_steady or 0) > step.index
        return _WINDOWS.get(step.window, "warm-up" if is_early else "")

    for text, run_of in groupby(steps, meaning):
        same = list(run_of)
        if text:
            yield Band(same[0].index - 0.5, same[-1].index + 0.5, text)


def _memory(page: RunPage) -> Iterator[Section]:
    """Yield the memory at the ends of steps, and that of the processes between them."""
    blocks: list[Block] = [*memory_blocks(page.memory)]
    steps = [(step.index, step.memory) for step in page.steps if step.memory is not None]
    at = tuple(float(index) for index, _ in steps)
    for title, curves in (
        ("Memory of the device at the end of each step", (
            ("allocated", tuple(m.allocated_bytes for _, m in steps)),
            ("peak so far", tuple(m.peak_bytes for _, m in steps)),
            ("reserved", tuple(m.reserved_bytes for _, m in steps)),
        )),
        ("Memory that malloc has handed out at the end of each step", (
            ("allocated", tuple(m.host_bytes for _, m in steps)),
        )),
    ):  # fmt: skip
        seen = [(name, values) for name, values in curves if any(values)]
        if len(at) >= MIN_CURVE_POINTS and seen:
            drawn = tuple(Curve(name=name, values=values) for name, values in seen)
            blocks.append(CurvesPlot(title=title, x=at, x_name="step", unit="bytes", curves=drawn))
    program = [_resident(sample, worker=False) for sample in page.telemetry]
    workers = [_resident(sample, worker=True) for sample in page.telemetry]
    title = "Resident memory of the program's processes"
    blocks += _over_time(
        page, title, "bytes", [("program", program), ("workers", workers)], stacked=True
    )
    if blocks:
        yield Section(title="Memory", blocks=tuple(blocks))


def _resident(sample: Telemetry, *, worker: bool) -> float | None:
    return sum(p.rss_bytes for p in sample.processes if p.worker == worker) or None


def _telemetry(page: RunPage) -> Iterator[Section]:
    samples = page.telemetry
    devices = sorted({d.index for s in samples for d in s.devices if d.ours}) or sorted(
        {d.index for s in samples for d in s.devices}
    )
    blocks: list[Block] = []
    cores: list[tuple[str, list[float | None]]] = [
        ("program", _rates(samples, worker=False)), ("workers", _rates(samples, worker=True)),
    ]  # fmt: skip
    keeps = "The program and its workers keep" if _known(cores[1][1]) else "The program keeps"
    number = units.significant(sum(mean(_known(values) or (0.0,)) for _, values in cores), 2)
    of = f" of {page.run.environment.cores}" if page.run.environment.cores else ""
    blocks += _over_time(page, f"{keeps} {number}{of} processors busy", "count", cores)
    for field, unit in _OF_GPU.items():
        curves: list[tuple[str, list[float | None]]] = [
            (f"GPU {index}", [_of_device(sample, index, field) for sample in samples])
            for index in devices
        ]
        values = _known([value for _, one in curves for value in one])
        if values:
            blocks += _over_time(page, _gpu_title(field, values, samples), unit, curves)
    spent = page.summary.energy
    if spent.joules_per_step:
        source = f" ({spent.source})" if spent.source else ""
        joules = units.significant(spent.joules_per_step)
        blocks.append(Paragraph(f"A step takes {joules} J of energy{source}."))
    if blocks:
        yield Section(title="Telemetry", blocks=tuple(blocks))


_OF_GPU: dict[str, Unit] = {
    "utilisation_percent": "%", "sm_mhz": "MHz", "power_w": "W", "temperature_c": "°C"
}  # fmt: skip


def _known(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _gpu_title(field: str, values: Sequence[float], samples: Sequence[Telemetry]) -> str:
    """Return what the samples of GPUs show, in a sentence."""
    average, most = units.significant(mean(values)), units.significant(max(values))
    if field == "utilisation_percent":
        return f"The GPU is in use {average} % of the time"
    if field == "sm_mhz":
        limit = max((d.sm_max_mhz or 0 for s in samples for d in s.devices), default=0)
        of = f" of {limit:,} MHz" if limit else " MHz"
        return f"The GPU runs at {mean(values):,.0f}{of} on average"
    if field == "power_w":
        limit_w = max((d.power_limit_w or 0.0 for s in samples for d in s.devices), default=0.0)
        of = f"; its limit is {units.significant(limit_w)} W" if limit_w else ""
        return f"The GPU draws {average} W on average and {most} W at most{of}"
    return f"The GPU is {average} °C warm on average and {most} °C at most"


def _of_device(sample: Telemetry, index: int, field: str) -> float | None:
    return next((getattr(d, field) for d in sample.devices if d.index == index), None)


def _rates(samples: Sequence[Telemetry], *, worker: bool) -> list[float | None]:
    """Return how many processors were kept busy since the sample before."""
    rates: list[float | None] = [None]
    for before, now in pairwise(samples):
        used = {p.pid: p.cpu_s for p in before.processes if p.worker == worker}
        spent = [
            p.cpu_s - used[p.pid] for p in now.processes if p.worker == worker and p.pid in used
        ]
        passed_s = (now.at_ns - before.at_ns) / 1e9
        rates.append(sum(spent) / passed_s if spent and passed_s > 0 else None)
    return rates


def _over_time(
    page: RunPage, title: str, unit: Unit, curves: Iterable[tuple[str, Sequence[float | None]]],
    *, stacked: bool = False,
) -> Iterator[CurvesPlot]:  # fmt: skip
    """Yield a figure over the time since the program began, if anything is known."""
    known = [
        (name, values)
        for name, values in curves
        if sum(value is not None for value in values) >= MIN_CURVE_POINTS and any(values)
    ]
    if known:
        began_ns = page.run.began_ns
        yield CurvesPlot(
            title=title, x_name="time", x_unit="s", unit=unit, stacked=stacked,
            x=tuple((sample.at_ns - began_ns) / 1e9 for sample in page.telemetry),
            curves=tuple(Curve(name=name, values=tuple(values)) for name, values in known),
        )  # fmt: skip


def _surroundings(page: RunPage) -> Iterator[Item]:
    seen = page.run.environment
    flags = page.capture.flags if page.capture is not None else None
    device = page.capture.device if page.capture is not None else None
    yield item("command", page.summary.command or "—")
    yield item("began", page.run.began_at or "—")
    yield item("machine", " · ".join(filter(None, (
        seen.host, seen.system, units.plural(seen.cores, "core") if seen.cores else "",
        units.bytes_(seen.memory_bytes) if seen.memory_bytes else "",
    ))) or "—")  # fmt: skip
    if device is not None and device.name:
        size = units.bytes_(device.memory_bytes) if device.memory_bytes else ""
        yield item("device", " · ".join(filter(None, (device.name, size))))
    versions = {"python": seen.python, **({"torch": flags.torch} if flags else {}), **seen.packages}
    shown = [f"{name} {version}" for name, version in versions.items() if version]
    if shown:
        yield item("versions", " · ".join(shown))
    if flags is not None and flags.threads:
        yield item("threads of torch", str(flags.threads))
    if seen.variables:
        yield item("variables", " · ".join(f"{k}={v}" for k, v in seen.variables.items()))
    if seen.git is not None and seen.git.commit:
        changed = ", with uncommitted changes" if seen.git.dirty else ""
        yield item("source", f"commit {seen.git.commit[:12]}{changed}")
    if seen.directory:
        yield item("folder", seen.directory)


_STEPPING = {
    "said": "each call of ridgeline.step()", "optimizer": "each update of the optimizer",
    "backward": "the first forward after a backward", "call": "each outermost call of the model",
}  # fmt: skip


def _measuring(page: RunPage) -> Iterator[Item]:
    summary, step = page.summary, page.summary.step
    if page.capture is not None and page.capture.stepping:
        yield item("a step ends at", _STEPPING[page.capture.stepping])
    clock = "the device's own clock" if step.clock == "device" else "the host's clock"
    if step.steps:
        yield item(
            "step times",
            f"{units.plural(step.steps, 'steady step')} by {clock}, after "
            f"{units.plural(step.warmup_steps, 'step')} of warm-up; the interval is that of the "
            "median at 95 %",
        )
    traced = sum(one.window == "traced" for one in page.steps)
    if traced:
        yield item("trace", f"{units.plural(traced, 'step')}; figures of operators are from these, "
                   "times of steps are not")  # fmt: skip
    if page.telemetry:
        total = len(page.telemetry) + page.telemetry_left_out
        yield item("telemetry", f"{units.plural(total, 'sample')} by a process beside the program")
    yield from _overhead(page)
    yield item("estimated", *_estimated(summary))
    for text in (*summary.problems, *page.problems):
        yield item("problem", text, level="doubt")


def _overhead(page: RunPage) -> Iterator[Item]:
    """Yield what recording cost the program, as far as this run tells."""
    lines = [
        "timing the other steps costs less than 1 % of a step of 5 ms, and less of longer ones "
        "(measured on other programs)"
    ]
    if page.traced_factor is not None:
        times = units.significant(page.traced_factor, 2)
        lines.insert(0, f"a traced step takes {times} × as long as a steady one")
    yield item("overhead", *lines)


def _estimated(summary: RunSummary) -> Iterator[str]:
    """Yield which figures are no measurements, and what they rest on."""
    work = summary.efficiency
    if work.flops_per_step is not None:
        covered = f", which {share(work.coverage)} of operator time have" if work.coverage else ""
        yield f"FLOPs: counted by formulas from the shapes of operators{covered}"
        yield "bytes and intensity: the least that an operator has to move"
    if work.ceiling_flops_s is not None:
        source = "measured on this machine" if work.ceiling_source == "measured" else "a datasheet"
        yield f"the ceiling for MFU: {source}, {units.flops(work.ceiling_flops_s)}"
    yield (
        "the gain of a finding: the most that can be won if its time goes to zero; ridgeline "
        "optimize and ridgeline compare measure what a fix brings"
    )
