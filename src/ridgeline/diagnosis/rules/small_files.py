"""small-files: the loader's time goes into opening files."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import MAX_SHARE, Rule, make_finding
from ridgeline.diagnosis.rules._batch_lines import decodes_too, reading_lines, reading_share
from ridgeline.diagnosis.rules._input_wait import feeding, wait_evidence, who, worker_load
from ridgeline.diagnosis.rules._loaders import handing_out
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.trace import Place

LEAST = 0.25
"""Of the making of a batch: less is the price of having files at all."""
STREAMS = 150e6
"""Bytes a second from storage: from here on files are large, and it is the storage's rate."""

RULE = Rule(id="small-files", family="input", budget="input", needs=("capture",))


def look(case: Case) -> Iterator[Finding]:
    fed = feeding(case)
    share = reading_share(case)
    if fed is None or share < LEAST or _from_storage(case) >= STREAMS:
        return
    line = reading_lines(case)[0]
    exposed = fed.share * share
    name = line.function.replace("<locals>.", "")
    yield make_finding(
        RULE,
        claim=f"{who(case)} waits {units.percent(exposed)} of each step while {name}() opens and "
        "reads files",
        share=exposed,
        bound=1 / (1 - min(fed.share, MAX_SHARE)),  # one file needs no putting together either
        evidence=[
            wait_evidence(case, fed),
            Evidence(
                what="opening and reading files",
                text=f"{units.percent(share)} of the time a batch takes to make",
                value=share,
            ),
            Evidence(what=f"line {line.line}", text=line.source, source="read"),
            *_storage(case),
        ],
        place=Place(file=line.file, line=line.line, function=line.function),
        change="# once: all samples in one file\nnp.save('samples.npy', np.stack(samples))\n"
        "# in __init__\nself.samples = np.load('samples.npy', mmap_mode='r')\n"
        f"# in {name}, in the place of line {line.line}\n"
        + ("sample = self.samples[index]" if handing_out(case, fed.loader) is None else
           "for sample in self.samples:"),
        confidence="high" if share >= 0.5 and not decodes_too(line) else "medium",
        doubt="" if worker_load(case, fed) is None or case.telemetered.workers == 0 else
        "with storage that answers late, more workers would hide it too",
    )  # fmt: skip


def _from_storage(case: Case) -> float:
    """Bytes a second, over the whole telemetry; what the page cache held is not in it."""
    first: dict[int, tuple[int, int]] = {}
    read, last, began = 0, 0, 0
    for look_ in case.telemetry:
        began = began or look_.at_ns
        last = look_.at_ns
        for process in look_.processes:
            before = first.setdefault(process.pid, (process.read_bytes, process.read_bytes))
            first[process.pid] = (before[0], max(before[1], process.read_bytes))
    read = sum(end - start for start, end in first.values())
    return read / ((last - began) / 1e9) if last > began else 0.0


def _storage(case: Case) -> list[Evidence]:
    rate = _from_storage(case)
    if not case.telemetry:
        return []
    text = f"{units.bandwidth(rate)} from storage" if rate >= 1e3 else (
        "nothing came from storage: the files were in memory, and opening them took the time"
    )  # fmt: skip
    return [Evidence(what="read", text=text, value=rate)]
