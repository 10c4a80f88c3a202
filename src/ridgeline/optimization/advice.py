"""What findings ask for that no change can be put on from outside: a line each, for the one who
wrote the program. Waits for the device are among them: whether a number is needed at every step is
known to its author alone."""

from collections.abc import Sequence

from ridgeline.diagnosis.rule import Rule
from ridgeline.diagnosis.rule import registered as rules
from ridgeline.fixes.change import registered as changes
from ridgeline.records.finding import Finding
from ridgeline.report.finding_lines import gain

LEAST_PCT = 1.0
"""Of the step: less cannot be seen in a trial either."""
LONGEST = 100
"""Characters of code that are still read in a line of text."""


def advice(findings: Sequence[Finding]) -> tuple[str, ...]:
    """The most valuable first, as the findings are."""
    answered = {rule for one in changes() for rule in one.change.answers}
    known = {one.rule.id: one.rule for one in rules()}
    open_ = [f for f in findings if f.rule not in answered and f.share_pct >= LEAST_PCT]
    return tuple(dict.fromkeys(_line(one, known.get(one.rule)) for one in open_))


def _line(finding: Finding, rule: Rule | None) -> str:
    place = f"{finding.place} " if finding.file else ""
    what = _in_words(rule.text.fix) if rule is not None else ""
    code = _in_code(finding.change)
    wanted = f"{what}: {code}" if what and code else what or code
    if not wanted and finding.docs:
        wanted = f"see {finding.docs}"
    said = f"{place}{finding.claim.rstrip('.')}" + (f": {wanted}" if wanted else "")
    return f"{said} ({gain(finding)})"


def _in_words(fix: str) -> str:
    """The first sentence of a rule's fix, where it begins with one."""
    opening = fix.strip().partition("\n\n")[0].replace("\n", " ")
    if opening.startswith("```"):
        return ""
    sentence = opening.partition(". ")[0].rstrip(".:")
    return sentence[:1].lower() + sentence[1:]


def _in_code(change: str) -> str:
    """The fix, where it is so short that it can stand in a line."""
    lines = [line.partition("  #")[0].rstrip() for line in change.splitlines()]
    code = [line for line in lines if line and not line.lstrip().startswith("#")]
    plain = all(line == line.lstrip() and not line.endswith((":", "(", "[", "{")) for line in code)
    joined = "; ".join(code)
    return f"`{joined}`" if code and plain and len(joined) <= LONGEST else ""
