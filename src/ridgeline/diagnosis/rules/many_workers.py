"""Workers, or their threads, take each other's processors."""

from collections.abc import Iterator

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.machine_use import below_ceilings, cores
from ridgeline.diagnosis.rule import Rule, gain_without, make_finding, measured
from ridgeline.diagnosis.rules._input_wait import (
    CROWDED_DOUBT,
    Feeding,
    crowded,
    feeding,
    in_use,
    threads_set,
    wait_evidence,
    who,
    worker_threads,
)
from ridgeline.diagnosis.rules._loaders import loader_with, made_at, taken_at
from ridgeline.records.finding import Finding
from ridgeline.records.trace import Place

MIN_LACKING_SHARE = 0.1
"""Share of the step that the training thread must lack a processor. A scheduler takes less from a
thread for other reasons."""

RULE = Rule(
    id="many-workers", family="input", budget="input", needs=("capture", "timed", "telemetry")
)


class _Crowd(Struct, frozen=True):
    workers: int
    threads: int
    """Threads of each worker."""
    share: float
    fed: Feeding | None
    """None if training does not wait for its input but lacks the processors that workers take."""


def look(case: Case) -> Iterator[Finding]:
    crowd = _crowd(case)
    if crowd is None:
        return
    place, change = _advice(case, crowd)
    each = f" × {crowd.threads} threads" if crowd.threads > 1 else ""
    workers, used = units.plural(crowd.workers, "worker"), in_use(case) or 0.0
    others = case.telemetered.crowded
    at_work = f"{workers} × {crowd.threads} on {cores(case)} processors"
    yield make_finding(
        RULE,
        claim=f"{who(case)} {'waits' if crowd.fed is not None else 'lacks a processor for'} "
        f"{units.percent(crowd.share)} of each step while {workers}{each} share "
        f"{units.plural(cores(case), 'processor')}",
        share=crowd.share,
        bound=_bound(case, crowd) if crowd.threads > 1 else None,
        evidence=[
            *([wait_evidence(crowd.fed)] if crowd.fed is not None else []),
            measured("threads at work", at_work, crowd.workers * crowd.threads),
            measured("processors in use", f"{used:.1f} of {cores(case)}", used),
        ],
        place=place,
        fix="loader-workers" if crowd.threads == 1 else "",
        change=change,
        # Without thread pools fewer workers would help little: their work has to become cheaper.
        confidence="low" if crowd.threads == 1 else "medium" if others else "high",
        doubt=CROWDED_DOUBT if others else "",
    )


def _crowd(case: Case) -> _Crowd | None:
    fed = feeding(case)
    workers = (fed.workers if fed is not None else case.telemetered.workers) or 0
    if not crowded(case, workers):
        return None
    threads = worker_threads(case)
    if fed is not None:
        return _Crowd(workers, threads, fed.share, fed)
    lacking = _lacking(case)
    if threads < 2 or lacking < MIN_LACKING_SHARE:
        return None
    return _Crowd(workers, threads, lacking, None)


def _lacking(case: Case) -> float:
    """Return the share of the step in which the one thread that trains neither ran nor waited for
    input. Several threads also wait for each other, which nothing tells apart: then return 0."""
    had = case.telemetered.program_cores
    one = case.capture is not None and case.capture.flags.threads == 1
    if case.on_gpu or had is None or not one:
        return 0.0
    return 1 - had - case.share_of("input")


def _advice(case: Case, crowd: _Crowd) -> tuple[Place | None, str]:
    threads = threads_set(case) if crowd.threads > 1 else None
    if threads is not None:
        return threads.place, threads.change
    loader = crowd.fed.loader if crowd.fed is not None else None
    call = made_at(case, loader)
    place = call.place if call is not None else taken_at(loader)
    if crowd.threads > 1:
        return place, "torch.set_num_threads(1)  # in worker_init_fn"
    return place, loader_with(case, place, call, num_workers=max(cores(case) - 1, 1))


def _bound(case: Case, crowd: _Crowd) -> float:
    """Return the bound. On a CPU the threads of workers take the training's own processors too: its
    operators may reach the machine's ceilings without them, but no thread waits longer than for its
    turn."""
    own = case.capture.flags.threads if case.capture is not None else 1
    turns = (crowd.workers * crowd.threads + own) / cores(case)
    slowed = 0.0 if case.on_gpu else min(below_ceilings(case) or 0.0, 1 - 1 / turns)
    waited = crowd.fed.share if crowd.fed is not None else 0.0
    return gain_without(max(crowd.share, 1 - (1 - waited) * (1 - slowed)))
