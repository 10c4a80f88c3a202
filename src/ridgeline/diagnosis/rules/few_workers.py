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


def look(case: Case) -> Iterator[Finding]:
    fed = feeding(case)
    if fed is None or not fed.workers or speaker(case, fed) != RULE.id:
        return
    enough = _enough(case, fed)
    call = made_at(case, fed.loader)
    change = call.with_options(num_workers=str(enough)) if call is not None else ""
    change = change or f"loader = DataLoader(dataset, batch_size, num_workers={enough})"
    change, against = shared_out(case, fed.loader, change)
    crowded = "other programs took a good part of the processors"
    yield make_finding(
        RULE,
        claim=f"{who(case)} waits {units.percent(fed.share)} of each step for "
        f"{units.plural(fed.workers, 'worker')}: {enough} would keep up",
        share=fed.share,
        bound=bound_with_workers(fed, enough),
        evidence=[wait_evidence(case, fed), *cost_evidence(fed), *_processors(case, fed)][:4],
        place=call.place if call is not None else taken_at(fed.loader),
        change=change,
        confidence=_confidence(case, fed),
        doubt=against or (crowded if case.telemetered.crowded else ""),
    )


def _confidence(case: Case, fed: Feeding) -> Confidence:
    sure = fed.needed is not None and not explained(case, fed)
    return "high" if sure else "medium"


def _enough(case: Case, fed: Feeding) -> int:
    """As many as keep up; without a figure twice as many. More than there are processors only
    where workers wait for something else."""
    wanted = fed.needed or 2 * (fed.workers or 1)
    if not waits(case, fed) and cores_of(case):
        wanted = min(wanted, cores_of(case))
    return max(wanted, (fed.workers or 0) + 1)


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
