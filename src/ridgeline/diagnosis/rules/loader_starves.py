"""Batches take longer to make than the device takes to use them."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.machine_use import cores
from ridgeline.diagnosis.rule import Rule, derived, make_finding
from ridgeline.diagnosis.rules._input_wait import (
    CROWDED_DOUBT,
    Feeding,
    bound_with_workers,
    by_whole_batches,
    cost_evidence,
    explained,
    feeding,
    function_name,
    speaker,
    wait_evidence,
    who,
    whole_from,
)
from ridgeline.diagnosis.rules._loaders import (
    handing_out,
    loader_with,
    made_anew,
    made_at,
    once,
    shared_out,
    taken_at,
)
from ridgeline.records.finding import Confidence, Evidence, Finding
from ridgeline.records.trace import Place
from ridgeline.report.plain import function_label
from ridgeline.source.loaders import LoaderCall

DEFAULT_WORKERS, MAX_WORKERS = 4, 16
"""Workers advised if nothing tells how many keep up, and at most if the cores are not known."""

RULE = Rule(id="loader-starves", family="input", budget="input")


def look(case: Case) -> Iterator[Finding]:
    fed = feeding(case)
    if fed is None or speaker(case, fed) != RULE.id:
        return
    call = made_at(case, fed.loader)
    place = fed.place or (call.place if call is not None else taken_at(fed.loader))
    adds_workers = not fed.workers and not fed.plain
    change, change_at = _change(case, fed, place, call)
    against = ""
    if adds_workers and not _by_hand(case):
        change, against = shared_out(case, fed.loader, change)
    yield make_finding(
        RULE,
        claim=_claim(case, fed),
        share=fed.share,
        # If the advice is not to add workers, the whole wait may go.
        bound=bound_with_workers(fed, _enough(case, fed)) if adds_workers else None,
        evidence=[wait_evidence(fed), *cost_evidence(fed), *_workers(case, fed)],
        place=place,
        fix="loader-workers" if adds_workers else "",
        change=change,
        change_at=change_at,
        confidence=_confidence(case, fed),
        doubt="; ".join(filter(None, (against, _doubt(case, fed)))),
    )


def _change(
    case: Case, fed: Feeding, place: Place | None, call: LoaderCall | None
) -> tuple[str, Place | None]:
    """Return the advice as code, and the line that it replaces unless the code names it."""
    options = _options(case, fed)
    given = {name: str(value) for name, value in options.items()}
    if fed.plain and call is not None and call.trainers:
        return call.with_options(**given), call.place
    if fed.plain:
        data = handing_out(case, fed.loader)
        whole = by_whole_batches(call, fed.loader) if data is None else whole_from(data.name)
        return whole, call.place if call is not None else None
    if fed.workers:
        named = f"\n{fed.line.source}" if fed.line is not None and fed.line.source else ""
        return f"# every processor is at work: make this line cheaper, or do it once{named}", None
    if _by_hand(case):
        generic = loader_with(case, place, None, **options)
        return f"# in a Dataset's __getitem__, with workers beside the training\n{generic}", None
    anew = call is not None and not call.trainers and made_anew(case, fed.loader)
    if call is not None and anew and (rewritten := call.with_options(**given)):
        return once(rewritten), call.place
    return loader_with(case, place, call, **options), None


def _claim(case: Case, fed: Feeding) -> str:
    line, place = fed.line, fed.place
    if line is not None:
        makes = function_name(line)
    elif fed.loader is None and case.fed.function:
        makes = f"{case.fed.function}()"
    elif place is not None and place is fed.traced and case.input.sites:
        makes = function_label(place.function, place.file)
    else:
        makes = "its batches"
    cost = ""
    if fed.sample_ms:
        cost = f"{units.seconds(fed.sample_ms / 1e3)} a sample"
    elif fed.batch_ms:
        cost = f"{units.seconds(fed.batch_ms / 1e3)} a batch"
    workers = units.plural(fed.workers, "worker") if fed.workers else "no workers"
    how = workers if fed.workers is not None else ""
    if _by_hand(case):
        how = "made by hand, in the program's own process"
    facts = ", ".join(part for part in (cost, how) if part)
    after = f": {facts}" if facts else ""
    return f"{who(case)} waits {units.percent(fed.share)} of each step for {makes}{after}"


def _workers(case: Case, fed: Feeding) -> list[Evidence]:
    if fed.needed is None or not cores(case) or fed.plain:
        return []
    text = f"{fed.needed} would keep up, if each had a processor; there are {cores(case)}"
    return [derived("workers", text, fed.needed)]


def _options(case: Case, fed: Feeding) -> dict[str, int | str]:
    options: dict[str, int | str] = {"num_workers": _enough(case, fed), "persistent_workers": True}
    return {**options, "pin_memory": True} if case.on_gpu else options


def _enough(case: Case, fed: Feeding) -> int:
    return min(fed.needed or DEFAULT_WORKERS, cores(case) or MAX_WORKERS)


def _by_hand(case: Case) -> bool:
    """Return whether there is no DataLoader and a function is taken for the input by its name."""
    loaders = case.capture.loaders if case.capture is not None else ()
    seen = any(loader.batches for loader in loaders)
    return not seen and case.input.kind in ("", "by hand") and bool(case.fed.share)


def _confidence(case: Case, fed: Feeding) -> Confidence:
    if explained(case, fed) or _by_hand(case) or fed.plain:
        return "medium"
    if fed.workers and case.telemetered.crowded:  # workers may wait for others' processors
        return "low"
    return "high" if case.kind == "run" and fed.line is not None else "medium"


def _doubt(case: Case, fed: Feeding) -> str:
    if _by_hand(case):
        return f"{case.fed.function}() is taken for the input by its name"
    return CROWDED_DOUBT if case.telemetered.crowded else ""
