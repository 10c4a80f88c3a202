"""A comparison as Markdown, fit for a comment on a pull request: the verdict first, the table, and
the rest folded away."""

from collections.abc import Iterable, Sequence

from ridgeline.records.comparison import Comparison, PairFolder, Skipped
from ridgeline.report.cells import markdown_cell
from ridgeline.report.comparison_headline import headline
from ridgeline.report.comparison_method import method
from ridgeline.report.comparison_next import next_step
from ridgeline.report.comparison_notes import Note, notes
from ridgeline.report.comparison_rows import WORDS, Grid, arms, count, pairs


def markdown(c: Comparison) -> str:
    found = headline(c)
    lines = [f"### {markdown_cell(found.answer.text)}", ""]
    lines += [markdown_cell(" · ".join(found.about)), ""]
    whys = [k.why for k in c.candidates if k.why and k.verdict not in ("FASTER", "SLOWER")]
    if len(c.candidates) == 1:
        lines += [line for why in whys for line in (markdown_cell(why), "")]
    lines += [*_table(arms(c)), ""]
    said = notes(c)
    loud = [n for n in said if n.weight != "note"]
    lines += [*_list(loud), ""] if loud else []
    quiet = [*(n for n in said if n.weight == "note"), *method(c)]
    body = _list(quiet)
    step = next_step(c)
    if step is not None:
        body += [f"- {step.why}: `{step.text}`"]
    return "\n".join([*lines, *_folded("How it was measured", body)]) + "\n"


def folder_markdown(f: PairFolder) -> str:
    lines = [f"### {markdown_cell(count(f))}", ""]
    found = pairs(f)
    lines += [*_table(found), ""] if found.rows else []
    for pair in f.pairs:
        if not isinstance(pair, Skipped):
            title = f"{pair.name}: {pair.title}" if pair.title else pair.name
            # One level deeper than the folder's own heading, and folded.
            body = markdown(pair.comparison).rstrip("\n").replace("### ", "#### ", 1)
            lines += [*_folded(title, body.splitlines()), ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _table(grid: Grid) -> list[str]:
    rules = ["---" if name in WORDS else "---:" for name in grid.header]
    body = [_line(markdown_cell(cell) for cell in row.cells) for row in grid.rows]
    return [_line(grid.header), _line(rules), *body]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _list(found: Sequence[Note]) -> list[str]:
    weights = {"bad": "**", "warning": "**", "note": ""}
    return [
        f"- {weights[n.weight]}{markdown_cell(n.label)}{weights[n.weight]}: {markdown_cell(n.text)}"
        for n in found
    ]


def _folded(title: str, body: Sequence[str]) -> list[str]:
    """GitHub reads Markdown inside <details> only after an empty line."""
    summary = markdown_cell(title)
    return [f"<details><summary>{summary}</summary>", "", *body, "", "</details>"]
