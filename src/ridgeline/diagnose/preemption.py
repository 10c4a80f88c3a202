"""What other processes took of the step, and the step without it.

On a crowded machine a thread that is ready to run waits for a processor, and its wall time grows by
that: in a sandbox of two cores with seven busy processes 79 % of a step was such waiting. Taken for
the program's own time it looks like slow operators, or like waiting for data. The kernel's account
of the thread tells how much it was, so that the verdict is drawn from the rest.
"""

from msgspec import Struct
from msgspec.structs import replace

from ridgeline.records.run import Capture, ThreadTime, feeding
from ridgeline.records.run_summary import PhaseTime, StepTimes, Telemetered
from ridgeline.records.step_work import StepWork

LEFT_OVER = 0.75
"""Of the machine's processors: a program that uses less of them does not stand in its own way."""
MIN_SHARE = 0.05
"""Of the step: less is taken on any machine, by its own housekeeping."""


class Preemption(Struct, frozen=True, kw_only=True):
    light: float = 0.0
    """Of the light windows: the training thread was ready to run, and other processes ran."""
    traced: float = 0.0
    """Of the traced window, likewise."""
    traced_running: float = 0.0
    """Of the time in which the training thread was running or ready to run in that window."""
    runnable: float = 1.0
    """Of the light windows: running or ready to run."""


def preemption(capture: Capture | None, seen: Telemetered) -> Preemption | None:
    """None where the kernel kept no account, or where nothing tells whose the processors were."""
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
    """Return the step without what other processes took. A phase loses in proportion to the time it
    was ready to run: a sleep is not longer on a crowded machine."""
    if taken.light < MIN_SHARE or not times.mean_ms:
        return times
    left = times.mean_ms * (1 - taken.light)
    ready = _ready_ms(times, taken, capture)
    lost = times.mean_ms * taken.light / max(sum(ready.values()), 1e-9)
    own = [max(phase.ms - lost * ready[phase.phase], 0.0) for phase in times.phases]
    # The account is of whole windows, the phases of steady steps: they are made to add up.
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
    """Return the traced step's work without what other processes took of it."""
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
    """Of the time in the run queue: what processes of others held, and not the program's own
    threads and workers."""
    if seen.other_cores is None:
        own = (seen.program_cores or 0.0) + (seen.worker_cores or 0.0)
        # A program too short for a look at the whole machine: it left processors to others, and
        # stood in line all the same.
        return 1.0 if seen.program_cores is not None and own < LEFT_OVER * seen.cores else None
    beside = max((seen.program_cores or 0.0) - light.processor_share, 0.0)
    rivals = seen.other_cores + beside + (seen.worker_cores or 0.0)
    return seen.other_cores / rivals if rivals else 0.0


def _ready_ms(times: StepTimes, taken: Preemption, capture: Capture | None) -> dict[str, float]:
    """Of each phase: running or ready to run. The loader's own account tells of the input; of the
    rest the training phases work, and what is in no phase has what they leave."""
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
