"""repeated-decoding: the same samples are decoded again in each epoch."""

from collections.abc import Iterator

from ridgeline import units
from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import MOST_SHARE, Rule, found
from ridgeline.diagnosis.rules._batch_lines import epochs, repeated_lines, repeated_share
from ridgeline.diagnosis.rules._input_wait import Feeding, feeding, wait_evidence, who
from ridgeline.diagnosis.rules._loaders import handing_out
from ridgeline.records.finding import Evidence, Finding
from ridgeline.records.run import PythonLine
from ridgeline.records.trace import Place
from ridgeline.source.reading.decoded_once import done_once

LEAST = 0.4
"""Of the making of a batch: a cache costs memory, and must save more than a little."""

RULE = Rule(
    id="repeated-decoding",
    family="input",
    title="The same samples are decoded again in each epoch",
    budget="input",
    needs=("capture",),
    looks_at="How often the loader was begun again, the lines beneath it that were seen at work, "
    "and their functions' source: whether anything in it draws random numbers.",
    threshold="Two epochs seen, 40 % of the time a batch takes to make in functions without "
    "randomness, and an exposed wait from 5 % of the step on (10 % on a CPU): a cache costs memory "
    "and must pay for it.",
    why="Decoding, parsing and tokenising give the same result each time. Done in `__getitem__` "
    "they are done once a sample and epoch: with a hundred epochs, a hundred times.",
    fix="Do it once: in `__init__`, in a file written in advance (`torch.save`, `np.save`, Arrow), "
    "or with a cache around the function. With workers that are kept (`persistent_workers=True`) "
    "each fills its own copy of a cache; a file that all map is better. Keep random augmentation "
    "after it.",
    wrong_when="The decoded samples do not fit into memory or on the disk, or the function's "
    "result depends on something its source does not show.",
)


def look(case: Case) -> Iterator[Finding]:
    fed = feeding(case)
    share = repeated_share(case)
    if fed is None or share < LEAST:
        return
    line = _costliest(repeated_lines(case))
    exposed = fed.share * share
    times = epochs(case)
    name = line.function.replace("<locals>.", "")
    yield found(
        RULE,
        claim=f"{who(case)} waits {units.percent(exposed)} of each step for {name}(), which gives "
        f"the same result in every epoch{_each(fed, share)}",
        share=exposed,
        bound=1 / (1 - min(fed.share, MOST_SHARE)),  # what is kept needs no putting together either
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
