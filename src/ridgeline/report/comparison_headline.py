"""The answer of a comparison in one line: the verdict on what was asked for, then what it cost."""

from typing import Literal

from msgspec import Struct

from ridgeline import units
from ridgeline.records.comparison import Candidate, Comparison, Goal, Results
from ridgeline.records.facts import Verdict
from ridgeline.report.comparison_numbers import (
    interval,
    is_ratio,
    items_per_second,
    share,
    time,
    times,
)

Tone = Literal["good", "bad", "unsure", "plain"]

TONES: dict[Verdict, Tone] = {
    "FASTER": "good",
    "SLOWER": "bad",
    "SAME": "plain",
    "UNDECIDED": "unsure",
    "INVALID": "bad",
}

_WANTED: dict[Goal, str] = {
    "speed": "FASTER",
    "memory": "NEEDS LESS MEMORY",
    "throughput": "HAS MORE THROUGHPUT",
}

_THROUGHPUT: dict[Verdict, str] = {
    "FASTER": "MORE THROUGHPUT",
    "SLOWER": "LESS THROUGHPUT",
    "SAME": "SAME THROUGHPUT",
    "UNDECIDED": "THROUGHPUT UNDECIDED",
}


class Judged(Struct, frozen=True, kw_only=True):
    """One candidate, by the goal that was asked for."""

    word: str
    """FASTER, LESS MEMORY, …"""
    tone: Tone
    figure: str = ""
    """1.31 × [1.27, 1.35]; "" where no number can be believed."""
    speed: str = ""
    """What became of the speed, where something else was the goal."""

    @property
    def text(self) -> str:
        answer = f"{self.word} {self.figure}".rstrip()
        return f"{answer}, {self.speed}" if self.speed else answer


class Headline(Struct, frozen=True, kw_only=True):
    answer: Judged
    about: tuple[str, ...]
    """Who against whom; where there are several, what became of them; how equal."""


def headline(c: Comparison) -> Headline:
    """Of the whole comparison: the one candidate, or the best of several."""
    against = f"against {c.baseline.name}"
    number = len(c.candidates) + len(c.broken)
    if number == 1 and c.candidates:
        (only,) = c.candidates
        about = (f"{only.arm.name} {against}", f"results {results(only.results)}")
        return Headline(answer=judged(c, only), about=about)
    won = [k for k in c.candidates if _won(c, k)]
    if not won:
        word = f"NONE OF {number} {_WANTED[c.goal]}" if c.candidates else "NOTHING COMPARED"
        told = tuple(x for x in (against, tally(c)) if x)
        return Headline(answer=Judged(word=word, tone="unsure"), about=told)
    best = max(won, key=lambda k: _gain(c, k))
    return Headline(
        answer=judged(c, best),
        about=(
            f"{best.arm.name} {against}",
            f"results {results(best.results)}",
            f"the best of {number}: {tally(c)}",
        ),
    )


def judged(c: Comparison, candidate: Candidate) -> Judged:
    verdict = candidate.verdict
    if verdict == "INVALID":  # a number beside it would be quoted
        return Judged(word=verdict, tone="bad")
    if c.goal == "memory":
        return _memory(c, candidate)
    if c.goal == "throughput":
        return _throughput(c, candidate)
    figure = interval(candidate.deciding, " ×")
    if candidate.decided_by == "processor_time":
        figure += " by processor time"
    return Judged(word=verdict, tone=TONES[verdict], figure=figure)


def results(found: Results, short: bool = False) -> str:
    """equal (float64 reference, strong); in a table "equal, weak check"."""
    if found.status == "not compared":
        return found.status
    if short:
        return found.status if found.strength == "strong" else f"{found.status}, weak check"
    told = [] if found.status == "bit-identical" or found.method == "none" else [found.method]
    return f"{found.status} ({', '.join([*told, found.strength])})"


def tally(c: Comparison) -> str:
    """1 FASTER, 2 SAME."""
    words: list[str] = [judged(c, k).word for k in c.candidates]
    words += [skipped.status for skipped in c.broken]
    return ", ".join(f"{words.count(w)} {w}" for w in dict.fromkeys(words))


def _memory(c: Comparison, candidate: Candidate) -> Judged:
    ratio, before, after = candidate.memory_ratio, c.baseline.peak_bytes, candidate.arm.peak_bytes
    if ratio is None or not is_ratio(ratio):
        return Judged(word="MEMORY NOT MEASURED", tone="unsure", speed=_speed(candidate))
    word, tone = _weighed(c, candidate, ratio)
    sizes = ""
    if before is not None and after is not None:
        sizes = f" ({units.bytes_(before)} → {units.bytes_(after)})"
    told = times(1 / ratio if word == "MORE MEMORY" else ratio)
    speed = _speed(candidate, gained=word == "LESS MEMORY")
    return Judged(word=word, tone=tone, figure=f"{told}{sizes}", speed=speed)


def _throughput(c: Comparison, candidate: Candidate) -> Judged:
    """The estimate is of time an item, so it is the throughput's own; without items it is of time
    a call, and said as that."""
    verdict, figure = candidate.verdict, interval(candidate.deciding, " ×")
    if candidate.throughput_ratio is None:
        return Judged(word=verdict, tone=TONES[verdict], figure=figure)
    before, after = items_per_second(c.baseline), items_per_second(candidate.arm)
    rates = f" ({before} → {after})" if before and after else ""
    # As many items a call: then the time a call says the same again.
    speed = ""
    if c.baseline.items != candidate.arm.items:
        took = (time(arm.summary.median_ns) for arm in (c.baseline, candidate.arm))
        speed = f"a {c.unit} {' → '.join(took)}"
    word = _THROUGHPUT[verdict]
    return Judged(word=word, tone=TONES[verdict], figure=f"{figure}{rates}", speed=speed)


def _weighed(c: Comparison, candidate: Candidate, ratio: float) -> tuple[str, Tone]:
    """Less, more or the same memory, by the threshold; met or not was decided elsewhere."""
    if candidate.goal_met or ratio > 1 + c.threshold:
        return "LESS MEMORY", "good" if candidate.goal_met else "unsure"
    return ("MORE MEMORY", "bad") if ratio < 1 / (1 + c.threshold) else ("SAME MEMORY", "plain")


def _speed(candidate: Candidate, gained: bool = False) -> str:
    verdict, figure = candidate.verdict, interval(candidate.deciding, " ×")
    if verdict == "SLOWER" and gained:
        return f"costs {share(1 - candidate.deciding.ratio)} speed: SLOWER {figure}"
    return f"speed {verdict} {figure}"


def _won(c: Comparison, candidate: Candidate) -> bool:
    if candidate.verdict == "INVALID":
        return False
    return candidate.verdict == "FASTER" if c.goal == "speed" else bool(candidate.goal_met)


def _gain(c: Comparison, candidate: Candidate) -> float:
    return (candidate.memory_ratio if c.goal == "memory" else candidate.deciding.ratio) or 0.0
