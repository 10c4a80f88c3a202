"""The loader's time goes into opening files."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, gain_without, make_finding, measured, read
from ridgeline.diagnosis.rules._input_wait import feeding, wait_evidence, who, worker_load
from ridgeline.diagnosis.rules._loaders import (
    decodes_too,
    handing_out,
    reading_lines,
    reading_share,
)
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.trace import Place

MIN_READING_SHARE = 0.25
"""Share of the making of a batch that reading must take. Less is the price of having files at all.
"""
SURE_READING_SHARE = 0.5
STREAMING_BYTES_S = 150e6
"""Bytes a second from storage. From here on files are large, and the storage's rate is the limit.
"""

RULE = Rule(id="small-files", family="input", budget="input", needs=("capture",))


def look(case: Case) -> Iterator[Finding]:
    fed = feeding(case)
    share, rate = reading_share(case), _storage_rate(case)
    if fed is None or share < MIN_READING_SHARE or rate >= STREAMING_BYTES_S:
        return
    line = reading_lines(case)[0]
    exposed = fed.share * share
    name = line.function.replace("<locals>.", "")
    by_number = handing_out(case, fed.loader) is None
    sample = "sample = self.samples[index]" if by_number else "for sample in self.samples:"
    workers = worker_load(case, fed) is not None and case.telemetered.workers
    text = f"{units.percent(share)} of the time a batch takes to make"
    yield make_finding(
        RULE,
        claim=f"{who(case)} waits {units.percent(exposed)} of each step while {name}() opens and "
        "reads files",
        share=exposed,
        bound=gain_without(fed.share),  # one file needs no putting together either
        evidence=[
            wait_evidence(fed),
            measured("opening and reading files", text, share),
            read(f"line {line.line}", line.source),
            *_storage(case, rate),
        ],
        place=Place(file=line.file, line=line.line, function=line.function),
        change="# once: all samples in one file\nnp.save('samples.npy', np.stack(samples))\n"
        "# in __init__\nself.samples = np.load('samples.npy', mmap_mode='r')\n"
        f"# in {name}, in the place of line {line.line}\n{sample}",
        confidence="high" if share >= SURE_READING_SHARE and not decodes_too(line) else "medium",
        doubt="with storage that answers late, more workers would hide it too" if workers else "",
    )


def _storage_rate(case: Case) -> float:
    """Return the bytes a second that were read from storage over the whole telemetry, without what
    the page cache held."""
    if not case.telemetry:
        return 0.0
    read_bytes: dict[int, list[int]] = {}
    for look_ in case.telemetry:
        for process in look_.processes:
            read_bytes.setdefault(process.pid, []).append(process.read_bytes)
    seconds = (case.telemetry[-1].at_ns - case.telemetry[0].at_ns) / 1e9
    total = sum(max(seen) - seen[0] for seen in read_bytes.values())
    return total / seconds if seconds > 0 else 0.0


def _storage(case: Case, rate: float) -> list[Evidence]:
    if not case.telemetry:
        return []
    text = "nothing came from storage: the files were in memory, and opening them took the time"
    if rate >= 1e3:
        text = f"{units.bandwidth(rate)} from storage"
    return [measured("read", text, rate)]
