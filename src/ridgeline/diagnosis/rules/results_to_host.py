"""Outputs, or other large tensors, are copied to the host each step."""

from collections.abc import Iterator, Sequence

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, make_finding, measured
from ridgeline.diagnosis.rules._waits import (
    LARGE_BYTES,
    MIN_SHARE,
    Waiting,
    often,
    quoted,
    wait_findings,
    waiting,
)
from ridgeline.diagnosis.rules.host_copy_sync import bytes_each, host_lines, method_name
from ridgeline.records.finding import Finding
from ridgeline.source.file import SourceFile
from ridgeline.source.on_device import tensor_read, without_reading
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
    yield from wait_findings(RULE, case, "large copy", host_lines, _claim, _change)
    yield from _unwaited_copies(case, {wait.place for wait in waiting(case, "large copy")})


def _claim(wait: Waiting, lines: Sequence[Line]) -> str:
    size = units.bytes_(bytes_each(wait))
    what = quoted(lines, method_name(wait))
    return f"{what} fetches {size} to the host {often(wait.times)}, and the GPU waits"


def _unwaited_copies(case: Case, places: set[object]) -> Iterator[Finding]:
    """Yield a finding for copies that the host does not wait for but that no kernel runs beside.
    `places` have a finding already."""
    for site in case.sites.copies:
        large = site.bytes >= LARGE_BYTES * max(site.copies, 1e-9)
        share = case.device_share(min(site.exposed_ns, site.path_ns))
        blocking = any(w.place == site.place and w.direction == "to host" for w in case.sites.waits)
        if site.direction != "to host" or not large or blocking or site.place in places:
            continue
        if share < MIN_SHARE:
            continue
        exposed = f"{units.seconds(site.exposed_ns / 1e9)} a step"
        yield make_finding(
            RULE,
            claim=f"{units.bytes_(site.bytes)} a step are copied to the host while no kernel "
            f"runs: {units.percent(share)} of the step",
            share=share,
            evidence=[
                measured("copied to the host", units.bytes_(site.bytes)),
                measured("no kernel ran meanwhile", exposed),
            ],
            place=site.place,
            change=_COPY.format("outputs.detach()"),
            confidence="medium" if site.place is not None else "low",
        )


def _change(case: Case, source: SourceFile | None, wait: Waiting, lines: Sequence[Line]) -> str:
    """Return code that keeps the tensor on the device if only the last one is used. If all are, its
    memory would fill up, and the code copies them without a wait."""
    kept = tensor_read(source, lines[0]) if lines and source is not None else ""
    if not lines or source is None or not kept:
        return _COPY.format("outputs.detach()")
    stays = without_reading(source, lines[0])
    if ".append(" in stays or not stays:
        return _COPY.format(kept)
    return f"{stays}\n# where a part of it is all that is wanted, that alone: .argmax(1), .mean()"
