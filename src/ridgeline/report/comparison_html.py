"""A comparison as a page of its own: the answer, the table, the plots, and what they rest on."""

from collections.abc import Iterable, Sequence
from html import escape

from ridgeline.records.comparison import Candidate, Comparison, Pair, PairFolder, Skipped
from ridgeline.report import comparison_plot as plot
from ridgeline.report.comparison_document import FOLDER_SCHEMA, SCHEMA
from ridgeline.report.comparison_headline import TONES, headline, results
from ridgeline.report.comparison_method import method
from ridgeline.report.comparison_next import next_step
from ridgeline.report.comparison_notes import Note, notes
from ridgeline.report.comparison_numbers import band, shaded, share
from ridgeline.report.comparison_rows import WORDS, Grid, Row, arms, count, pairs, size, tally
from ridgeline.report.page import page

_SHOWN = ("results", "guards")
"""Notes that have a section of their own."""


def html(c: Comparison) -> str:
    found = headline(c)
    title = f"{found.answer.text}: {found.about[0]}"
    return page(title, f"<main>{_comparison(c, 1)}</main>{_footer(SCHEMA)}")


def folder_html(f: PairFolder) -> str:
    """The table of all pairs, one forest of all, and each pair folded below it."""
    measured = [p for p in f.pairs if not isinstance(p, Skipped)]
    found = pairs(f)
    all_marks = [
        plot.Mark(name, k.deciding, TONES[k.verdict])
        for p in measured
        for name, k in _named(p)
        if k.verdict != "INVALID"
    ]
    around = max((band(p.comparison) for p in measured), default=0.0)
    parts = [
        f"<h1>{escape(size(f))}</h1><p>{escape(tally(f))}</p>",
        _table(found) if found.rows else "",
        _figure(
            "Every pair on one axis",
            plot.forest(all_marks, around),
            f"Shaded: ± {share(around)}, the widest band of any pair.",
        ),
        *(_folded(p) for p in measured),
    ]
    return page(count(f), f"<main>{''.join(parts)}</main>{_footer(FOLDER_SCHEMA)}")


def _named(pair: Pair) -> list[tuple[str, Candidate]]:
    several = len(pair.comparison.candidates) > 1
    return [
        (f"{pair.name} · {k.arm.name}" if several else pair.name, k)
        for k in pair.comparison.candidates
    ]


def _folded(pair: Pair) -> str:
    title = f"{pair.name}: {pair.title}" if pair.title else pair.name
    body = _comparison(pair.comparison, 2)
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _comparison(c: Comparison, level: int) -> str:
    found = headline(c)
    answer = found.answer
    rest = answer.text.removeprefix(answer.word)
    why = c.candidates[0].why if len(c.candidates) == 1 else ""
    loud = [n for n in notes(c) if n.weight != "note"]
    quiet = [n for n in notes(c) if n.weight == "note" and n.label not in _SHOWN]
    return "".join(
        [
            f'<h{level}><span class="{answer.tone}">{escape(answer.word)}</span>{escape(rest)}'
            f"</h{level}>",
            f"<p>{escape(' · '.join(found.about))}</p>",
            f'<p class="soft">{escape(why)}</p>' if why else "",
            _table(arms(c)),
            _notes(loud),
            _figure("Ratios with their intervals", plot.forest(plot.marks(c), band(c)),
                    f"Shaded: {shaded(c)}."),
            _figure("Every sample over the rounds", plot.samples(c),
                    "One dot a round; each strip has a scale of its own; dashed: the median."),
            *(_ratios(c, k) for k in c.candidates),
            *(_evidence(c, k) for k in c.candidates),
            "<h2>How it was measured</h2>",
            _list([*((n.label, n.text) for n in (*quiet, *method(c))), *_versions(c)]),
            _next(c),
        ]
    )  # fmt: skip


def _table(grid: Grid) -> str:
    """A note gets a line of its own under its row: it is a sentence, the rest are figures."""
    columns = tuple(name for name in grid.header if name != "note")
    told = grid.column("note") if "note" in grid.header else ("",) * len(grid.rows)
    head = "".join(f"<th{_number(name)} scope=col>{escape(name)}</th>" for name in columns)
    body = ""
    for row, note in zip(grid.only(columns).rows, told, strict=True):
        kinds = " ".join(k for k in ("quiet" if row.quiet else "", "open" if note else "") if k)
        body += f'<tr class="{kinds}">{_cells(columns, row)}</tr>'
        if note:
            body += f'<tr class="note"><td colspan="{len(columns)}">{escape(note)}</td></tr>'
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _cells(columns: Sequence[str], row: Row) -> str:
    return "".join(
        f'<td class="verdict {row.tone}">{escape(cell)}</td>'
        if name == "verdict"
        else f"<td{_number(name)}>{escape(cell)}</td>"
        for name, cell in zip(columns, row.cells, strict=True)
    )


def _number(name: str) -> str:
    return "" if name in WORDS else ' class="number"'


def _notes(found: Sequence[Note]) -> str:
    items = "".join(
        f'<li class="{n.weight}"><b>{escape(n.label)}</b> {escape(n.text)}</li>' for n in found
    )
    return f'<ul class="notes">{items}</ul>' if items else ""


def _list(rows: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in rows)
    return f"<dl>{items}</dl>" if items else ""


def _figure(title: str, drawing: str, caption: str = "") -> str:
    if not drawing:
        return ""
    said = f"<figcaption>{escape(caption)}</figcaption>" if caption else ""
    return f'<h2>{escape(title)}</h2><figure class="scroll">{drawing}{said}</figure>'


def _ratios(c: Comparison, k: Candidate) -> str:
    title = f"Ratio of each round: {k.arm.name}"
    if len(c.baseline.samples_ns) != len(k.arm.samples_ns):
        why = "Samples were left out, so rounds cannot be paired here."
        return f'<h2>{escape(title)}</h2><p class="soft">{why}</p>'
    return _figure(title, plot.ratios(c, k))


def _evidence(c: Comparison, k: Candidate) -> str:
    """How results were compared, and every way of cheating that was looked for."""
    found = k.results
    rows = [("results", results(found)), ("", found.detail), *(("", r) for r in found.reasons)]
    rows += [(g.name, f"{g.outcome}{f': {g.detail}' if g.detail else ''}") for g in k.guards]
    title = "Results and guards"
    title += f": {k.arm.name}" if len(c.candidates) > 1 else ""
    return f"<h2>{escape(title)}</h2>{_list(row for row in rows if row[1])}"


def _versions(c: Comparison) -> list[tuple[str, str]]:
    told = " · ".join(f"{name} {version}" for name, version in c.surroundings.versions.items())
    return [("versions", told)] if told else []


def _next(c: Comparison) -> str:
    step = next_step(c)
    return f"<p>{escape(step.why)}: <code>{escape(step.text)}</code></p>" if step else ""


def _footer(schema: str) -> str:
    words = "A ratio is the baseline's time over the candidate's: above 1 the candidate is faster."
    return f"<footer>{words} {escape(schema)}</footer>"
