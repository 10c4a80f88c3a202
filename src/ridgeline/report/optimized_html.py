"""What trying changes came to, as a page of its own: the answer, the ladder drawn and in figures,
the patch, and the proof. Nothing is fetched, no script runs."""

from collections.abc import Iterable, Sequence
from html import escape

from ridgeline.records.optimized import Optimized
from ridgeline.report.optimized_doubt import doubts, remark
from ridgeline.report.optimized_evidence import (
    FIXES,
    Proof,
    code,
    fixes,
    proofs,
    surroundings,
)
from ridgeline.report.optimized_ladder import UNTRIED, untried
from ridgeline.report.optimized_markdown import APART
from ridgeline.report.optimized_next import next_command
from ridgeline.report.optimized_rows import COLUMNS, KEPT, NUMBERS, Row, apart_rows, rows
from ridgeline.report.optimized_svg import waterfall
from ridgeline.report.optimized_words import about, diagnosed, headline, method, named
from ridgeline.report.page import page as whole_page
from ridgeline.report.plain import printable
from ridgeline.report.reasons import explain

_STYLE = (
    "body { max-width: 76rem; } main table { font-size: 0.88rem; width: 100%; }"
    "main th, main td { padding-right: 1rem; } figure svg { max-width: 60rem; }"
    "pre { background: var(--shade); border-radius: 6px; padding: 0.75rem 1rem; overflow-x: auto;"
    " font: 0.85rem/1.45 ui-monospace, monospace; } pre .plus { color: var(--good); }"
    "pre .minus { color: var(--bad); } pre .place { color: var(--soft); }"
    "tr.whole td { font-weight: 600; } td.tight { white-space: nowrap; }"
    "td.words { min-width: 12rem; }"
    "details table { margin: 0.5rem 0; }"
)

_FOOT = "A ratio is before over after: above 1 is better."


def page(found: Optimized) -> str:
    answer = headline(found)
    drawn = waterfall(found, headed=False)
    parts = [
        f"<style>{_STYLE}</style><main>",
        f'<h1 class="{answer.tone}">{escape(answer.text)}</h1>',
        _loud(*doubts(found)),
        *(f"<p><b>{label}</b> {escape(text)}</p>" for label, text in diagnosed(found)),
        *(f'<p class="soft">{escape(text)}</p>' for text in about(found)),
        _warnings(found),
        f'<figure class="scroll">{drawn}</figure>' if drawn else "",
        "<h2>The ladder</h2>",
        _ladder(rows(found)),
        _loud(remark(found)),
        _apart(found),
        _commands(found),
        _written(found),
        _section("Advice", _items(found.advice)),
        _section("Results", "".join(_proof(proof) for proof in proofs(found))),
        _section("Every change", _untried(found) + _every(found)),
        "<h2>How it was measured</h2>",
        _items(method(found)),
        _pairs(surroundings(found)),
        f"</main><footer>{escape(_FOOT)} schema {found.schema}</footer>",
    ]
    return whole_page(f"{answer.text}: {printable(found.command)}", "".join(parts))


def _warnings(found: Optimized) -> str:
    said = list(found.problems)
    said += (
        [f"stopped before everything was tried: {explain(found.stopped)}"] if found.stopped else []
    )
    return _loud(*said)


def _loud(*said: str) -> str:
    items = "".join(f'<li class="warning">{escape(printable(text))}</li>' for text in said if text)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _ladder(told: Sequence[Row]) -> str:
    used = [
        at
        for at, name in enumerate(COLUMNS)
        if name in ("rung", "kept") or any(row.cells[at] for row in told)
    ]
    head = "".join(f"<th{_number(COLUMNS[at])} scope=col>{escape(COLUMNS[at])}</th>" for at in used)
    kinds = {"baseline": "quiet", "control": "quiet", "confirmed": "whole"}
    body = "".join(
        f'<tr class="{kinds.get(row.kind, "")}">'
        f"{''.join(_cell(row, COLUMNS[at], row.cells[at]) for at in used)}</tr>"
        for row in told
    )
    return _scrolled(head, body)


def _cell(row: Row, column: str, text: str) -> str:
    if column == "kept":
        tone = row.tone if row.kind == "rung" else ""
        mark = "verdict " if text == KEPT else "words "
        return f'<td class="{mark}{tone}">{escape(text)}</td>'
    if column == "results":
        return f'<td class="tight">{escape(text)}</td>'
    return f"<td{_number(column)}>{escape(text)}</td>"


def _apart(found: Optimized) -> str:
    told = [(r.title, r.gain, r.rate, r.results, r.memory, r.kept) for r in apart_rows(found)]
    note = "<p>Another batch size, or other arithmetic, trains another model: it is in no total "
    note += "above.</p>"
    return f"<h2>Not the same training</h2>{note}{_table(APART, told)}" if told else ""


def _written(found: Optimized) -> str:
    written = found.written
    if written is None:
        return ""
    names = [*written.files, *([written.diff_file] if written.diff_file else [])]
    made = "".join(f"<p>wrote <code>{escape(printable(name))}</code></p>" for name in names)
    if written.checked:
        tone = ' class="bad"' if written.agrees is False else ""
        made += f"<p{tone}>{escape(printable(written.checked))}</p>"
    made += "".join(f"<p>{escape(printable(one))}</p>" for one in written.notes)
    made += f"<pre>{_diff(written.diff)}</pre>" if written.diff else ""
    made += "".join(f"<p>by hand:</p><pre>{escape(code(one))}</pre>" for one in written.by_hand)
    return _section("The patch", made)


def _diff(text: str) -> str:
    shown = code(text).rstrip("\n").split("\n")
    return "\n".join(f'<span class="{_kind(line)}">{escape(line)}</span>' for line in shown)


def _kind(line: str) -> str:
    if line.startswith(("--- ", "+++ ", "@@")):
        return "place"
    return {"+": "plus", "-": "minus"}.get(line[:1], "same")


def _proof(proof: Proof) -> str:
    body = f"<p>{escape(proof.why)}</p>"
    body += _table(("check", "", "numbers"), proof.checks) if proof.checks else ""
    body += _items(f"not compared: {one}" for one in proof.missing)
    title = f"{proof.title}: {proof.word}"
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _untried(found: Optimized) -> str:
    groups = untried(found)
    rows = [(named(group.rungs), group.status, printable(group.why)) for group in groups]
    number = sum(len(group.rungs) for group in groups)
    body = _table(("changes", "", "reason"), rows)
    return _folded(f"Not tried, and why ({number})", body) if rows else ""


def _every(found: Optimized) -> str:
    told = [row for row in fixes(found) if row[1] not in UNTRIED]
    return _folded(f"Tried ({len(told)})", _table(FIXES, told)) * bool(told)


def _commands(found: Optimized) -> str:
    why, typed = next_command(found)
    told = [("do it again", found.replay)] if found.replay else []
    told += [(why, typed)] if typed and typed != found.replay else []
    return "".join(
        f"<p>{escape(head)}: <code>{escape(printable(text))}</code></p>" for head, text in told
    )


def _section(title: str, body: str) -> str:
    return f"<h2>{escape(title)}</h2>{body}" if body else ""


def _folded(title: str, body: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def _table(header: Sequence[str], body: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th scope=col>{escape(name)}</th>" for name in header)
    made = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in body
    )
    return _scrolled(head, made)


def _scrolled(head: str, body: str) -> str:
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


def _items(said: Iterable[str]) -> str:
    items = "".join(f"<li>{escape(printable(text))}</li>" for text in said)
    return f'<ul class="notes">{items}</ul>' if items else ""


def _pairs(told: Iterable[tuple[str, str]]) -> str:
    items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(words)}</dd>" for name, words in told)
    return f"<dl>{items}</dl>" if items else ""


def _number(name: str) -> str:
    return ' class="number"' if name in NUMBERS else ""
