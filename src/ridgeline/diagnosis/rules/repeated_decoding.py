"""The same samples are decoded again in each epoch."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import Rule, gain_without, make_finding, measured, read
from ridgeline.diagnosis.rules._input_wait import costliest_line, feeding, wait_evidence, who
from ridgeline.diagnosis.rules._loaders import epochs, handing_out, repeated_lines, repeated_share
from ridgeline.records.finding import Finding
from ridgeline.records.trace import Place
from ridgeline.source.datasets import decoded_once

MIN_REPEATED_SHARE = 0.4
"""Share of the making of a batch that must be the same each time: a cache costs memory, and must
save more than a little."""

RULE = Rule(id="repeated-decoding", family="input", budget="input", needs=("capture",))


def look(case: Case) -> Iterator[Finding]:
    fed = feeding(case)
    share = repeated_share(case)
    line = costliest_line(repeated_lines(case))
    if fed is None or line is None or share < MIN_REPEATED_SHARE:
        return
    exposed = fed.share * share
    times = epochs(case)
    name = line.function.replace("<locals>.", "")
    each = f": {units.seconds(share * fed.sample_ms / 1e3)} a sample" if fed.sample_ms else ""
    text = f"{units.percent(share)} of the time a batch takes to make is in functions "
    yield make_finding(
        RULE,
        claim=f"{who(case)} waits {units.percent(exposed)} of each step for {name}(), which gives "
        f"the same result in every epoch{each}",
        share=exposed,
        bound=gain_without(fed.share),  # decoded samples need no putting together either
        evidence=[
            wait_evidence(fed),
            measured("the same each time", f"{text}that draw no random numbers", share),
            measured("epochs", f"{times} while it was looked at", times),
            read(f"line {line.line}", line.source),
        ],
        place=Place(file=line.file, line=line.line, function=line.function),
        change=decoded_once(case.sources, line, handing_out(case, fed.loader)),
        confidence="high",
        doubt="the decoded samples have to fit into memory, or on a disk",
    )
