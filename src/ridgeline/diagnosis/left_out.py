"""What a summary does not hold, and why: never a silent zero."""

from collections.abc import Iterator

from msgspec.structs import replace

from ridgeline import units
from ridgeline.diagnosis.file_names import FileNames
from ridgeline.diagnosis.run_read import RunRead
from ridgeline.diagnosis.traced import Traced
from ridgeline.records.machine import Device
from ridgeline.records.run_summary import Efficiency, Energy, Missing, StepTimes, Throughput

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
