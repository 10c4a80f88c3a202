"""The share of the step that other processes took, and the step without that share.

On a crowded machine a thread that is ready to run waits for a processor, and this wait is part of
its wall time. In a sandbox of two cores with seven busy processes, 79 % of a step was such waiting.
Mistaken for the program's own time, the wait looks like slow operators or like waiting for data.
The kernel's account of the thread tells how long it was, so that the verdict can be drawn from the
rest of the step.
"""

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.records.run import Capture, ThreadTime, feeding
from ridgeline.records.run_summary import PhaseTime, StepTimes, Telemetered
from ridgeline.records.step_work import StepWork

MAX_OWN_CORES_SHARE = 0.75
"""A program that uses less than this share of the machine's processors does not compete with
itself."""
MIN_SHARE = 0.05
"""Preemption below this share of the step is ignored: housekeeping takes as much on any machine."""


class Preemption(Struct, frozen=True, kw_only=True):
    """How much time the training thread lost to other processes."""

    light: float = 0.0
    """Share of the light windows in which the training thread was ready to run while other
    processes ran."""
    traced: float = 0.0
    """The same share of the traced window."""
    traced_running: float = 0.0
    """The same time in the traced window, as a share of the time in which the training thread was
    running or ready to run."""
    runnable: float = 1.0
    """Share of the light windows in which the training thread was running or ready to run."""


def preemption(capture: Capture | None, seen: Telemetered) -> Preemption | None:
    """Return what the training thread lost to other processes. Return None if the kernel kept no
    account, or if it is not known which processes held the processors."""
    light = capture.light_time if capture is not None else None
    if capture is None or light is None or not light.wall_ns:
        return None
    part = _taken_by_others(light, seen)
    if part is None:
        return None
    traced = capture.traced_time or light
    ready = traced.processor_ns + traced.queued_ns
    return Preemption(
        light=part * light.queued_share,
        traced=part * traced.queued_share,
        traced_running=part * traced.queued_ns / ready if ready else 0.0,
        runnable=min(light.processor_share + light.queued_share, 1.0),
    )


def own_times(times: StepTimes, taken: Preemption, capture: Capture | None) -> StepTimes:
    """Return the step times without the time that other processes took. Each phase is shortened in
    proportion to the time it was running or ready to run: a sleep does not take longer on a crowded
    machine."""
    if taken.light < MIN_SHARE or not times.mean_ms:
        return times
    left = times.mean_ms * (1 - taken.light)
    ready = _ready_ms(times, taken, capture)
    lost = times.mean_ms * taken.light / max(sum(ready.values()), 1e-9)
    own = [max(phase.ms - lost * ready[phase.phase], 0.0) for phase in times.phases]
    # The account covers whole windows, the phases cover steady steps: scale them to add up.
    fits = left / max(sum(own), 1e-9)
    return replace(
        times,
        mean_ms=left,
        median_ms=min(times.median_ms or left, left),
        phases=tuple(
            replace(phase, ms=ms * fits, share=ms * fits / left)
            for phase, ms in zip(times.phases, own, strict=True)
        ),
    )


def own_work(work: StepWork, taken: Preemption) -> StepWork:
    """Return the work of the traced step without the time that other processes took."""
    if taken.traced < MIN_SHARE:
        return work
    whole, running = 1 - min(taken.traced, 0.99), 1 - min(taken.traced_running, 0.99)
    return replace(
        work,
        step_ms=work.step_ms * whole,
        operator_ms=work.operator_ms * running,
        op_share=min(work.op_share * running / whole, 1.0),
        input_share=min(work.input_share / whole, 1.0),
        communication_share=min(work.communication_share / whole, 1.0),
        memory_attained=_faster(work.memory_attained, running),
        compute_attained=_faster(work.compute_attained, running),
    )


def _taken_by_others(light: ThreadTime, seen: Telemetered) -> float | None:
    """Return the share of the time in the run queue for which other processes are to blame, and not
    the program's own threads and workers. Return None if it is not known."""
    if seen.other_cores is None:
        own = (seen.program_cores or 0.0) + (seen.worker_cores or 0.0)
        # The program was too short for a sample of the whole machine. If it left processors free
        # and still waited for one, other processes held them.
        return (
            1.0
            if seen.program_cores is not None and own < MAX_OWN_CORES_SHARE * seen.cores
            else None
        )
    beside = max((seen.program_cores or 0.0) - light.processor_share, 0.0)
    rivals = seen.other_cores + beside + (seen.worker_cores or 0.0)
    return seen.other_cores / rivals if rivals else 0.0


def _ready_ms(times: StepTimes, taken: Preemption, capture: Capture | None) -> dict[str, float]:
    """Return for each phase the milliseconds in which the thread was running or ready to run. For
    the input, the loader's own account tells. The training phases are taken to work all the time.
    The phase "other" gets the time that these leave of the thread's account."""
    loaders = capture.loaders if capture is not None else ()
    worked = feeding(loaders).worked
    light = capture.light_time if capture is not None else None
    if worked is not None and light is not None and light.processor_ns:
        worked = min(worked * (1 + light.queued_ns / light.processor_ns), 1.0)
    ready = {one.phase: one.ms * _ready_part(one, worked) for one in times.phases}
    if "other" in ready:
        told = sum(ms for phase, ms in ready.items() if phase != "other")
        left = taken.runnable * (times.mean_ms or 0.0) - told
        ready["other"] = min(max(left, 0.0), ready["other"])
    return {str(phase): ms for phase, ms in ready.items()}


def _ready_part(phase: PhaseTime, worked: float | None) -> float:
    return worked if phase.phase == "input" and worked is not None else 1.0


def _faster(attained: float | None, running: float) -> float | None:
    return None if attained is None else min(attained / running, 1.0)
