"""many-workers: workers, or their threads, take each other's processors."""

from collections.abc import Iterator

from msgspec import Struct

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import MAX_SHARE, SHARE_TOLERANCE, Rule, make_finding
from ridgeline.diagnosis.rules._input_wait import (
    Feeding,
    cores_of,
    crowded,
    feeding,
    in_use,
    threads_set,
    wait_evidence,
    who,
    worker_threads,
)
from ridgeline.diagnosis.rules._loaders import made_at, taken_at
from ridgeline.diagnosis.rules._machine import below_ceilings
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.trace import Place

LEAST_TAKEN = 0.1
"""Of the step: what a scheduler takes from a thread for other reasons is less."""

RULE = Rule(
    id="many-workers", family="input", budget="input", needs=("capture", "timed", "telemetry")
)


class _Crowd(Struct, frozen=True):
    workers: int
    threads: int
    """Of each."""
    cores: int
    share: float
    fed: Feeding | None
    """None: training does not wait for its input, it lacks the processors the workers take."""


def look(case: Case) -> Iterator[Finding]:
    crowd = _crowd(case)
    if crowd is None:
        return
    place, change = _where(case, crowd)
    each = f" × {crowd.threads} threads" if crowd.threads > 1 else ""
    does = "waits" if crowd.fed is not None else "lacks a processor for"
    used = in_use(case) or 0.0
    others = case.telemetered.crowded
    yield make_finding(
        RULE,
        claim=f"{who(case)} {does} {units.percent(crowd.share)} of each step while "
        f"{units.plural(crowd.workers, 'worker')}{each} share "
        f"{units.plural(crowd.cores, 'processor')}",
        share=crowd.share,
        bound=_bound(case, crowd) if crowd.threads > 1 else None,
        evidence=[
            *([wait_evidence(case, crowd.fed)] if crowd.fed is not None else []),
            Evidence(
                what="threads at work",
                text=f"{units.plural(crowd.workers, 'worker')} × {crowd.threads} on "
                f"{crowd.cores} processors",
                value=crowd.workers * crowd.threads,
            ),
            Evidence(what="processors in use", text=f"{used:.1f} of {crowd.cores}", value=used),
        ],
        place=place,
        change=change,
        # without pools fewer workers would mend little: what they do has to become cheaper
        confidence="low" if crowd.threads == 1 else "medium" if others else "high",
        doubt="other programs took a good part of the processors" if others else "",
    )


def _crowd(case: Case) -> _Crowd | None:
    fed = feeding(case)
    workers = (fed.workers if fed is not None else case.telemetered.workers) or 0
    if not crowded(case, workers):
        return None
    threads, cores = worker_threads(case), cores_of(case)
    if fed is not None:
        return _Crowd(workers, threads, cores, fed.share, fed)
    lacking = _lacking(case)
    if threads < 2 or lacking < LEAST_TAKEN:
        return None
    return _Crowd(workers, threads, cores, lacking, None)


def _lacking(case: Case) -> float:
    """Of the step: time the one thread that trains neither ran nor waited for input. More threads
    than one wait for each other besides, and nothing tells that apart."""
    had = case.telemetered.program_cores
    one = case.capture is not None and case.capture.flags.threads == 1
    if case.on_gpu or had is None or not one:
        return 0.0
    return 1 - had - case.share_of("input")


def _where(case: Case, crowd: _Crowd) -> tuple[Place | None, str]:
    if crowd.threads > 1:
        at = threads_set(case)
        if at is not None:
            return at.place, at.change
    loader = crowd.fed.loader if crowd.fed is not None else None
    call = made_at(case, loader)
    place = call.place if call is not None else taken_at(loader)
    if crowd.threads > 1:
        return place, "torch.set_num_threads(1)  # in worker_init_fn"
    fewer = max(crowd.cores - 1, 1)
    changed = call.with_options(num_workers=str(fewer)) if call is not None else ""
    return place, changed or f"loader = DataLoader(dataset, batch_size, num_workers={fewer})"


def _bound(case: Case, crowd: _Crowd) -> float:
    """On a CPU threads of workers take the training's own processors too: its operators may reach
    the machine's ceilings without them, but no thread waits longer than for its turn."""
    own = case.capture.flags.threads if case.capture is not None else 1
    turns = (crowd.workers * crowd.threads + own) / crowd.cores
    slowed = 0.0 if case.on_gpu else min(below_ceilings(case) or 0.0, 1 - 1 / turns)
    waited = crowd.fed.share if crowd.fed is not None else 0.0
    goes = max(crowd.share, 1 - (1 - waited) * (1 - slowed))
    return 1 / (1 - min(goes * (1 + SHARE_TOLERANCE), MAX_SHARE))
