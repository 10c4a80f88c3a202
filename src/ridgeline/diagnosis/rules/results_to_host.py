"""Outputs, or other large tensors, are copied to the host each step."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding
from ridgeline.diagnosis.rules._sync import (
    LARGE_BYTES,
    LEAST,
    Waiting,
    often,
    wait_finding,
    waiting,
)
from ridgeline.diagnosis.rules.host_copy_sync import host_lines, word
from ridgeline.records.finding import Evidence, Finding
from ridgeline.source.on_device import held, without_reading
from ridgeline.source.waiting import Line

RULE = Rule(id="results-to-host", family="transfer", budget="transfer", needs=("trace", "gpu"))
_COPY = """\
values = {}  # or what is wanted of it alone: .argmax(1), .mean()
host = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
host.copy_(values, non_blocking=True)
copied = torch.cuda.Event()
copied.record()
# a step later, before host is read: copied.synchronize()"""


def look(case: Case) -> Iterator[Finding]:
    waited = list(waiting(case, "large copy"))
    for wait in waited:
        lines = host_lines(case, wait)
        short = bool(lines) and len(lines[0].expression) < 50
        what = f"`{lines[0].expression}`" if short else word(wait)
        size = units.bytes_(wait.bytes / max(wait.times, 1e-9))
        yield wait_finding(
            RULE,
            case,
            wait,
            claim=f"{what} fetches {size} to the host {often(wait.times)}, and the GPU waits",
            lines=lines,
            change=_change(case, wait, lines),
        )
    yield from _beside(case, waited)


def _beside(case: Case, waited: list[Waiting]) -> Iterator[Finding]:
    """Those nobody waits for take the device's time all the same, where nothing runs beside."""
    places = {wait.place for wait in waited}
    for site in case.sites.copies:
        large = site.bytes >= LARGE_BYTES * max(site.copies, 1e-9)
        share = case.device_share(min(site.exposed_ns, site.path_ns))
        blocking = any(w.place == site.place and w.direction == "to host" for w in case.sites.waits)
        if site.direction != "to host" or not large or blocking or site.place in places:
            continue
        if share >= LEAST:
            yield make_finding(
                RULE,
                claim=f"{units.bytes_(site.bytes)} a step are copied to the host while no kernel "
                f"runs: {units.percent(share)} of the step",
                share=share,
                evidence=[
                    Evidence(what="copied to the host", text=units.bytes_(site.bytes)),
                    Evidence(
                        what="no kernel ran meanwhile",
                        text=f"{units.seconds(site.exposed_ns / 1e9)} a step",
                    ),
                ],
                place=site.place,
                change=_change(case, None, ()),
                confidence="medium" if site.place is not None else "low",
            )


def _change(case: Case, wait: Waiting | None, lines: tuple[Line, ...]) -> str:
    """Kept on the device where only the last is; where all are, its memory would fill up."""
    place = wait.place if wait is not None else None
    source = case.sources.get(place.file) if place is not None else None
    kept = held(source, lines[0]) if lines and source is not None else ""
    if not lines or source is None or not kept:
        return _COPY.format("outputs.detach()")
    stays = without_reading(source, lines[0])
    if ".append(" in stays or not stays:
        return _COPY.format(kept)
    return f"{stays}\n# where a part of it is all that is wanted, that alone: .argmax(1), .mean()"
