"""Findings on a page: a numbered list, each with its evidence and its fix."""

import re
from html import escape

from ridgeline.records.finding import Finding, Findings
from ridgeline.report.document import Claim, plain
from ridgeline.report.plain import printable
from ridgeline.report.views.findings import closing_sentences, findings_claims, shown_findings

STYLE = (
    "ol.findings { padding-left: 1.6rem; } ol.findings > li { margin: 0.9rem 0; }"
    "ol.findings .gain { font-weight: 600; white-space: nowrap; }"
    "ol.findings p { margin: 0.1rem 0; }"
    "ol.findings details { margin: 0.2rem 0; padding: 0; border: none; }"
    "ol.findings summary { font-weight: normal; color: var(--soft); font-size: 0.85rem; }"
    "pre { background: var(--shade); padding: 0.6rem 0.9rem; border-radius: 6px; overflow-x: auto;"
    " font-size: 0.85rem; line-height: 1.4; margin: 0.4rem 0; }"
    "dl.answers dt { font-weight: 600; color: inherit; }"
    "@media (max-width: 40rem) { dl.answers { display: block; } }"
)


def findings_html(findings: Findings) -> str:
    told = zip(findings_claims(findings), shown_findings(findings), strict=True)
    items = "".join(_item(line, finding) for line, finding in told)
    said = closing_sentences(findings)
    rest = "".join(f'<p class="soft">{_words(printable(text))}</p>' for text in said)
    listed = f'<ol class="findings">{items}</ol>' if items else ""
    return f"<h2>What holds it back</h2>{listed}{rest}" if listed or rest else ""


def answers_html(findings: Findings) -> str:
    rows = "".join(
        f"<dt>{escape(printable(a.question))}</dt><dd>{_words(printable(a.text))}</dd>"
        for a in findings.answers
    )
    return f'<h2>The five questions</h2><dl class="answers">{rows}</dl>' if rows else ""


def _item(line: Claim, finding: Finding) -> str:
    at = f" <code>{escape(printable(line.place))}</code>" if line.place else ""
    gain = f'<span class="gain">{escape(printable(line.gain))}</span>'
    head = f"<p>{_words(printable(plain(line.text)))}{at} {gain}</p>"
    evidence = "".join(
        f"<dt>{escape(printable(e.what))}</dt><dd>{_words(printable(e.text))}"
        f' <span class="soft">{e.source}</span></dd>'
        for e in finding.evidence
    )
    evidence += f"<dt>confidence</dt><dd>{finding.confidence}</dd>"
    if finding.doubt:
        evidence += f"<dt>may be wrong</dt><dd>{_words(printable(finding.doubt))}</dd>"
    evidence += (
        f"<dt>more</dt><dd><code>ridgeline explain {escape(printable(finding.rule))}</code></dd>"
    )
    code = chr(10).join(map(printable, line.code))
    fix = f"<pre>{escape(code)}</pre>" if finding.change else ""
    return f"<li>{head}{fix}<details><summary>Evidence</summary><dl>{evidence}</dl></details></li>"


def _words(text: str) -> str:
    """Escaped, with `code` between backticks as code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
