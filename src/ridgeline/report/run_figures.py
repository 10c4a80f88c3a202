"""A run in two lines: what limits it and where it ran, then its figures."""

import os
import shlex

from ridgeline import units
from ridgeline.records.run_summary import RunSummary, StepTimes
from ridgeline.report.plain import printable

MAX_HIDDEN_DIFFERENCE = 0.02
"""If the mean step differs from the median by more than this share of the median, both are printed.
The phases add up to the mean, so without it the headline and the phases would not agree."""


def sentence(summary: RunSummary) -> str:
    """Return the verdict's sentence, which begins with the name of the bound. Only a late rank is
    named without it."""
    verdict = summary.verdict
    said = printable(verdict.sentence)
    if verdict.bound == "late-rank":
        return said
    return said if said.startswith(verdict.bound) else f"{verdict.bound}: {said}"


def about(summary: RunSummary) -> tuple[str, ...]:
    """What ran: the program, how many steps, on what."""
    found = [_program(summary)]
    if summary.step.counted:
        found.append(_steps(summary.step))
    if summary.device:
        found.append(_device(summary.device))
    if summary.ranks > 1:
        found.append(f"{summary.ranks} ranks")
    return tuple(printable(text) for text in found if text)


def figures(summary: RunSummary) -> tuple[str, ...]:
    """Step time, throughput, arithmetic, memory, energy: those that are known."""
    found = (_step(summary), _rate(summary), _work(summary), _memory(summary), _joules(summary))
    return tuple(printable(text) for text in found if text)


def has_own_mean(step: StepTimes) -> bool:
    """Return whether the mean step differs enough from the median step to be printed."""
    if step.median_ms is None or step.mean_ms is None:
        return False
    return abs(step.mean_ms - step.median_ms) > MAX_HIDDEN_DIFFERENCE * step.median_ms


def milliseconds(value: float) -> str:
    """At most one digit after the point from 10 ms on; three significant below."""
    return units.significant(value) if value < 1000 else f"{value:,.0f}"


def sizes(part: float, whole: float) -> str:
    """7.9 of 140 GiB, each with its own unit where they differ."""
    one, other = units.bytes_(part).split(" "), units.bytes_(whole).split(" ")
    if one[-1] == other[-1]:
        return f"{one[0]} of {' '.join(other)}"
    return f"{' '.join(one)} of {' '.join(other)}"


def _program(summary: RunSummary) -> str:
    words = _words(summary.command)
    if not words:
        return summary.name
    if words[0] == "-c":
        return "-c …"
    if words[0] == "-m" and len(words) > 1:
        return f"-m {words[1]}"
    return os.path.basename(words[0]) or words[0]


def _words(command: str) -> list[str]:
    try:
        return shlex.split(command)
    except ValueError:  # cut, or written by hand
        return command.split()


def _device(name: str) -> str:
    for brand in ("NVIDIA ", "GeForce ", "AMD ", "Instinct ", "Tesla "):
        name = name.removeprefix(brand)
    return name


def _steps(step: StepTimes) -> str:
    """Return how many steps were watched, and of how many if the program took more."""
    if step.taken is None or step.taken <= step.counted:
        return units.plural(step.counted, "step") + (" watched" if step.taken is None else "")
    return f"{step.counted:,} of {step.taken:,} steps watched"


def _step(summary: RunSummary) -> str:
    step = summary.step
    if step.median_ms is None:
        return ""
    said = f"step {milliseconds(step.median_ms)} ms"
    if step.ci is not None and step.steps > 1:
        said += f" [{milliseconds(step.ci[0])}, {milliseconds(step.ci[1])}]"
    if has_own_mean(step) and step.mean_ms is not None:
        said += f", mean {milliseconds(step.mean_ms)}"
    return said


def _rate(summary: RunSummary) -> str:
    rate = summary.throughput
    if rate.tokens_s:
        return f"{units.count(rate.tokens_s)} tokens/s"
    if rate.samples_s:
        return f"{units.count(rate.samples_s)} samples/s"
    return f"{units.significant(rate.steps_s)} steps/s" if rate.steps_s else ""


def _work(summary: RunSummary) -> str:
    work = summary.efficiency
    if work.flops_s is None:
        return ""
    if work.mfu is None:
        return units.flops(work.flops_s)
    return f"{units.flops(work.flops_s)}, {units.percent(work.mfu)} of the peak ({work.ceiling})"


def _memory(summary: RunSummary) -> str:
    memory = summary.memory
    if memory.device_peak_bytes:
        if memory.device_total_bytes:
            return f"peak {sizes(memory.device_peak_bytes, memory.device_total_bytes)}"
        return f"peak {units.bytes_(memory.device_peak_bytes)}"
    return f"peak {units.bytes_(memory.host_peak_bytes)}" if memory.host_peak_bytes else ""


def _joules(summary: RunSummary) -> str:
    joules = summary.energy.joules_per_step
    return f"{units.significant(joules)} J/step" if joules else ""
