"""Where the answer is less than proven, in words: why, what the copy is worth, and what to do."""

from ridgeline import units
from ridgeline.records.optimized import Optimized, Total
from ridgeline.report.optimized_chain import disagreement
from ridgeline.report.optimized_ladder import (
    UNPROVEN,
    in_process,
    interrupted,
    lines,
    of_ratio,
    titles,
)
from ridgeline.report.optimized_next import Remedy, remedy, unsure
from ridgeline.report.optimized_words import again, factor, pays_late, twice
from ridgeline.report.plain import printable
from ridgeline.report.reasons import explain

_ADVICE: dict[Remedy, str] = {
    "time": "give it more --budget",
    "quiet": "measure again when nothing else runs on this machine",
    "again": "call it again, it goes on from here",
}


def doubts(found: Optimized) -> tuple[str, ...]:
    """All that stands under the headline, a line each."""
    said = (doubt(found), *found.caveats, pays_late(found), _control(found), _bounds(found))
    return tuple(text for text in said if text)


def doubt(found: Optimized) -> str:
    """What stands right under a headline that is no proven win. Empty under one that is."""
    total, files = found.total, found.written.files if found.written is not None else ()
    copy = f"{files[0]} was written all the same" if files else ""
    if total is not None and total.parity.equality in UNPROVEN:
        refused = "do not use it before you know why its results are others"
        return printable(f"{copy}: {refused}") if copy else ""
    if not unsure(found):
        return ""
    parts = [_why(found, total) if total is not None else _early(found)]
    parts += [f"{copy}: take it for a guess"] if copy else []
    advice = _ADVICE.get(remedy(found), "")
    advice = advice.replace("--budget", "budget") if in_process(found) else advice
    parts += [f"what to do: {advice}"] if advice else []
    return printable("; ".join(parts))


def _why(found: Optimized, total: Total) -> str:
    pairs = units.plural(total.ratio.pairs, "fresh pair")
    if total.ratio.ci_low > 1:
        have = "has" if total.ratio.pairs == 1 else "have"
        return f"{pairs} {have} to be surer than the interval: {twice(found)}"
    return f"{pairs} cannot tell it from no gain: {twice(found)}"


def _early(found: Optimized) -> str:
    if interrupted(found):
        return "it was interrupted before the whole was confirmed"
    return explain(found.stopped) or "there was no time to confirm the whole"


def _bounds(found: Optimized) -> str:
    """Return a sentence that names the changes which gained more than their bound, or ""."""
    wrong = [
        f"{titles(line.rungs)} gained {factor(line.rung.ratio)} where at most "
        f"{line.rung.bound:.2f} × was thought possible"
        for line in lines(found)
        if line.rung.bound_exceeded
    ]
    if not wrong:
        return ""
    said = f"{'; '.join(wrong)}: from then on, no change was skipped because of such an estimate"
    return printable(said)


def _control(found: Optimized) -> str:
    """Of a difference that matters: 1.003 × [1.001, 1.005] of a quiet GPU puts nothing in doubt."""
    if found.control is None or of_ratio(found.control) not in ("FASTER", "SLOWER"):
        return ""
    return (
        f"the unchanged program differed from itself, {factor(found.control)}: the machine was "
        "disturbed, and ratios of this size prove little"
    )


def remark(found: Optimized) -> str:
    """What stands under a ladder that does not end where the whole does."""
    apart = disagreement(found)
    if apart is None:
        return ""
    rungs, ratio = apart
    picked = ", or they looked better than they are when they were picked" * (rungs > ratio.value)
    return (
        f"The rungs come to {rungs:.3g} ×, outside the interval of the whole, {factor(ratio)}: the "
        f"machine was disturbed while they were measured{picked}. What was measured {again(found)} "
        "counts."
    )
