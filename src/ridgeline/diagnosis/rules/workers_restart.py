"""workers-restart: each epoch waits for new workers."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._loaders import made_at, once, restarts, taken_at
from ridgeline.records.finding import Evidence, Finding

LEAST = 0.01

RULE = Rule(id="workers-restart", family="input", budget="input", needs=("capture", "timed"))


def look(case: Case) -> Iterator[Finding]:
    again = restarts(case)
    if again is None or again.share < LEAST:
        return
    loader = again.loader
    call = made_at(case, loader)
    every = units.significant(again.every, 2)
    extra = units.seconds(again.extra_ms / 1e3)
    change = call.with_options(persistent_workers="True") if call is not None else ""
    change = change or (
        "loader = DataLoader(dataset, batch_size, num_workers=N, persistent_workers=True)"
    )
    why = "the DataLoader is made anew" if again.anew else "persistent_workers is off"
    made = "made once an epoch" if again.anew else f"persistent_workers={loader.persistent_workers}"
    yield make_finding(
        RULE,
        claim=f"each epoch begins with {extra} of starting {units.plural(loader.workers, 'worker')}"
        f", {units.percent(again.share)} of the time: {why}",
        share=again.share,
        evidence=[
            Evidence(
                what="first step of an epoch",
                text=f"{extra} more than the median step, in {again.epochs} epochs",
                value=again.extra_ms,
            ),
            Evidence(what="epoch", text=f"begins every {every} steps", value=again.every),
            Evidence(
                what="loader",
                text=f"{units.plural(loader.workers, 'worker')}, {made}",
                source="read",
            ),
        ],
        place=call.place if call is not None else taken_at(loader),
        change=once(change) if again.anew else change,
        confidence="high",
    )
