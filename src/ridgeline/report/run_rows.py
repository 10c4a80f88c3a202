"""The lines under a run's figures: a word, and what is to be said of it; only what there is."""

from collections.abc import Iterator, Sequence
from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.records.run import Status
from ridgeline.records.run_summary import RunSummary, Telemetered
from ridgeline.report.plain import printable
from ridgeline.report.run_figures import sizes
from ridgeline.report.run_told import because_told, compile_told, untold, untold_waits

MOST = 3
"""Waits, graph breaks, missing things named; the rest is counted, and is in summary.json."""
_MAX_RANK_ENDS = 3
"""How many ranks are printed with how they ended; the others are in summary.json."""
_LEAST_GROWTH = 1024
_LONGEST = 200
_LONG_PAUSES = 0.1
_MIN_NAMED_PREEMPTION_SHARE = 0.05
"""The report names the time that other processes took from this share of the step on."""
_WRITTEN = {
    "aten::item": ".item()",
    "aten::_local_scalar_dense": ".item()",
    "aten::is_nonzero": "a tensor as a condition",
    "aten::nonzero": "nonzero()",
    "aten::masked_select": "a mask as an index",
    "aten::copy_": "a copy",
    "aten::_to_copy": "a copy",
    "aten::to": ".to()",
}
"""What the user wrote, for the operator a wait is in."""


class Row(Struct, frozen=True):
    label: str
    text: str
    tone: Literal["plain", "quiet", "warning"] = "plain"
    further: tuple[str, ...] = ()
    """Sentences that stand on lines of their own below."""


def rows(summary: RunSummary) -> tuple[Row, ...]:
    """In the order they are read, less what a finding tells already; every text can be printed as
    it is."""
    found = (
        *_because(summary), *_ended(summary), *_regions(summary), *_alive(summary),
        *_memory(summary),
        *_energy(summary),
        *_machine(summary), *_waits(summary), *_compiled(summary), *_losses(summary),
        *_doubts(summary), *_missing(summary),
    )  # fmt: skip
    return tuple(
        Row(row.label, printable(row.text), row.tone, tuple(printable(x) for x in row.further))
        for row in found
    )


def _because(summary: RunSummary) -> Iterator[Row]:
    verdict = summary.verdict
    if because_told(summary):
        return
    said = " · ".join(_measured(n.what, n.text, n.source) for n in verdict.numbers)
    if verdict.place:
        said = f"{said} · {verdict.place}" if said else verdict.place
    if said:
        yield Row("because", said)


def _measured(what: str, text: str, source: str) -> str:
    return f"{what} {text}{' (estimated)' if source == 'estimated' else ''}"


_ENDS: dict[Status, str] = {
    "raised": "ended by an exception",
    "interrupted": "was interrupted",
    "stopped": "was stopped by --stop-after",
    "killed": "ended without a message: killed, crashed or os._exit",
    "running": "is still running, or its end was not seen",
    "damaged": "the record is damaged: how the program ended is not known",
}


def _ended(summary: RunSummary) -> Iterator[Row]:
    for number, end in enumerate(summary.rank_ends[:_MAX_RANK_ENDS]):
        first = "first, " if not number and end.status in ("raised", "killed") else ""
        words = [] if end.torch_imported else ["did not import torch"]
        words += [_ENDS[end.status]] if end.status in _ENDS else []
        why = f": {_cut(end.why)}" if end.why else ""
        yield Row("program", f"{first}rank {end.rank} {' and '.join(words)}{why}", "warning")
    said = _ENDS.get(summary.status)
    if said:
        why = f": {_cut(summary.why)}" if summary.why else ""
        tone: Literal["quiet", "warning"] = "quiet" if summary.status == "stopped" else "warning"
        yield Row("program", said + why, tone)


def _regions(summary: RunSummary) -> Iterator[Row]:
    said = [
        f"{_cut(region.name)} {units.seconds(region.ms / 1e3)} ({_fraction(region.share)})"
        for region in summary.regions
    ]
    if said:
        yield Row("regions", " · ".join(said))


def _alive(summary: RunSummary) -> Iterator[Row]:
    """When memory ran out: which lines held it."""
    full = summary.out_of_memory
    if full is None or not full.alive:
        return
    said = [
        f"{units.bytes_(size)} {f'allocated at {place}' if place else 'of unknown origin'}"
        for place, size, _ in full.alive[:MOST]
    ]
    yield Row("alive", " · ".join(said))


def _memory(summary: RunSummary) -> Iterator[Row]:
    memory = summary.memory
    said = []
    if memory.device_reserved_bytes and memory.device_total_bytes:
        crowded = memory.device_reserved_bytes > 0.8 * memory.device_total_bytes
        if crowded or memory.retries:
            reserved = sizes(memory.device_reserved_bytes, memory.device_total_bytes)
            said.append(f"{reserved} reserved")
    if memory.retries:
        noun = "retry" if memory.retries == 1 else "retries"
        said.append(f"{memory.retries:,} {noun} of the allocator")
    growth = 0.0 if memory.growth_released else memory.growth_bytes_per_step
    if growth is not None and growth >= _LEAST_GROWTH:
        said.append(f"grows {units.bytes_(growth)} a step")
    if memory.device_peak_bytes and memory.host_peak_bytes:
        said.append(f"host {units.bytes_(memory.host_peak_bytes)}")
    if said:
        yield Row("memory", " · ".join(said), "warning" if growth or memory.retries else "plain")


_NOT_KNOWN = {
    "no-steps": "no steady step was timed",
    "no-samples": "the batch's size was not recognised",
    "no-telemetry": "no telemetry was recorded",
    "no-counter": "no energy counter can be read on this machine",
    "too-short": "the timed steps were too short for the energy counter",
}


def _energy(summary: RunSummary) -> Iterator[Row]:
    energy = summary.energy
    said = []
    if energy.joules_per_sample:
        said.append(f"{units.significant(energy.joules_per_sample)} J a sample")
    if energy.mean_power_w:
        said.append(f"{units.significant(energy.mean_power_w)} W")
    if energy.source and said:
        said[-1] += f" ({energy.source})"
    million = []
    if energy.cost_per_million_samples is not None:
        million.append(f"costs {units.significant(energy.cost_per_million_samples)}")
    if energy.carbon_g_per_million_samples is not None:
        million.append(f"{units.significant(energy.carbon_g_per_million_samples)} g CO2")
    if million:
        said.append(f"a million samples: {', '.join(million)}")
    if energy.cost_missing:
        said.append(f"no cost: {_NOT_KNOWN[energy.cost_missing]}")
    if energy.carbon_missing:
        said.append(f"no CO2: {_NOT_KNOWN[energy.carbon_missing]}")
    if said:
        yield Row("energy", " · ".join(said))


def _machine(summary: RunSummary) -> Iterator[Row]:
    seen = summary.telemetry
    said = []
    if seen.gpu_utilisation is not None:
        said.append(f"GPU in use {_fraction(seen.gpu_utilisation)} of the time")
    if seen.sm_mhz and seen.sm_max_mhz:
        said.append(f"{seen.sm_mhz:,.0f} of {seen.sm_max_mhz:,.0f} MHz")
    if seen.temperature_c is not None:
        said.append(f"{seen.temperature_c:.0f} °C")
    if seen.program_cores is not None:
        said.append(f"program {_cores(seen.program_cores)}")
    if seen.workers:
        cores = f", {_cores(seen.worker_cores)}" if seen.worker_cores else ""
        said.append(f"{units.plural(seen.workers, 'worker')}{cores}")
    held = []
    if seen.throttle:
        held.append(f"clocks held down: {', '.join(seen.throttle)}")
    if seen.other_processes:
        held.append(f"{units.plural(seen.other_processes, 'other program')} on the GPU")
    held += _taken_by_others(seen)
    held = untold(summary, held)
    if said or held:
        yield Row("machine", " · ".join([*held, *said]), "warning" if held else "plain")


def _taken_by_others(seen: Telemetered) -> list[str]:
    cores = f"{seen.other_cores:.1f} of {seen.cores} cores" if seen.crowded else ""
    preempted = seen.preempted_share or 0.0
    if preempted >= _MIN_NAMED_PREEMPTION_SHARE:
        also = f", and {cores}" if cores else ""
        return [f"other programs took {_fraction(preempted)} of the step{also}"]
    return [f"other programs took {cores}"] if cores else []


def _waits(summary: RunSummary) -> Iterator[Row]:
    points = untold_waits(summary)
    said = [
        f"{_WRITTEN.get(point.call, point.call)} {point.place}, "
        f"{units.significant(point.per_step, 2)} a step, {units.seconds(point.ms_per_step / 1e3)}"
        for point in points[:MOST]
    ]
    if said:
        yield Row("waits", "host for the GPU, traced: " + " · ".join(said) + _more(len(points)))


def _compiled(summary: RunSummary) -> Iterator[Row]:
    if compile_told(summary):
        return
    for what, found in (("recompile", summary.recompiles), ("graph break", summary.graph_breaks)):
        if found:
            named = " · ".join(_cut(text) for text in found[:MOST])
            yield Row("compiled", f"{units.plural(len(found), what)}: {named}{_more(len(found))}")


def _losses(summary: RunSummary) -> Iterator[Row]:
    said = [summary.loss_broke] if summary.loss_broke else []
    if summary.losses is not None:
        first, last = summary.losses
        said.append(f"{first:.4g} → {last:.4g}")
    if said:
        yield Row("loss", " · ".join(said), "warning" if summary.loss_broke else "quiet")


def _doubts(summary: RunSummary) -> Iterator[Row]:
    if summary.verdict.bound == "unknown":
        return  # the sentence says it all
    paused = _paused(summary)
    for what, trust, more in (
        ("verdict", summary.verdict.trust, ""),
        ("steps", summary.step.trust, paused),
    ):
        said = untold(summary, trust.why.split("; ") if trust.why else ())
        why = "; ".join(text for text in (*said, more) if text)
        if trust.confidence != "good" and (why or not trust.why):
            yield Row(what, f"{trust.confidence}: {why}", "warning")
        elif why:
            yield Row(what, why, "plain" if more else "quiet")


def _paused(summary: RunSummary) -> str:
    """What the pauses left out of the step time cost, where that is much."""
    step, with_them = summary.step, summary.throughput.samples_s_with_pauses
    if step.pause_share <= _LONG_PAUSES:
        return ""
    last = step.trust.why.rpartition("; ")[2]  # where unevenness is told after the pauses
    one = last.startswith("1 of ")
    which = "pauses take" if not last.endswith("left out") else "it takes" if one else "they take"
    said = f"{which} {_fraction(step.pause_share)} of the time"
    rate = f"with {'it' if one else 'them'} {units.count(with_them)} samples/s" if with_them else ""
    return f"{said}, {rate}" if rate else said


def _missing(summary: RunSummary) -> Iterator[Row]:
    yield from _list("missing", summary.missing, "quiet")
    yield from _list("trouble", summary.problems, "warning")


def _list(label: str, found: Sequence[str], tone: Literal["quiet", "warning"]) -> Iterator[Row]:
    said = [_cut(text) for text in found[:MOST]]
    if len(found) > MOST:
        said.append(f"and {len(found) - MOST} more, in summary.json")
    if said:
        yield Row(label, said[0], tone, tuple(said[1:]))


def _more(count: int) -> str:
    return f" · and {count - MOST} more" if count > MOST else ""


def _cut(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST else flat[: _LONGEST - 1] + "…"


def _fraction(value: float) -> str:
    return f"{100 * value:.0f} %"


def _cores(used: float) -> str:
    return f"{used:.1f} {'core' if f'{used:.1f}' == '1.0' else 'cores'}"
