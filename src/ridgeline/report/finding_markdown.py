"""Findings as Markdown: a numbered list, evidence and fix folded under each."""

from ridgeline.records.finding import Finding, Findings
from ridgeline.report.cells import markdown_cell
from ridgeline.report.document import Claim, plain
from ridgeline.report.plain import printable
from ridgeline.report.views.findings import closing_sentences, findings_claims, shown_findings


def findings_markdown(findings: Findings) -> list[str]:
    """Lines, with an empty one after each block."""
    told = zip(findings_claims(findings), shown_findings(findings), strict=True)
    found: list[str] = []
    for number, (line, finding) in enumerate(told, 1):
        at = f" `{_code(line.place)}`" if line.place else ""
        claim = _words(printable(plain(line.text)))
        said = f"{number}. **{claim}**{at}: {markdown_cell(printable(line.gain))}"
        found += [said, "", *_below(line, finding), ""]
    for sentence in closing_sentences(findings):
        found += [_words(printable(sentence)), ""]
    return found


def answers_markdown(findings: Findings) -> list[str]:
    if not findings.answers:
        return []
    found = [
        f"- **{markdown_cell(printable(answer.question))}** {_words(printable(answer.text))}"
        for answer in findings.answers
    ]
    return [*found, ""]


def _below(line: Claim, finding: Finding) -> list[str]:
    """Indented by three, so that it belongs to the number."""
    lines = [
        f"   - {markdown_cell(printable(one.what))}: {_words(printable(one.text))} ({one.source})"
        for one in finding.evidence
    ]
    more = f"`ridgeline explain {_code(finding.rule)}`"
    lines.append(f"   - confidence {finding.confidence}; more: {more}")
    if finding.doubt:
        lines.append(f"   - it may be wrong: {_words(printable(finding.doubt))}")
    if finding.change:
        fence = "`" * max(3, _longest_run(finding.change) + 1)
        lines += [
            "",
            f"   {fence}python",
            *(f"   {printable(text)}" for text in line.code),
            f"   {fence}",
        ]
    return lines


def _words(text: str) -> str:
    """Prose in which `code` stays code: what is between two backticks is no markup."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return markdown_cell(text)
    kept = [f"`{piece}`" if at % 2 else _cell(piece) for at, piece in enumerate(pieces)]
    return "".join(kept)


def _cell(piece: str) -> str:
    """Blanks at the ends stay: they part it from the code beside it."""
    lead = " " * (piece != piece.lstrip())
    tail = " " * (piece != piece.rstrip() and bool(piece.strip()))
    return f"{lead}{markdown_cell(piece)}{tail}"


def _code(text: str) -> str:
    return printable(text).replace("`", "'")


def _longest_run(text: str) -> int:
    run = longest = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest
