"""A run's summary as Markdown: for a pull request, an issue, a note."""

from ridgeline import units
from ridgeline.records.run_summary import RunSummary
from ridgeline.report.cells import markdown_cell
from ridgeline.report.finding_markdown import answers_markdown, findings_markdown
from ridgeline.report.plain import printable
from ridgeline.report.run_figures import about, figures, milliseconds, sentence
from ridgeline.report.run_rows import rows
from ridgeline.report.run_told import findings_told, next_of


def markdown(summary: RunSummary) -> str:
    lines = [
        f"### {markdown_cell(sentence(summary))}",
        "",
        markdown_cell(" · ".join(about(summary))),
        "",
        markdown_cell(" · ".join(figures(summary))),
        "",
        *_phases(summary),
        *_findings(summary),
        *_rows(summary),
        *_python(summary),
        *_answers(summary),
        f"- **run**: `{_code(summary.run_dir)}` ({units.bytes_(summary.bytes_on_disk)})",
        *(f"- **next**: `{_code(command)}`" for command in next_of(summary)),
    ]
    kept = [line for at, line in enumerate(lines) if line or (at and lines[at - 1])]
    return "\n".join(kept).rstrip("\n") + "\n"


def _phases(summary: RunSummary) -> list[str]:
    if not summary.step.phases:
        return []
    body = [
        f"| {phase.phase} | {milliseconds(phase.ms)} | [{milliseconds(phase.ci[0])}, "
        f"{milliseconds(phase.ci[1])}] | {100 * phase.share:.0f} % |"
        for phase in summary.step.phases
    ]
    return ["| phase | ms | 95 % | share |", "| --- | ---: | ---: | ---: |", *body, ""]


def _findings(summary: RunSummary) -> list[str]:
    if not findings_told(summary):
        return []
    return ["#### What holds it back", "", *findings_markdown(summary.findings)]


def _answers(summary: RunSummary) -> list[str]:
    found = answers_markdown(summary.findings)
    return ["", "#### The five questions", "", *found] if found else []


def _rows(summary: RunSummary) -> list[str]:
    return [
        f"- **{row.label}**: {markdown_cell(text)}"
        for row in rows(summary)
        for text in (row.text, *row.further)
    ]


def _python(summary: RunSummary) -> list[str]:
    if summary.python is None:
        return []
    from ridgeline.report.run_python import lines_text

    return ["", *lines_text(summary.python), ""]


def _code(text: str) -> str:
    """Inside backticks nothing is read as markup but a backtick."""
    return printable(text).replace("`", "'")
