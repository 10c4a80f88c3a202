"""few-workers: workers cannot keep up, and processors are idle."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._input_wait import (
    Feeding,
    bound_with_workers,
    cores_of,
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
from ridgeline.diagnosis.rules._loaders import made_at, shared_out, taken_at
from ridgeline.records.finding import Confidence, Evidence, Finding

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
    enough = _advised_workers(case, fed)
    call = made_at(case, fed.loader)
    change = call.with_options(num_workers=str(enough)) if call is not None else ""
    change = change or f"loader = DataLoader(dataset, batch_size, num_workers={enough})"
    change, against = shared_out(case, fed.loader, change)
    crowded = "other programs took a good part of the processors"
    yield make_finding(
        RULE,
        claim=f"{who(case)} waits {units.percent(fed.share)} of each step for "
        f"{units.plural(fed.workers, 'worker')}: {enough} would "
        + ("shorten the wait" if fed.needed and enough < fed.needed else "keep up"),
        share=fed.share,
        bound=bound_with_workers(fed, enough),
        evidence=[
            *[wait_evidence(case, fed), *cost_evidence(fed), *_processors(case, fed)][:4],
            *_limit(case, fed, enough),
        ],
        place=call.place if call is not None else taken_at(fed.loader),
        change=change,
        confidence=_confidence(case, fed),
        doubt=against or (crowded if case.telemetered.crowded else ""),
    )


def _confidence(case: Case, fed: Feeding) -> Confidence:
    sure = fed.needed is not None and not explained(case, fed)
    return "high" if sure else "medium"


def _advised_workers(case: Case, fed: Feeding) -> int:
    """Return the number of workers to advise: as many as keep up, or twice as many as now if that
    number is not known, but no more than the processors can carry."""
    wanted = fed.needed or 2 * (fed.workers or 1)
    if cores_of(case):
        wanted = min(wanted, _max_workers(case, fed))
    return max(wanted, (fed.workers or 0) + 1)


def _max_workers(case: Case, fed: Feeding) -> int:
    return cores_of(case) * (MAX_WAITING_WORKERS_PER_CORE if waits(case, fed) else 1)


def _limit(case: Case, fed: Feeding, advised: int) -> list[Evidence]:
    """Return why fewer workers are advised than would keep up."""
    if fed.needed is None or advised >= fed.needed or not cores_of(case):
        return []
    each = _max_workers(case, fed) // cores_of(case)
    why = "each needs a processor" if each == 1 else "each is a process with its own memory"
    text = (
        f"{advised}, at most {each} for each of {units.plural(cores_of(case), 'processor')}; "
        f"{fed.needed} would keep up, but {why}"
    )
    return [Evidence(what="workers advised", text=text, value=advised, source="derived")]


def _processors(case: Case, fed: Feeding) -> list[Evidence]:
    found_ = []
    load, idle = worker_load(case, fed), idle_cores(case)
    if load is not None and waits(case, fed):
        text = f"on a processor {units.percent(load)} of the time they make batches; else waiting"
        found_.append(Evidence(what="workers", text=text, value=load))
    if idle is not None:
        text = f"{idle:.1f} of {cores_of(case)} idle"
        found_.append(Evidence(what="processors", text=text, value=idle))
    return found_
