"""Findings: the claims that get a line, what stands in it, and sentences on the rest.

A finding gets a line if it costs at least 3 % of the step: a smaller one is not worth a person's
hour, and two runs of the same program differ by as much. A finding that saves memory gets a line
from a tenth of the peak on; a graph that is kept for ever and a wrong result always get one.
"""

import math
import re
from collections.abc import Sequence
from typing import Any

import msgspec

from ridgeline import units
from ridgeline.records.finding import (
    CodePlace,
    Confidence,
    Finding,
    Findings,
    Loss,
    LossKind,
    LossNeeds,
)
from ridgeline.report.document import (
    Block,
    Claim,
    Claims,
    Detail,
    Item,
    Labelled,
    Paragraph,
    Section,
    Span,
    item,
    prose,
)
from ridgeline.report.reasons import answer_data, answer_text, question

MIN_SHARE_PERCENT = 3.0
MIN_MEMORY_PERCENT = 10.0
KEPT_GRAPH_RULE = "graph-kept"
"""A line that keeps a graph for ever is always shown, however slowly memory fills."""
GROWTH_EVIDENCE = "growth"
"""The evidence whose value is the bytes that each step leaves behind. The `memory_pct` of such a
finding is what a usual number of steps would fill, and no share of a peak."""
MAX_PRINTED_SPEEDUP = 10.0
"""A larger bound means a share above 90 % of the step: it is printed as almost all of the step."""
MAX_CLAIMS = 5
MAX_CLAIMS_WITH_CODE = 2
"""A short view has room for the code of this many of the first claims."""
MAX_PLACE_LENGTH = 32
MAX_UNMEASURED_PLACES = 3
"""How many lines are named for findings that were read in the source and not measured."""
_NOT_RECORDED_HERE = ("gpu", "ranks", "capture", "timed", "telemetry")
"""A rule that lacks one of these does not apply to this program, or to a trace alone. A rule that
lacks anything else could not check. The JSON document has all of them."""
_NEEDED_PARTS = {
    "sites": "operators",
    "stacks": "Python stacks",
    "shapes": "recorded shapes",
}
"""The parts of a trace that rules need, as the person who recorded the trace calls them."""


def findings_section(findings: Findings) -> Section:
    """Return the claims and the sentences below them. At a terminal they need no title."""
    blocks: list[Block] = [Claims(claims)] if (claims := findings_claims(findings)) else []
    blocks += [Paragraph(prose(text), "quiet") for text in closing_sentences(findings)]
    return Section(
        title="what holds it back", blocks=tuple(blocks), id="findings", title_detail="page"
    )


def answers_section(findings: Findings, detail: Detail = "brief") -> Section:
    """Return the answers to the questions that every performance engineer asks first."""
    answers = tuple(item(question(a), prose(answer_text(a))) for a in findings.answers)
    blocks = (Labelled(answers),) if answers else ()
    return Section(
        title="the five questions", blocks=blocks, id="answers", detail=detail, title_detail="page"
    )


def findings_data(findings: Findings) -> dict[str, Any]:
    """Return the keys that a JSON document has for findings; the most valuable finding is first."""
    return {
        "findings": [msgspec.to_builtins(finding) for finding in findings.findings],
        "findings_left_out": findings.left_out,
        "answers": [answer_data(answer) for answer in findings.answers],
        "ceiling_pct": findings.ceiling_pct,
        "ceiling": findings.ceiling or None,
        "remains": findings.remains,
        "unexplained": findings.unexplained,
        "loss": None if findings.loss is None else msgspec.to_builtins(findings.loss),
        "basis": findings.basis,
        "unlooked": [f"{rule.rule}: no {', '.join(rule.lacks)}" for rule in findings.unlooked],
    }


def findings_claims(findings: Findings) -> tuple[Claim, ...]:
    shown = shown_findings(findings)
    numbers: dict[str, int] = {}
    for number, finding in enumerate(shown, 1):
        numbers.setdefault(finding.rule, number)
    return tuple(
        Claim(
            text=prose(claim_text(finding)),
            short_place=short_place(finding),
            place=finding.place if finding.file else "",
            function=finding.function,
            kinds=finding_kinds(finding),
            confidence=finding.confidence,
            gain=", ".join([gain_text(finding), *_relations(finding, numbers)]),
            doubt=prose(" ".join(finding.doubt.split()).rstrip(".")),
            code=_code_lines(finding),
            diff=_diff(finding),
            shows_code=number <= MAX_CLAIMS_WITH_CODE,
            evidence=_evidence(finding),
        )
        for number, finding in enumerate(shown, 1)
    )


FAMILY_KINDS: dict[str, tuple[str, ...]] = {
    "input": ("input",),
    "transfer": ("transfer",),
    "synchronisation": ("synchronisation",),
    "launch": ("launch-bound", "launch"),
    "kernels": ("matmul", "convolution", "attention", "elementwise"),
    "precision": ("matmul", "convolution", "attention"),
    "memory": ("allocator",),
    "compile": ("compile",),
    "communication": ("communication", "collective wait"),
}
"""The kinds of events on the timeline that a finding of each family is about."""
RULE_KINDS: dict[str, tuple[str, ...]] = {
    "unfused-optimizer": ("optimizer",),
    "set-to-none": ("optimizer",),
}
"""The kinds of rules that are about others than their family."""


def finding_kinds(finding: Finding) -> tuple[str, ...]:
    return RULE_KINDS.get(finding.rule, FAMILY_KINDS.get(finding.family, ()))


def shown_findings(findings: Findings) -> tuple[Finding, ...]:
    return tuple(f for f in findings.findings if is_worth_a_line(f))[:MAX_CLAIMS]


def is_worth_a_line(finding: Finding) -> bool:
    if finding.confidence == "unmeasured":
        return False
    if finding.wrong_results:
        return True
    sure: tuple[Confidence, ...] = ("high", "medium")
    if finding.rule == KEPT_GRAPH_RULE and finding.confidence in sure:
        return True
    return finding.share_pct >= MIN_SHARE_PERCENT or finding.memory_pct >= MIN_MEMORY_PERCENT


def claim_text(finding: Finding) -> str:
    text = " ".join(finding.claim.split()).rstrip(".")
    return f"perhaps: {text}" if finding.confidence == "low" else text


def gain_text(finding: Finding) -> str:
    """Return the most that fixing a finding can gain. Bounds are rounded up, so that no gain can
    pass what is printed."""
    if finding.wrong_results:
        return "results are probably wrong"
    growth = next((e.value for e in finding.evidence if e.what == GROWTH_EVIDENCE), None)
    if growth:
        return f"ends growth of {units.bytes_(growth)} a step"
    if finding.memory_pct and not finding.share_pct:
        return f"up to {max(finding.memory_pct, 1.0):.0f} % less memory"
    gains = []
    if finding.share_pct >= MIN_SHARE_PERCENT or finding.memory_pct < MIN_MEMORY_PERCENT:
        gains.append(f"up to {_speedup(finding.gain_bound)}")
    if finding.memory_pct >= MIN_MEMORY_PERCENT:
        lead = "" if gains else "up to "
        gains.append(f"{lead}{finding.memory_pct:.0f} % less memory")
    return ", ".join(gains)


def short_place(finding: Finding) -> str:
    """Return the place of a finding. A long path is cut to its last folder and file. A finding
    without a file is placed by its module."""
    if not finding.file:
        return " / ".join(finding.module.split(" / ")[-2:])
    if len(finding.place) <= MAX_PLACE_LENGTH:
        return finding.place
    parts = re.split(r"[\\/]", finding.place)
    two = "/".join(parts[-2:])
    return two if len(two) <= MAX_PLACE_LENGTH else parts[-1]


def closing_sentences(findings: Findings) -> tuple[str, ...]:
    """Return the sentences below the claims: the largest loss without a finding, how many findings
    have no line, and which steps were studied. Without claims, return the sentences that replace
    them."""
    if shown_findings(findings):
        sentences = (largest_loss(findings), _findings_without_a_line(findings))
    else:
        sentences = (_no_claim(findings), _rules_that_could_not_look(findings))
    basis = f"drawn from {findings.basis}" if findings.basis else ""
    return tuple(text for text in (*sentences, basis) if text)


_LOSSES: dict[LossKind, str] = {
    "input": "waiting for data",
    "transfer": "copies between host and device",
    "overhead": "Python, launches and small operators",
    "communication": "communication",
    "pauses": "pauses that the step time leaves out",
}
_PAUSE_PHASES = {
    "evaluation": "calls of the model without gradients",
    "input": "waiting for data",
    "other": "the program's own code outside model, loss and optimizer",
}
_LOSS_NEEDS: dict[LossNeeds, str] = {
    "stacks": "record the trace with `with_stack=True` to see in which functions",
    "python": "`ridgeline run --python` shows in which lines",
}


def largest_loss(findings: Findings) -> str:
    """Return a sentence about the largest part of the time without a finding: how much it is, where
    it goes, and what would tell more. Return "" if there is none."""
    loss = findings.loss
    if loss is None:
        return ""
    parts = [f"{_loss_share(loss)}, and no finding explains it"]
    if loss.places:
        places = (f"{_place(p)} {units.significant(p.share_pct, 2)} %" for p in loss.places)
        parts.append(f"most of it in {', '.join(places)}")
    if loss.needs:
        parts.append(_LOSS_NEEDS[loss.needs])
    return "; ".join(parts)


def _loss_share(loss: Loss) -> str:
    part = f"{units.significant(loss.share_pct, 2)} %"
    if loss.kind == "pauses":
        phase = _PAUSE_PHASES.get(loss.phase, loss.phase)
        mostly = f", most of it {phase}" if phase else ""
        return f"{part} of the time goes to {_LOSSES['pauses']}{mostly}"
    if 2 * loss.own_code_pct >= loss.share_pct:
        own = f"{units.significant(loss.own_code_pct, 2)} %"
        return f"{own} of the step goes to the program's own Python code"
    why = f" ({loss.cause})" if loss.cause and loss.cause not in _LOSSES[loss.kind] else ""
    return f"{part} of the step goes to {_LOSSES[loss.kind]}{why}"


def _place(place: CodePlace) -> str:
    """Return a function with its first line. Code of a script outside of functions has no first
    line: its file is named."""
    if place.function == "<module>":
        return f"the top level of {place.file}"
    name = f"{place.function}() " if place.function and "<" not in place.function else ""
    return f"{name}{place.file}:{place.line}"


def _findings_without_a_line(findings: Findings) -> str:
    """Return how many findings have no line, and why; "" if every finding has one."""
    shown = len(shown_findings(findings))
    beyond = sum(1 for f in findings.findings if is_worth_a_line(f)) - shown
    unmeasured = _unmeasured(findings)
    below = len(findings.findings) - shown - beyond - len(unmeasured) + findings.left_out
    limit = f"{MIN_SHARE_PERCENT:.0f} %"
    counts = [f"{beyond} more above {limit}"] if beyond else []
    if below:
        counts.append(f"{below} below it" if counts else f"{below} more below {limit}")
    if unmeasured:
        more = "" if counts else " more"
        counts.append(f"{len(unmeasured)}{more} {_rules_and_places(unmeasured)}")
    return f"and {', '.join(counts)}" if counts else ""


def _no_claim(findings: Findings) -> str:
    """Return the sentence for a result without claims: how near the ceiling the step is and what
    remains; or, if most of the time is unexplained, why this is no all-clear."""
    unmeasured = _unmeasured(findings)
    below = len(findings.findings) - len(unmeasured)
    read = ""
    if unmeasured:
        read = f"{units.plural(len(unmeasured), 'finding')} {_rules_and_places(unmeasured)}"
    limit = f"{MIN_SHARE_PERCENT:.0f} %"
    if findings.unexplained or findings.loss is not None:
        named = findings.loss is not None and findings.loss.kind in ("overhead", "pauses")
        # For waits for data, copies or ranks, `unexplained` also says which usual causes are ruled
        # out, so it is printed instead of the loss.
        why = largest_loss(findings) if named or not findings.unexplained else findings.unexplained
        few = f"{units.plural(below, 'finding')} below {limit}" if below else ""
        return "; ".join(text for text in (why, few, read) if text)
    parts = [f"nothing above {limit}{f' ({below} below it)' if below else ''}"]
    parts += [read] if read else []
    if findings.ceiling_pct is not None:
        near = units.significant(findings.ceiling_pct, 2)
        parts.append(f"you are at {near} % of the {findings.ceiling or 'ceiling'}")
    if findings.remains:
        parts.append(f"what remains is {findings.remains}")
    return "; ".join(parts)


def _rules_that_could_not_look(findings: Findings) -> str:
    """Return how many rules could not check because something was not recorded. That they report
    nothing is no all-clear."""
    rules = [r for r in findings.unlooked if not set(r.lacks) & set(_NOT_RECORDED_HERE)]
    lacking = {need for rule in rules for need in rule.lacks}
    if not lacking:
        return ""
    if "trace" in lacking:
        missing = "no step was traced"
    else:
        parts = [f"no {words}" for need, words in _NEEDED_PARTS.items() if need in lacking]
        parts += [f"no {need}" for need in sorted(lacking - _NEEDED_PARTS.keys())]
        missing = f"the trace has {' and '.join(filter(None, (', '.join(parts[:-1]), parts[-1])))}"
    return f"{units.plural(len(rules), 'rule')} could not check: {missing}"


def _unmeasured(findings: Findings) -> list[Finding]:
    return [finding for finding in findings.findings if finding.confidence == "unmeasured"]


def _rules_and_places(unmeasured: Sequence[Finding]) -> str:
    rules = ", ".join(dict.fromkeys(finding.rule for finding in unmeasured))
    places = ", ".join(filter(None, map(short_place, unmeasured[:MAX_UNMEASURED_PLACES])))
    more = ", …" if len(unmeasured) > MAX_UNMEASURED_PLACES else ""
    where = f" at {places}{more}" if places else ""
    return f"read in the source, not measured: {rules}{where}"


def _relations(finding: Finding, numbers: dict[str, int]) -> list[str]:
    """Return the findings that this one depends on, by their numbers where they have a line."""
    relations = (("after", finding.after), ("same time as", finding.shares_with))
    return [f"{words} {numbers.get(rule, rule)}" for words, rule in relations if rule]


def _evidence(finding: Finding) -> tuple[Item, ...]:
    return (
        *(item(e.what, prose(f"{e.text} ({e.source})")) for e in finding.evidence),
        item("confidence", finding.confidence),
        item("more", (Span(f"ridgeline explain {finding.rule}", code=True),)),
    )


def _code_lines(finding: Finding) -> tuple[str, ...]:
    """Return the fix, line by line; tabs become four columns."""
    lines = finding.change.strip("\n").expandtabs(4).splitlines()
    return tuple(line.rstrip() for line in lines)


def _diff(finding: Finding) -> str:
    """Return the lines of the program before and after the fix."""
    lines = []
    for edit in finding.edits:
        lines.append(f"@@ {edit.file}:{edit.line}{'' if edit.before else ', new lines after it'}")
        lines += (f"- {line}" for line in edit.before)
        lines += (f"+ {line}" for line in edit.after)
    return "\n".join(lines)


def _speedup(bound: float) -> str:
    """Return a bound in words. A large bound divides by a remainder of the step that is mostly
    noise, so its number is not printed."""
    if not math.isfinite(bound):
        return "— ×"
    if bound > MAX_PRINTED_SPEEDUP:
        return "almost all of the step"
    scale = 100 if bound < 2 else 10 if bound < 10 else 1
    # 1.1 × 100 is 110.00000000000001: digits beyond the sixth do not decide.
    return f"{units.significant(math.ceil(round(bound * scale, 6)) / scale, 4)} ×"
