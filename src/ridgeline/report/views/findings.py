"""What holds a program back, as part of the document of a run or of a trace."""

from ridgeline.records.finding import Finding, Findings
from ridgeline.report import finding_lines
from ridgeline.report.document import (
    Block,
    Claim,
    Claims,
    Detail,
    Item,
    Labelled,
    Paragraph,
    Section,
    item,
    prose,
)


def findings_section(findings: Findings) -> Section:
    """Return the ranked findings and the sentences about those without a line. The section is empty
    where nothing is known at all."""
    lines = finding_lines.lines(findings)
    claims = tuple(
        _claim(line, finding)
        for line, finding in zip(lines, finding_lines.shown(findings), strict=True)
    )
    below = finding_lines.below(findings) if claims else finding_lines.instead(findings)
    blocks: list[Block] = [Claims(claims)] if claims else []
    blocks += [Paragraph(prose(text), "quiet") for text in below]
    return Section(title="what holds it back", id="findings", blocks=tuple(blocks))


def answers_section(findings: Findings, detail: Detail = "brief") -> Section:
    """Return the five questions, each with its answer; empty where none was answered."""
    items = tuple(item(answer.question, prose(answer.text)) for answer in findings.answers)
    blocks = (Labelled(items),) if items else ()
    return Section(title="the five questions", id="answers", blocks=blocks, detail=detail)


def _claim(line: finding_lines.Line, finding: Finding) -> Claim:
    return Claim(
        text=prose(line.claim),
        short_place=line.place,
        place=finding.place if finding.file else "",
        gain=line.gain,
        doubt=prose(line.doubt),
        code=finding_lines.code(finding),
        shows_code=bool(line.code),
        evidence=_evidence(finding),
    )


def _evidence(finding: Finding) -> tuple[Item, ...]:
    return (
        *(item(e.what, prose(f"{e.text} ({e.source})")) for e in finding.evidence),
        item("confidence", finding.confidence),
        item("more", prose(f"`ridgeline explain {finding.rule}`")),
    )
