"""Workers cannot keep up, and processors are idle."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.machine_use import cores
from ridgeline.diagnosis.rule import Rule, derived, make_finding, measured
from ridgeline.diagnosis.rules._input_wait import (
    CROWDED_DOUBT,
    Feeding,
    bound_with_workers,
    cost_evidence,
    explained,
    feeding,
    idle_cores,
    speaker,
    wait_evidence,
    waits,
    who,
    worker_load,
)
from ridgeline.diagnosis.rules._loaders import loader_with, made_at, shared_out, taken_at
from ridgeline.records.finding import Evidence, Finding

RULE = Rule(id="few-workers", family="input", budget="input", needs=("capture", "timed"))

MAX_WAITING_WORKERS_PER_CORE = 4
"""Workers advised for each processor if they mostly wait for storage or the network. More would
rarely help in practice: each is a process with its own interpreter, its own copy of the dataset and
two batches in memory, and starting it takes processor time. A dataset that sleeps on a machine with
two cores was once advised to use 31."""


def look(case: Case) -> Iterator[Finding]:
    fed = feeding(case)
    if fed is None or not fed.workers or speaker(case, fed) != RULE.id:
        return
    advised = _advised_workers(case, fed)
    call = made_at(case, fed.loader)
    place = call.place if call is not None else taken_at(fed.loader)
    change = loader_with(case, place, call, num_workers=advised)
    change, against = shared_out(case, fed.loader, change)
    sure = fed.needed is not None and not explained(case, fed)
    yield make_finding(
        RULE,
        claim=f"{who(case)} waits {units.percent(fed.share)} of each step for "
        f"{units.plural(fed.workers, 'worker')}: {advised} would "
        + ("shorten the wait" if fed.needed and advised < fed.needed else "keep up"),
        share=fed.share,
        bound=bound_with_workers(fed, advised),
        evidence=[
            *[wait_evidence(fed), *cost_evidence(fed), *_processors(case, fed)][:4],
            *_limit(case, fed, advised),
        ],
        place=place,
        fix="loader-workers",
        change=change,
        confidence="high" if sure else "medium",
        doubt=against or (CROWDED_DOUBT if case.telemetered.crowded else ""),
    )


def _advised_workers(case: Case, fed: Feeding) -> int:
    """Return the number of workers to advise: as many as keep up, or twice as many as now if that
    number is not known, but no more than the processors can carry."""
    workers = fed.workers or 0
    wanted = fed.needed or 2 * max(workers, 1)
    if cores(case):
        wanted = min(wanted, cores(case) * _workers_per_core(case, fed))
    return max(wanted, workers + 1)


def _workers_per_core(case: Case, fed: Feeding) -> int:
    return MAX_WAITING_WORKERS_PER_CORE if waits(case, fed) else 1


def _limit(case: Case, fed: Feeding, advised: int) -> list[Evidence]:
    """Return why fewer workers are advised than would keep up."""
    if fed.needed is None or advised >= fed.needed or not cores(case):
        return []
    each = _workers_per_core(case, fed)
    why = "each needs a processor" if each == 1 else "each is a process with its own memory"
    text = f"{advised}, at most {each} for each of {units.plural(cores(case), 'processor')}; "
    text += f"{fed.needed} would keep up, but {why}"
    return [derived("workers advised", text, advised)]


def _processors(case: Case, fed: Feeding) -> list[Evidence]:
    facts = []
    load, idle = worker_load(case, fed), idle_cores(case)
    if load is not None and waits(case, fed):
        text = f"on a processor {units.percent(load)} of the time they make batches; else waiting"
        facts.append(measured("workers", text, load))
    if idle is not None:
        facts.append(measured("processors", f"{idle:.1f} of {cores(case)} idle", idle))
    return facts
