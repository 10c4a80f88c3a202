"""A run: what limits it, its main numbers, what holds it back, and a line for each thing that a
person should know about how it was measured."""

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ridgeline import units
from ridgeline.records.facts import Place, Trust
from ridgeline.records.run import PythonView, Status
from ridgeline.records.run_page import RunPage
from ridgeline.records.run_steps import RunSteps
from ridgeline.records.run_summary import (
    Efficiency,
    NextPurpose,
    RunSummary,
    StepTimes,
    SyncPoint,
    Telemetered,
)
from ridgeline.records.step_work import Uncounted
from ridgeline.records.verdict import Bound, Deciding, DoubtCode
from ridgeline.report.document import (
    Block,
    Cell,
    Column,
    Command,
    Commands,
    Document,
    Item,
    Labelled,
    Level,
    Paragraph,
    Part,
    Report,
    Section,
    Span,
    SplitChart,
    Table,
    item,
    row,
)
from ridgeline.report.numbers import share
from ridgeline.report.reasons import (
    deciding_number,
    explain,
    explain_doubts,
    verdict_sentence,
)
from ridgeline.report.views.findings import (
    answers_section,
    findings_data,
    findings_section,
    shown_findings,
)
from ridgeline.report.views.run_memory import memory_items, memory_section, part_of
from ridgeline.report.views.run_steps import run_figures, run_scalars

DOCUMENT_SCHEMA = 1
MAX_HIDDEN_DIFFERENCE = 0.02
"""If the mean step differs from the median by more than this share of the median, both are printed.
The phases add up to the mean, so without it the first lines and the phases would not agree."""
MAX_NAMED = 3
"""How many ranks, waits, graph breaks or missing things are named. The rest is counted; all of them
are in summary.json."""
MAX_SENTENCE_LENGTH = 200
MAX_PYTHON_LINES = 8
MIN_PYTHON_SHARE = 0.001
"""Lines of Python below this share of the samples are left out, if any line is above it."""
MIN_PAUSE_SHARE = 0.1
"""What pauses cost is printed if they take more than this share of the time."""
MIN_PREEMPTION_SHARE = 0.05
"""The time that other processes took is printed from this share of the step on."""
MIN_EXPLAINING_PART = 0.5
"""A finding on the verdict's own subject with at least this part of the deciding share says what
the line of deciding numbers would say, so that line is left out."""
_VERDICT_FAMILIES: dict[Bound, tuple[str, ...]] = {
    "input-bound": ("input",),
    "transfer-bound": ("transfer",),
    "launch/overhead-bound": ("synchronisation", "launch", "compile"),
    "communication-bound": ("communication",),
    "late-rank": ("communication",),
    "memory-capacity-bound": ("memory",),
}
"""Families of findings that explain a verdict. A verdict on work (compute, bandwidth) says how near
its ceiling the work is, which no finding does."""
_OTHER_PROGRAMS_RULES = ("shared-device", "oversubscribed-cpu")
_CLOCK_RULES = ("throttled-clocks",)
_SOURCE_OF_WAIT = {
    "aten::item": ".item()",
    "aten::_local_scalar_dense": ".item()",
    "aten::is_nonzero": "a tensor as a condition",
    "aten::nonzero": "nonzero()",
    "aten::masked_select": "a mask as an index",
    "aten::copy_": "a copy",
    "aten::_to_copy": "a copy",
    "aten::to": ".to()",
}
"""What the user wrote, for the operator in which the host waits."""
_NEXT: dict[NextPurpose, str] = {
    "python": "which lines of Python",
    "trace": "the trace in detail",
    "ceilings": "what this machine can do",
}


def run_report(
    summary: RunSummary,
    page: Callable[[], RunPage] | None = None,
    steps: Callable[[], RunSteps] | None = None,
) -> Report:
    """Return the report of a run. `page` reads what the run's own page shows beside the summary;
    `steps` reads what figures and scalars are made from."""

    def page_document() -> Document:
        from ridgeline.report.views import run_page

        return run_page.document(page()) if page is not None else document(summary)

    return Report(
        document=lambda: document(summary),
        data=lambda: data(summary),
        page=page_document,
        figures=None if steps is None else lambda: run_figures(steps()),
        scalars=None if steps is None else lambda: run_scalars(steps()),
    )


def document(summary: RunSummary) -> Document:
    blocks: list[Block] = [*_phases(summary.step)]
    # If no step was timed, or memory ran out, the verdict says everything: "nothing above 3 %"
    # would read as an all-clear.
    limited = summary.verdict.bound in ("unknown", "memory-capacity-bound")
    if summary.findings.findings or (summary.step.phases and not limited):
        blocks.append(findings_section(summary.findings))
    blocks.append(Labelled(remarks(summary)))
    if summary.python is not None:
        blocks.append(python_section(summary.python))
    blocks += memory_section(summary)
    answers = replace(answers_section(summary.findings, "full"), folded=True)
    blocks += [answers, _end(summary)]
    return Document(
        answer=(Span(verdict_sentence(summary.verdict)),),
        about=about(summary),
        facts=facts(summary),
        blocks=tuple(blocks),
        label="ridgeline",
    )


def about(summary: RunSummary) -> tuple[str, ...]:
    """Return what ran: the program, how many steps, on which device."""
    device = summary.device
    for brand in ("NVIDIA ", "GeForce ", "AMD ", "Instinct ", "Tesla "):
        device = device.removeprefix(brand)
    ranks = f"{summary.ranks} ranks" if summary.ranks > 1 else ""
    codes = {doubt.code for doubt in summary.verdict.trust.doubts}
    alone = "the parent process alone" if DoubtCode.OTHER_PROCESSES_TRAIN in codes else ""
    parts = (_program(summary), _steps(summary.step), alone, device, ranks)
    return tuple(text for text in parts if text)


def facts(summary: RunSummary) -> tuple[str, ...]:
    """Return step time, throughput, arithmetic, memory and energy, as far as they are known."""
    joules = summary.energy.joules_per_step
    parts = (
        _step(summary.step), _throughput(summary), _arithmetic(summary), _peak_memory(summary),
        f"{units.significant(joules)} J/step" if joules else "",
    )  # fmt: skip
    return tuple(text for text in parts if text)


def has_own_mean(step: StepTimes) -> bool:
    """Return whether the mean step differs enough from the median step to be printed."""
    if step.median_ms is None or step.mean_ms is None:
        return False
    return abs(step.mean_ms - step.median_ms) > MAX_HIDDEN_DIFFERENCE * step.median_ms


def _program(summary: RunSummary) -> str:
    try:
        words = shlex.split(summary.command)
    except ValueError:  # the command was cut, or written by hand
        words = summary.command.split()
    if not words:
        return summary.name
    if words[0] == "-c":
        return "-c …"
    if words[0] == "-m" and len(words) > 1:
        return f"-m {words[1]}"
    return os.path.basename(words[0]) or words[0]


def _steps(step: StepTimes) -> str:
    """Return how many steps were watched, and of how many if the program took more."""
    if not step.counted:
        return ""
    if step.taken is None or step.taken <= step.counted:
        return units.plural(step.counted, "step") + (" watched" if step.taken is None else "")
    return f"{step.counted:,} of {step.taken:,} steps watched"


def _step(step: StepTimes) -> str:
    if step.median_ms is None:
        return ""
    text = f"step {_milliseconds(step.median_ms)} ms"
    if step.ci is not None and step.steps > 1:
        text += f" [{_milliseconds(step.ci[0])}, {_milliseconds(step.ci[1])}]"
    if has_own_mean(step) and step.mean_ms is not None:
        text += f", mean {_milliseconds(step.mean_ms)}"
    return text


def _throughput(summary: RunSummary) -> str:
    rate = summary.throughput
    if rate.tokens_s:
        return f"{units.count(rate.tokens_s)} tokens/s"
    if rate.samples_s:
        return f"{units.count(rate.samples_s)} samples/s"
    return f"{units.significant(rate.steps_s)} steps/s" if rate.steps_s else ""


def _arithmetic(summary: RunSummary) -> str:
    work = summary.efficiency
    if work.flops_s is None:
        return ""
    if work.mfu is None:
        return units.flops(work.flops_s)
    return f"{units.flops(work.flops_s)}, {units.percent(work.mfu)} of the peak ({_ceiling(work)})"


def _peak_memory(summary: RunSummary) -> str:
    memory = summary.memory
    if memory.device_peak_bytes:
        if memory.device_total_bytes:
            return f"peak {part_of(memory.device_peak_bytes, memory.device_total_bytes)}"
        return f"peak {units.bytes_(memory.device_peak_bytes)}"
    return f"peak {units.bytes_(memory.host_peak_bytes)}" if memory.host_peak_bytes else ""


def _milliseconds(value: float) -> str:
    return units.significant(value) if value < 1000 else f"{value:,.0f}"


def _phases(step: StepTimes) -> Iterator[Block]:
    """Return the phases of the mean step to scale, and for pages their figures in a table."""
    if not step.phases:
        return
    yield SplitChart(
        title="phases of a step",
        parts=tuple(
            Part(p.phase, p.ms, f"{_milliseconds(p.ms)} ms", _rounded(p.share)) for p in step.phases
        ),
        has_table=True,
    )
    yield Table(
        columns=(Column("phase", "words"), Column("ms"), Column("95 %"), Column("share")),
        rows=tuple(
            row(
                p.phase,
                _milliseconds(p.ms),
                f"[{_milliseconds(p.ci[0])}, {_milliseconds(p.ci[1])}]",
                _rounded(p.share),
            )
            for p in step.phases
        ),
        detail="page",
    )


def _end(summary: RunSummary) -> Block:
    size = f"  ({units.bytes_(summary.bytes_on_disk)})" if summary.bytes_on_disk else ""
    kept = Labelled((item("run", f"{summary.run_dir}{size}", level="quiet"),))
    commands = _commands(summary)
    return Section(title="", blocks=(Commands(commands), kept) if commands else (kept,))


def _commands(summary: RunSummary) -> tuple[Command, ...]:
    """Return what to type next; what explains the first finding comes before the rest."""
    commands = [Command(_NEXT[c.purpose], c.text) for c in summary.next]
    for finding in shown_findings(summary.findings)[:1]:
        commands.insert(0, Command("why, and the fix", f"ridgeline explain {finding.rule}"))
    return tuple(commands)


def remarks(summary: RunSummary) -> tuple[Item, ...]:
    """Return a line for each thing that a person should know and that no shown finding states."""
    return (
        *_deciding_numbers(summary), *endings(summary), *_regions(summary),
        *memory_items(summary), *_energy(summary), *_machine(summary), *_waits(summary),
        *_compilation(summary), *_losses(summary), *_doubts(summary),
        *_first_of("missing", _missing(summary), "quiet"),
        *_first_of("problem", summary.problems, "doubt"),
    )  # fmt: skip


def _deciding_numbers(summary: RunSummary) -> Iterator[Item]:
    verdict = summary.verdict
    families = _VERDICT_FAMILIES.get(verdict.bound, ())
    decisive = 100 * verdict.numbers[0].value if verdict.numbers else 0.0
    if any(
        f.family in families and f.share_pct >= MIN_EXPLAINING_PART * decisive
        for f in shown_findings(summary.findings)
    ):
        return
    parts = [
        f"{' '.join(deciding_number(n))}{' (estimated)' if n.source == 'estimated' else ''}"
        for n in verdict.numbers
    ]
    parts += [verdict.place] if verdict.place else []
    if parts:
        yield item("because", " · ".join(parts))


_ENDINGS: dict[Status, str] = {
    "raised": "ended by an exception",
    "interrupted": "was interrupted",
    "stopped": "was stopped by --stop-after",
    "killed": "ended without a message: killed, crashed or os._exit",
    "running": "is still running, or its end was not seen",
    "damaged": "the record is damaged: how the program ended is not known",
}


def endings(summary: RunSummary) -> Iterator[Item]:
    """Yield how the program and its ranks ended, where that is not their own end."""
    for number, end in enumerate(summary.rank_ends[:MAX_NAMED]):
        first = "first, " if not number and end.status in ("raised", "killed") else ""
        parts = [] if end.torch_imported else ["did not import torch"]
        parts += [_ENDINGS[end.status]] if end.status in _ENDINGS else []
        text = f"{first}rank {end.rank} {' and '.join(parts)}{_why(end.why)}"
        yield item("program", text, level="doubt")
    ending = _ENDINGS.get(summary.status)
    if ending:
        level: Level = "quiet" if summary.status == "stopped" else "doubt"
        yield item("program", ending + _why(summary.why), level=level)


def _why(text: str) -> str:
    return f": {_shortened(text)}" if text else ""


def _regions(summary: RunSummary) -> Iterator[Item]:
    parts = [
        f"{_shortened(region.name)} {units.seconds(region.ms / 1e3)} ({_rounded(region.share)})"
        for region in summary.regions
    ]
    if parts:
        yield item("regions", " · ".join(parts))


_NOT_KNOWN = {
    "no-steps": "no steady step was timed",
    "no-samples": "the batch's size was not recognised",
    "no-telemetry": "no telemetry was recorded",
    "no-counter": "no energy counter can be read on this machine",
    "too-short": "the timed steps were too short for the energy counter",
}


def _energy(summary: RunSummary) -> Iterator[Item]:
    energy = summary.energy
    parts = []
    if energy.joules_per_sample:
        parts.append(f"{units.significant(energy.joules_per_sample)} J a sample")
    if energy.mean_power_w:
        parts.append(f"{units.significant(energy.mean_power_w)} W")
    if energy.source and parts:
        parts[-1] += f" ({energy.source})"
    million = []
    if energy.cost_per_million_samples is not None:
        million.append(f"costs {units.significant(energy.cost_per_million_samples)}")
    if energy.carbon_g_per_million_samples is not None:
        million.append(f"{units.significant(energy.carbon_g_per_million_samples)} g CO2")
    if million:
        parts.append(f"a million samples: {', '.join(million)}")
    if energy.cost_missing:
        parts.append(f"no cost: {_NOT_KNOWN[energy.cost_missing]}")
    if energy.carbon_missing:
        parts.append(f"no CO2: {_NOT_KNOWN[energy.carbon_missing]}")
    if parts:
        yield item("energy", " · ".join(parts))


def _machine(summary: RunSummary) -> Iterator[Item]:
    seen = summary.telemetry
    use = []
    if seen.gpu_utilisation is not None:
        use.append(f"GPU in use {_rounded(seen.gpu_utilisation)} of the time")
    if seen.sm_mhz and seen.sm_max_mhz:
        use.append(f"{seen.sm_mhz:,.0f} of {seen.sm_max_mhz:,.0f} MHz")
    if seen.temperature_c is not None:
        use.append(f"{seen.temperature_c:.0f} °C")
    if seen.program_cores is not None:
        use.append(f"program {_cores(seen.program_cores)}")
    if seen.workers:
        cores = f", {_cores(seen.worker_cores)}" if seen.worker_cores else ""
        use.append(f"{units.plural(seen.workers, 'worker')}{cores}")
    rules = {finding.rule for finding in shown_findings(summary.findings)}
    disturbances = []
    if seen.throttle and rules.isdisjoint(_CLOCK_RULES):
        disturbances.append(f"clocks held down: {', '.join(seen.throttle)}")
    if rules.isdisjoint(_OTHER_PROGRAMS_RULES):
        if seen.other_processes:
            disturbances.append(f"{units.plural(seen.other_processes, 'other program')} on the GPU")
        disturbances += _taken_by_others(seen)
    if use or disturbances:
        level: Level = "doubt" if disturbances else "plain"
        yield item("machine", " · ".join([*disturbances, *use]), level=level)


def _taken_by_others(seen: Telemetered) -> list[str]:
    cores = f"{seen.other_cores:.1f} of {seen.cores} cores" if seen.crowded else ""
    preempted = seen.preempted_share or 0.0
    if preempted >= MIN_PREEMPTION_SHARE:
        also = f", and {cores}" if cores else ""
        return [f"other programs took {_rounded(preempted)} of the step{also}"]
    return [f"other programs took {cores}"] if cores else []


def _waits(summary: RunSummary) -> Iterator[Item]:
    """Return where the host waits for the device, except in files that a shown finding on waiting
    names: the finding has the exact line, a wait only the line of its function."""
    families = ("synchronisation", "transfer")
    shown = shown_findings(summary.findings)
    files = {_file_name(f.file) for f in shown if f.family in families and f.file}
    points = [p for p in summary.sync_points if _wait_file(p) not in files]
    parts = [
        f"{_SOURCE_OF_WAIT.get(point.call, point.call)} {point.place}, "
        f"{units.significant(point.per_step, 2)} a step, {units.seconds(point.ms_per_step / 1e3)}"
        for point in points[:MAX_NAMED]
    ]
    if parts:
        text = (
            f"the host waits for the GPU in traced steps: {' · '.join(parts)}{_more(len(points))}"
        )
        yield item("waits", text)


def _wait_file(point: SyncPoint) -> str:
    place = Place.parse(point.place)
    return _file_name(place.file) if place is not None else ""


def _file_name(path: str) -> str:
    return re.split(r"[\\/]", path)[-1]


def _compilation(summary: RunSummary) -> Iterator[Item]:
    if any(finding.family == "compile" for finding in shown_findings(summary.findings)):
        return
    for noun, texts in (("recompile", summary.recompiles), ("graph break", summary.graph_breaks)):
        if texts:
            named = " · ".join(map(_shortened, texts[:MAX_NAMED]))
            text = f"{units.plural(len(texts), noun)}: {named}{_more(len(texts))}"
            yield item("compiled", text)


def _losses(summary: RunSummary) -> Iterator[Item]:
    parts = [summary.loss_broke] if summary.loss_broke else []
    if summary.losses is not None:
        first, last = summary.losses
        parts.append(f"{first:.4g} → {last:.4g}")
    if parts:
        yield item("loss", " · ".join(parts), level="doubt" if summary.loss_broke else "quiet")


def _doubts(summary: RunSummary) -> Iterator[Item]:
    if summary.verdict.bound == "unknown":
        return  # the verdict's sentence says why
    pauses, rules = _pauses(summary), {f.rule for f in shown_findings(summary.findings)}
    for label, trust, more in (
        ("verdict", summary.verdict.trust, ""),
        ("steps", summary.step.trust, pauses),
    ):
        shown = _without_found_doubts(trust, rules)
        why = "; ".join(text for text in (explain_doubts(shown), more) if text)
        if trust.confidence != "good" and (why or not trust.doubts):
            yield item(label, f"{trust.confidence}: {why}", level="doubt")
        elif why:
            yield item(label, why, level="plain" if more else "quiet")


def _without_found_doubts(trust: Trust, rules: Collection[str]) -> Trust:
    """Return `trust` without doubts that a shown finding on other programs says already."""
    if all(rule not in rules for rule in _OTHER_PROGRAMS_RULES):
        return trust
    codes = (DoubtCode.OTHER_PROGRAMS, DoubtCode.PREEMPTED)
    return replace(trust, doubts=tuple(d for d in trust.doubts if d.code not in codes))


def _pauses(summary: RunSummary) -> str:
    """Return what the pauses cost that the step time does not include, if they cost much."""
    if summary.step.pause_share <= MIN_PAUSE_SHARE:
        return ""
    text = f"pauses take {_rounded(summary.step.pause_share)} of the time"
    rate = summary.throughput.samples_s_with_pauses
    return f"{text}, with them {units.count(rate)} samples/s" if rate else text


def _first_of(label: str, texts: Sequence[str], level: Level) -> Iterator[Item]:
    lines = [_shortened(text) for text in texts[:MAX_NAMED]]
    if len(texts) > MAX_NAMED:
        lines.append(f"and {len(texts) - MAX_NAMED} more, in summary.json")
    if lines:
        yield item(label, *lines, level=level)


def _more(count: int) -> str:
    return f" · and {count - MAX_NAMED} more" if count > MAX_NAMED else ""


def _shortened(text: str) -> str:
    flat = " ".join(text.split())
    if len(flat) <= MAX_SENTENCE_LENGTH:
        return flat
    return f"{flat[: MAX_SENTENCE_LENGTH - 1]}…"


def _rounded(value: float) -> str:
    return f"{100 * value:.0f} %"


def _cores(used: float) -> str:
    number = f"{used:.1f}"
    return f"{number} {'core' if number == '1.0' else 'cores'}"


_PYTHON_COLUMNS = (
    Column("line", "place"),
    Column("share", spare=-1),
    Column("time", spare=2),
    Column("in", "words"),
    Column("source", "name"),
    Column("which calls", "name", spare=1),
)


def python_section(view: PythonView) -> Section:
    """Return the costliest lines of the user's own Python, with what their shares are of."""
    worth = [line for line in view.lines if line.share >= MIN_PYTHON_SHARE] or list(view.lines)
    rows = []
    for line in worth[:MAX_PYTHON_LINES]:
        file = "/".join(re.split(r"[\\/]", line.file)[-2:])
        process = "main" if line.process == "main" else units.plural(view.workers, "worker")
        function = line.function.replace("<locals>.", "")
        rows.append(
            row(
                f"{file}:{line.line} {function}".rstrip(), Cell(share(line.share), line.share),
                Cell(units.seconds(line.seconds), line.seconds), process, line.source, line.calls,
            )
        )  # fmt: skip
    table = Table(
        columns=_PYTHON_COLUMNS, rows=tuple(rows), left_out=len(worth) - len(rows),
        rest="in summary.json",
    )  # fmt: skip
    return Section(
        title="lines of Python", title_detail="page", id="python",
        blocks=(table, Paragraph(_samples(view), "quiet")),
    )  # fmt: skip


def _samples(view: PythonView) -> str:
    """Return what the shares of Python lines are of."""
    if not view.main_samples + view.worker_samples:
        return "no sample of the Python code: too short a time"
    parts = []
    if view.main_samples:
        parts.append(f"{units.plural(view.main_samples, 'sample')} of the main process")
    if view.worker_samples:
        idle = units.percent(view.worker_idle_samples / view.worker_samples)
        waits = f", {idle} of them waiting for work, not counted" * bool(view.worker_idle_samples)
        parts.append(f"{view.worker_samples:,} of {units.plural(view.workers, 'worker')}{waits}")
    every = units.seconds(view.interval_ns / 1e9)
    none = "" if view.lines else "; none was in the user's own code"
    return f"{'; '.join(parts)}; one every {every}{none}"


def _missing(summary: RunSummary) -> tuple[str, ...]:
    return tuple(m if isinstance(m, str) else explain(m) for m in summary.missing)


def _ceiling(work: Efficiency) -> str:
    """Return `bfloat16, measured here`; "" if there is no ceiling."""
    if not work.ceiling_source:
        return ""
    source = "datasheet" if work.ceiling_source == "datasheet" else "measured here"
    return f"{work.ceiling_dtype}, {source}"


def _uncounted(operator: Uncounted) -> str:
    """Return an operator without a formula for its work, with its share of the time."""
    calls, part = units.significant(operator.calls), units.percent(operator.share)
    return f"{operator.op} ({calls} a step, {part} of operator time)"


def _number(number: Deciding) -> dict[str, Any]:
    name, text = deciding_number(number)
    return {"what": name, "value": number.value, "text": text, "source": number.source}


def data(summary: RunSummary) -> dict[str, Any]:
    """Return the JSON document of a run: plain keys, shares as fractions of 1, null where a figure
    is not known. Every key is in every document."""
    verdict, step, efficiency = summary.verdict, summary.step, summary.efficiency
    plain = msgspec.to_builtins
    losses = summary.losses
    return {
        "schema": DOCUMENT_SCHEMA,
        "verdict": verdict.bound,
        "because": {
            "sentence": verdict_sentence(verdict),
            "numbers": [_number(number) for number in verdict.numbers],
            "place": verdict.place,
            "confidence": verdict.trust.confidence,
            "why": explain_doubts(verdict.trust),
        },
        **findings_data(summary.findings),
        "step": {
            "median_ms": step.median_ms,
            "ci": None if step.ci is None else list(step.ci),
            "mean_ms": step.mean_ms,
            "phases": {
                phase.phase: {"ms": phase.ms, "ci": list(phase.ci), "share": phase.share}
                for phase in step.phases
            },
            "steps": step.steps,
            "counted": step.counted,
            "taken": step.taken,
            "warmup_steps": step.warmup_steps,
            "compile_steps": list(step.compile_steps),
            "clock": step.clock,
            "stepping": step.stepping,
            "confidence": step.trust.confidence,
            "why": explain_doubts(step.trust),
        },
        "regions": plain(summary.regions),
        "throughput": plain(summary.throughput),
        "mfu": efficiency.mfu,
        "flops": {
            "per_step": efficiency.flops_per_step,
            "per_s": efficiency.flops_s,
            "ceiling": efficiency.ceiling_flops_s,
            "ceiling_name": _ceiling(efficiency),
            "ceiling_state": efficiency.ceiling_state or None,
            "coverage": efficiency.coverage,
            "uncounted": [_uncounted(one) for one in efficiency.uncounted],
        },
        "memory": plain(summary.memory),
        "memory_study": plain(summary.memory_study) if summary.memory_study else None,
        "energy": plain(summary.energy),
        "telemetry": plain(summary.telemetry),
        "device": summary.device,
        "ranks": summary.ranks,
        "rank_ends": plain(summary.rank_ends),
        "run_dir": summary.run_dir,
        "bytes_on_disk": summary.bytes_on_disk,
        "name": summary.name,
        "command": summary.command,
        "status": summary.status,
        "why": summary.why,
        "losses": None if losses is None else {"first": losses[0], "last": losses[1]},
        "loss_broke": summary.loss_broke,
        "out_of_memory": plain(summary.out_of_memory) if summary.out_of_memory else None,
        "sync_points": plain(summary.sync_points),
        "recompiles": list(summary.recompiles),
        "graph_breaks": list(summary.graph_breaks),
        "python": None if summary.python is None else plain(summary.python),
        "missing": list(_missing(summary)),
        "problems": list(summary.problems),
        "next": [command.text for command in _commands(summary)],
    }
