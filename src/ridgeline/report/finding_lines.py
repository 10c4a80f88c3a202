"""Findings before they have a format: which get a line, what it says, and a sentence for the rest.

A finding gets a line from 3 % of the step on: below it a person's hour is better spent elsewhere,
and a twin of the same program differs by as much. One that saves memory gets a line from a tenth of
the peak on, and a graph that is kept for ever gets one always.
"""

import math
import re
from collections.abc import Sequence

from msgspec import Struct

from ridgeline import units
from ridgeline.records.finding import CodePlace, Finding, Findings, Loss, LossKind, LossNeeds
from ridgeline.report.plain import printable

LEAST_PCT = 3.0
LEAST_MEMORY_PCT = 10.0
GRAPHS = "graph-kept"
"""What a line keeps for ever gets a line of its own, however slowly memory fills."""
GROWTH = "growth"
"""The evidence of memory that each step leaves larger: so many bytes a step. Its `memory_pct` is of
no peak: it is what a usual number of steps would fill."""
MAX_TOLD_SPEEDUP = 10.0
"""A larger bound means a share above 90 % of the step: it is printed as almost all of the step."""
MOST_LINES = 5
WITH_CODE = 2
"""So many of the first lines have their fix below them."""
LONGEST_PLACE = 32
MAX_PLACES_READ = 3
"""How many lines are named for findings that were read in the source and not measured."""
_NOT_MEANT = ("gpu", "ranks", "capture", "timed", "telemetry")
"""A rule that lacks these is not for this program, or not for a trace alone; one that lacks another
part could not look. All are in the document."""
_LACKS = {
    "sites": "operators",
    "stacks": "Python stacks",
    "shapes": "recorded shapes",
}
"""What a rule needs of a trace, in the words of who recorded it."""


class Line(Struct, frozen=True, kw_only=True):
    """Every text can be printed as it is."""

    number: int
    claim: str
    place: str
    gain: str
    """up to 1.3 ×, after 1"""
    doubt: str = ""
    """Why it might be wrong."""
    code: tuple[str, ...] = ()
    """The fix, where this is one of the first."""
    rule: str = ""


def lines(findings: Findings) -> tuple[Line, ...]:
    told = shown(findings)
    numbers: dict[str, int] = {}
    for number, finding in enumerate(told, 1):
        numbers.setdefault(finding.rule, number)
    return tuple(
        Line(
            number=number,
            claim=claim(finding),
            place=short_place(finding),
            gain=", ".join([gain(finding), *relations(finding, numbers)]),
            doubt=printable(" ".join(finding.doubt.split())).rstrip("."),
            code=code(finding) if number <= WITH_CODE else (),
            rule=printable(finding.rule),
        )
        for number, finding in enumerate(told, 1)
    )


def shown(findings: Findings) -> tuple[Finding, ...]:
    return tuple(f for f in findings.findings if matters(f))[:MOST_LINES]


def matters(finding: Finding) -> bool:
    if finding.confidence == "unmeasured":
        return False
    if finding.wrong_results:
        return True
    grows = finding.rule == GRAPHS and finding.confidence in ("high", "medium")
    return grows or finding.share_pct >= LEAST_PCT or finding.memory_pct >= LEAST_MEMORY_PCT


def claim(finding: Finding) -> str:
    said = printable(" ".join(finding.claim.split())).rstrip(".")
    return f"perhaps: {said}" if finding.confidence == "low" else said


def gain(finding: Finding) -> str:
    """A bound is rounded up: what it says cannot be passed."""
    if finding.wrong_results:
        return "results are probably wrong"
    grows = next((one.value for one in finding.evidence if one.what == GROWTH), None)
    if grows:
        return f"ends growth of {units.bytes_(grows)} a step"
    said = []
    if finding.memory_pct and not finding.share_pct:
        return f"up to {max(finding.memory_pct, 1.0):.0f} % less memory"
    if finding.share_pct >= LEAST_PCT or finding.memory_pct < LEAST_MEMORY_PCT:
        said.append(f"up to {_speedup(finding.gain_bound)}")
    if finding.memory_pct >= LEAST_MEMORY_PCT:
        lead = "" if said else "up to "
        said.append(f"{lead}{finding.memory_pct:.0f} % less memory")
    return ", ".join(said)


def relations(finding: Finding, numbers: dict[str, int]) -> list[str]:
    """What it depends on, by its number where that has one."""
    said = []
    for words, rule in (("after", finding.after), ("same time as", finding.shares_with)):
        if rule:
            said.append(printable(f"{words} {numbers.get(rule, rule)}"))
    return said


def below(findings: Findings) -> tuple[str, ...]:
    """Return the sentences below the printed findings: the largest loss without a finding, how many
    more findings there are, and which steps were looked at. Return () if no finding is printed."""
    if not shown(findings):
        return ()
    said = (largest_loss(findings), rest(findings), basis(findings))
    return tuple(text for text in said if text)


def instead(findings: Findings) -> tuple[str, ...]:
    """Return the sentences that are printed where no finding is."""
    said = (nothing(findings), unlooked(findings), basis(findings))
    return tuple(text for text in said if text)


def rest(findings: Findings) -> str:
    """How many got no line, and why; "" where there are none, or `nothing` tells it."""
    if not shown(findings):
        return ""
    beyond = sum(1 for f in findings.findings if matters(f)) - len(shown(findings))
    read = _read(findings)
    below = len(findings.findings) - len(shown(findings)) - beyond - len(read) + findings.left_out
    least = f"{LEAST_PCT:.0f} %"
    said = [f"{beyond} more above {least}"] if beyond else []
    if below:
        said.append(f"{below} below it" if said else f"{below} more below {least}")
    if read:
        said.append(f"{len(read)}{'' if said else ' more'} {_unmeasured(read)}")
    return f"and {', '.join(said)}" if said else ""


def nothing(findings: Findings) -> str:
    """What to say where no finding has a line: how near the ceiling, and what is left; or why that
    is no all-clear."""
    if shown(findings):
        return ""
    read = _read(findings)
    below = len(findings.findings) - len(read)
    unmeasured = f"{units.plural(len(read), 'finding')} {_unmeasured(read)}" if read else ""
    said = [f"nothing above {LEAST_PCT:.0f} %{f' ({below} below it)' if below else ''}"]
    if findings.unexplained or findings.loss is not None:
        few = f"{units.plural(below, 'finding')} below {LEAST_PCT:.0f} %" if below else ""
        named = findings.loss is not None and findings.loss.kind in ("overhead", "pauses")
        # For waits for data, copies or ranks, `unexplained` also says which usual causes are ruled
        # out, so it is printed instead of the loss.
        why = largest_loss(findings) if named or not findings.unexplained else findings.unexplained
        told = [why, few, unmeasured]
        return printable("; ".join(text for text in told if text))
    said += [unmeasured] if unmeasured else []
    if findings.ceiling_pct is not None:
        near = units.significant(findings.ceiling_pct, 2)
        said.append(printable(f"you are at {near} % of the {findings.ceiling or 'ceiling'}"))
    if findings.remains:
        said.append(printable(f"what remains is {findings.remains}"))
    return "; ".join(said)


_LOSSES: dict[LossKind, str] = {
    "input": "waiting for data",
    "transfer": "copies between host and device",
    "overhead": "Python, launches and small operators",
    "communication": "communication",
    "pauses": "pauses that the step time leaves out",
}
_IN_PAUSES = {
    "evaluation": "calls of the model without gradients",
    "input": "waiting for data",
    "other": "the program's own code outside model, loss and optimizer",
}
_NEEDS: dict[LossNeeds, str] = {
    "stacks": "record the trace with `with_stack=True` to see in which functions",
    "python": "`ridgeline run --python` shows in which lines",
}


def largest_loss(findings: Findings) -> str:
    """Return a sentence about the largest part of the time without a finding: how much it is, where
    it goes, and what would tell more. Return "" if there is none."""
    loss = findings.loss
    if loss is None:
        return ""
    said = [f"{_loss_share(loss)}, and no finding explains it", _loss_places(loss)]
    if loss.needs:
        said.append(_NEEDS[loss.needs])
    return printable("; ".join(text for text in said if text))


def _loss_share(loss: Loss) -> str:
    part = f"{units.significant(loss.share_pct, 2)} %"
    if loss.kind == "pauses":
        mostly = _IN_PAUSES.get(loss.phase, loss.phase)
        return f"{part} of the time goes to {_LOSSES['pauses']}" + (
            f", most of it {mostly}" if mostly else ""
        )
    if 2 * loss.own_code_pct >= loss.share_pct:
        own = f"{units.significant(loss.own_code_pct, 2)} %"
        return f"{own} of the step goes to the program's own Python code"
    why = f" ({loss.cause})" if loss.cause and loss.cause not in _LOSSES[loss.kind] else ""
    return f"{part} of the step goes to {_LOSSES[loss.kind]}{why}"


def _code_place(place: CodePlace) -> str:
    """Return a function with its first line. Code of a script outside of functions has no first
    line: its file is named."""
    if place.function == "<module>":
        return f"the top level of {place.file}"
    name = f"{place.function}() " if place.function and "<" not in place.function else ""
    return f"{name}{place.file}:{place.line}"


def _loss_places(loss: Loss) -> str:
    named = [_code_place(place) for place in loss.places]
    told = [
        f"{name} {units.significant(place.share_pct, 2)} %"
        for name, place in zip(named, loss.places, strict=True)
    ]
    return f"most of it in {', '.join(told)}" if told else ""


def _read(findings: Findings) -> list[Finding]:
    return [finding for finding in findings.findings if finding.confidence == "unmeasured"]


def _unmeasured(read: Sequence[Finding]) -> str:
    """Return the rules of findings that were not measured, and the first lines that they name."""
    rules = ", ".join(dict.fromkeys(finding.rule for finding in read))
    places = ", ".join(filter(None, map(short_place, read[:MAX_PLACES_READ])))
    more = ", …" if len(read) > MAX_PLACES_READ else ""
    where = f" at {places}{more}" if places else ""
    return printable(f"read in the source, not measured: {rules}{where}")


def basis(findings: Findings) -> str:
    """Of a long trace: which steps were looked at."""
    return printable(f"drawn from {findings.basis}") if findings.basis else ""


def unlooked(findings: Findings) -> str:
    """Rules that would have looked, had more been recorded; silence of theirs is no all-clear."""
    lacks: set[str] = set()
    blind = 0
    for said in findings.unlooked:
        needs = said.partition(": no ")[2].split(", ")
        if any(need in _NOT_MEANT for need in needs):
            continue
        blind += 1
        lacks.update(needs)
    if not blind:
        return ""
    return printable(f"{units.plural(blind, 'rule')} could not look: {_lacking(lacks)}")


def _lacking(lacks: set[str]) -> str:
    if "trace" in lacks:
        return "no step was traced"
    named = [f"no {words}" for need, words in _LACKS.items() if need in lacks]
    named += [f"no {need}" for need in sorted(lacks - _LACKS.keys()) if need]
    return "the trace has " + (" and ".join(named) if len(named) < 3 else _listed(named))


def _listed(named: list[str]) -> str:
    return f"{', '.join(named[:-1])} and {named[-1]}"


def code(finding: Finding) -> tuple[str, ...]:
    """The fix, line by line; a tab is four columns wide here."""
    text = finding.change.strip("\n").expandtabs(4)
    return tuple(printable(line.rstrip()) for line in text.splitlines())


def place(finding: Finding) -> str:
    return printable(finding.place)


def short_place(finding: Finding) -> str:
    """The file with its last folder where the whole is long; else the module it is in."""
    if not finding.file:
        return printable(" / ".join(finding.module.split(" / ")[-2:]))
    whole = place(finding)
    if len(whole) <= LONGEST_PLACE:
        return whole
    ends = re.split(r"[\\/]", whole)
    two = "/".join(ends[-2:])
    return two if len(two) <= LONGEST_PLACE else ends[-1]


def _speedup(bound: float) -> str:
    """Return a bound in words. A large bound divides by a remainder of the step that is mostly
    noise, so its number is not printed."""
    if math.isfinite(bound) and bound > MAX_TOLD_SPEEDUP:
        return "almost all of the step"
    return f"{_up(bound)} ×"


def _up(bound: float) -> str:
    if not math.isfinite(bound):
        return "—"
    decimals = 2 if bound < 2 else 1 if bound < 10 else 0
    scale = 10**decimals
    # 1.1 × 100 is 110.00000000000001: no more than the sixth decimal decides
    return units.significant(math.ceil(round(bound * scale, 6)) / scale, 4)
