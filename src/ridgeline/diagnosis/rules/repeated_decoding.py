"""repeated-decoding: the same samples are decoded again in each epoch."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import MAX_SHARE, Rule, make_finding
from ridgeline.diagnosis.rules._batch_lines import epochs, repeated_lines, repeated_share
from ridgeline.diagnosis.rules._input_wait import Feeding, feeding, wait_evidence, who
from ridgeline.diagnosis.rules._loaders import handing_out
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import PythonLine
from ridgeline.records.trace import Place
from ridgeline.source.datasets import done_once

LEAST = 0.4
"""Of the making of a batch: a cache costs memory, and must save more than a little."""

RULE = Rule(id="repeated-decoding", family="input", budget="input", needs=("capture",))


def look(case: Case) -> Iterator[Finding]:
    fed = feeding(case)
    share = repeated_share(case)
    if fed is None or share < LEAST:
        return
    line = _costliest(repeated_lines(case))
    exposed = fed.share * share
    times = epochs(case)
    name = line.function.replace("<locals>.", "")
    yield make_finding(
        RULE,
        claim=f"{who(case)} waits {units.percent(exposed)} of each step for {name}(), which gives "
        f"the same result in every epoch{_each(fed, share)}",
        share=exposed,
        bound=1 / (1 - min(fed.share, MAX_SHARE)),  # what is kept needs no putting together either
        evidence=[
            wait_evidence(case, fed),
            Evidence(
                what="the same each time",
                text=f"{units.percent(share)} of the time a batch takes to make is in functions "
                "that draw no random numbers",
                value=share,
            ),
            Evidence(what="epochs", text=f"{times} while it was looked at", value=times),
            Evidence(what=f"line {line.line}", text=line.source, source="read"),
        ],
        place=Place(file=line.file, line=line.line, function=line.function),
        change=done_once(case.sources, line, handing_out(case, fed.loader)),
        confidence="high",
        doubt="the decoded samples have to fit into memory, or on a disk",
    )


def _costliest(lines: tuple[PythonLine, ...]) -> PythonLine:
    """Of the function with most of the time, the costliest line."""
    shares: dict[tuple[str, str], float] = {}
    for line in lines:
        key = (line.file, line.function)
        shares[key] = shares.get(key, 0.0) + line.share
    most = max(shares, key=lambda key: shares[key])
    return next(line for line in lines if (line.file, line.function) == most)


def _each(fed: Feeding, share: float) -> str:
    each = fed.sample_ms
    return f": {units.seconds(share * each / 1e3)} a sample" if each else ""
