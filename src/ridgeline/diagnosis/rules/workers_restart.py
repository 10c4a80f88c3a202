"""Each epoch waits for new workers."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured, read
from ridgeline.diagnosis.rules._loaders import loader_with, made_at, once, restarts, taken_at
from ridgeline.records.finding import Finding

MIN_SHARE = 0.01

RULE = Rule(id="workers-restart", family="input", budget="input", needs=("capture", "timed"))


def look(case: Case) -> Iterator[Finding]:
    again = restarts(case)
    if again is None or again.share < MIN_SHARE:
        return
    loader = again.loader
    call = made_at(case, loader)
    extra, workers = units.seconds(again.extra_ms / 1e3), units.plural(loader.workers, "worker")
    why, made = "persistent_workers is off", f"persistent_workers={loader.persistent_workers}"
    if again.anew:
        why, made = "the DataLoader is made anew", "made once an epoch"
    place = call.place if call is not None else taken_at(loader)
    change = "loader = DataLoader(dataset, batch_size, num_workers=N, persistent_workers=True)"
    if again.anew:
        rewritten = call.with_options(persistent_workers="True") if call is not None else ""
        change = once(rewritten or change)
    elif call is not None:
        change = loader_with(case, place, call, persistent_workers=True)
    longer = f"{extra} more than the median step, in {again.epochs} epochs"
    every = f"begins every {units.significant(again.every, 2)} steps"
    yield make_finding(
        RULE,
        claim=f"each epoch begins with {extra} of starting {workers}, "
        f"{units.percent(again.share)} of the time: {why}",
        share=again.share,
        evidence=[
            measured("first step of an epoch", longer, again.extra_ms),
            measured("epoch", every, again.every),
            read("loader", f"{workers}, {made}"),
        ],
        place=place,
        fix="persistent-workers",
        change=change,
        confidence="high",
    )
