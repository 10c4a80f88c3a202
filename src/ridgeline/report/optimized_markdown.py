"""What trying changes came to, as Markdown to keep beside the program: the answer, every rung with
its proof, the patch, and how it was measured."""

from collections.abc import Iterable, Sequence
from urllib.parse import quote

from ridgeline.records.optimized import Optimized
from ridgeline.report.cells import markdown_cell
from ridgeline.report.optimized_doubt import doubts, remark
from ridgeline.report.optimized_evidence import FIXES, fence, fixes, proofs, surroundings
from ridgeline.report.optimized_ladder import left_out, titled
from ridgeline.report.optimized_next import next_command
from ridgeline.report.optimized_rows import COLUMNS, NUMBERS, apart_rows, rows
from ridgeline.report.optimized_words import about, diagnosed, factor, headline, method
from ridgeline.report.plain import printable
from ridgeline.report.reasons import explain

APART = ("", "a sample's time", "samples/s", "results", "memory", "kept")


def markdown(found: Optimized, picture: str = "") -> str:
    """`picture`: the name of the drawn ladder, beside this file."""
    lines = [f"# {_words(headline(found).text)}", ""]
    lines += [line for text in doubts(found) for line in _loud(text)]
    for label, text in diagnosed(found):
        lines += [f"**{label}** {_words(text)}", ""]
    lines += [line for text in about(found) for line in (_words(text), "")]
    lines += [f"![the ladder, drawn]({quote(picture)})", ""] if picture else []
    lines += _warnings(found)
    lines += ["## The ladder", "", *_table(COLUMNS, (row.cells for row in rows(found))), ""]
    lines += _loud(remark(found))
    lines += [*_apart(found), *_left_out(found), *_written(found), *_advice(found)]
    lines += [*_proofs(found), *_changes(found)]
    lines += ["## How it was measured", "", *_list(method(found)), ""]
    lines += ["## Surroundings", "", *_list(f"{k}: {v}" for k, v in surroundings(found)), ""]
    lines += _commands(found)
    return "\n".join(lines).rstrip("\n") + "\n"


def _warnings(found: Optimized) -> list[str]:
    said = list(found.problems)
    if found.stopped:
        said.append(f"stopped before everything was tried: {explain(found.stopped)}")
    return [*(f"> **{_words(text)}**\n>" for text in said), ""] if said else []


def _loud(text: str) -> list[str]:
    return [f"> **{_words(text)}**", ""] if text else []


def _apart(found: Optimized) -> list[str]:
    told = apart_rows(found)
    if not told:
        return []
    body = ((r.title, r.gain, r.rate, r.results, r.memory, r.kept) for r in told)
    note = "Another batch size, or other arithmetic, trains another model: it is in no total above."
    return ["## Not the same training", "", note, "", *_table(APART, body), ""]


def _left_out(found: Optimized) -> list[str]:
    known = left_out(found)
    if not known:
        return []
    body = ((titled(rung), factor(ratio)) for rung, ratio in known)
    note = "What each still gives: the whole against the whole without it."
    return ["## Left out, one at a time", "", note, "", *_table(("change", "×"), body), ""]


def _written(found: Optimized) -> list[str]:
    written = found.written
    if written is None:
        return []
    names = [*written.files, *([written.diff_file] if written.diff_file else [])]
    lines = ["## The patch", "", *(f"- wrote {_words(name)}" for name in names)]
    if written.checked:
        sure = "**" if written.agrees is False else ""
        lines.append(f"- {sure}{_words(written.checked)}{sure}")
    lines += [f"- {_words(one)}" for one in written.notes]
    lines.append("")
    lines += [*fence(written.diff, "diff"), ""] if written.diff else []
    for one in written.by_hand:
        lines += ["By hand:", "", *fence(one), ""]
    return lines


def _advice(found: Optimized) -> list[str]:
    return ["## Advice", "", *_list(found.advice), ""] if found.advice else []


def _proofs(found: Optimized) -> list[str]:
    told = proofs(found)
    if not told:
        return []
    body = [
        (proof.title if not at else "", *row)
        for proof in told
        for at, row in enumerate((("", proof.word, proof.why), *proof.checks))
    ]
    missing = [f"{p.title}, not compared: {one}" for p in told for one in p.missing]
    lines = ["## Results", "", *_table(("rung", "check", "outcome", "numbers"), body), ""]
    return [*lines, *_list(missing), ""] if missing else lines


def _changes(found: Optimized) -> list[str]:
    if not found.rungs:
        return []
    return ["## Every change", "", *_table(FIXES, fixes(found)), ""]


def _commands(found: Optimized) -> list[str]:
    why, typed = next_command(found)
    told = [("Do it again", found.replay)] if found.replay else []
    if typed and typed != found.replay:
        told.append((why.capitalize(), typed))
    return [line for head, text in told for line in (f"{head}:", "", *fence(text, "sh"), "")]


def _table(header: Sequence[str], body: Iterable[Sequence[str]]) -> list[str]:
    rules = ["---:" if name in NUMBERS else "---" for name in header]
    made = [_line(_words(cell) for cell in row) for row in body]
    return [_line(header), _line(rules), *made]


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _words(text: str) -> str:
    """On one line, as written, with what is unseen spelled out."""
    return markdown_cell(printable(" ".join(text.split())))


def _list(said: Iterable[str]) -> list[str]:
    return [f"- {_words(text)}" for text in said]
