"""Findings at a terminal: numbered lines, the place and the bounded gain beside each claim.

Where the claim has room beside the place and the gain they stand in columns, else below it. Then
why it might be wrong, and of the first ones the fix as code.
"""

from collections.abc import Sequence

from msgspec import Struct
from rich.console import Console
from rich.text import Text

from ridgeline.records.finding import Findings
from ridgeline.report.code_lines import fitted
from ridgeline.report.document import plain
from ridgeline.report.plain import printable
from ridgeline.report.views.findings import closing_sentences, findings_claims
from ridgeline.report.wrapping import wrapped


class Line(Struct, frozen=True, kw_only=True):
    number: int
    claim: str
    place: str
    gain: str
    doubt: str
    code: tuple[str, ...]


INDENT = 6
"""Where a claim begins; its number stands before it."""
GAP = 3
NARROWEST_CLAIM = 46
"""Columns; with less a claim is broken into stubs."""
WIDE = 100
"""Columns from which an answer stands beside its question."""
MOST_CODE = 12
"""Lines of a fix, broken ones too; of a longer one the first, and how many more there are."""
MOST_DOUBT = 2
"""Lines; the whole of it is in findings.json."""


def finding_rows(findings: Findings, console: Console) -> list[Text]:
    """The lines, ready to print; empty where nothing is known at all."""
    told = [
        Line(
            number=number,
            claim=printable(plain(claim.text)),
            place=printable(claim.short_place),
            gain=printable(claim.gain),
            doubt=printable(plain(claim.doubt)),
            code=tuple(map(printable, claim.code)) if claim.shows_code else (),
        )
        for number, claim in enumerate(findings_claims(findings), 1)
    ]
    if not told:
        return _quiet(closing_sentences(findings), console)
    places = max(len(line.place) for line in told)
    gains = max(len(line.gain) for line in told)
    room = console.width - INDENT - places - gains - 2 * GAP
    found: list[Text] = []
    for line in told:
        beside = room >= NARROWEST_CLAIM
        found += _columns(line, room, places, console) if beside else _stacked(line, console)
        found += _doubt(line, console)
        found += _code(line, console)
    return [*found, *_quiet(closing_sentences(findings), console)]


def answer_rows(findings: Findings, console: Console) -> list[Text]:
    """Each question with its answer beside it, or below where there is little room."""
    wide = max((len(a.question) for a in findings.answers), default=0) + 4
    beside = console.width >= WIDE
    found: list[Text] = []
    for answer in findings.answers:
        lead = Text(f" {printable(answer.question)}", "bold")
        if not beside:
            found.append(lead)
            lead = Text()
        edge = wide if beside else 3
        for line in wrapped(Text(printable(answer.text)), console.width - edge, console):
            lead.pad_right(edge - lead.cell_len)
            found.append(Text() + lead + line)
            lead = Text()
    return found


def _columns(line: Line, room: int, places: int, console: Console) -> list[Text]:
    first, *others = wrapped(Text(line.claim), room, console)
    first.pad_right(room - first.cell_len + GAP)
    row = _number(line) + first + Text(f"{line.place:<{places}}", "dim") + Text(" " * GAP)
    row.append_text(Text(line.gain, "bold"))
    return [row, *(Text(" " * INDENT) + other for other in others)]


def _stacked(line: Line, console: Console) -> list[Text]:
    first, *others = wrapped(Text(line.claim), console.width - INDENT, console)
    below = Text(" " * INDENT)
    if line.place:
        below.append(line.place, "dim").append(" · ", "dim")
    below.append(line.gain, "bold")
    return [_number(line) + first, *(Text(" " * INDENT) + other for other in others), below]


def _number(line: Line) -> Text:
    return Text().append(f"{line.number:>4}  ", "bold cyan")  # a style of its own, not the line's


def _code(line: Line, console: Console) -> list[Text]:
    lead = " " * (INDENT + 2)
    code = fitted(line.code, console.width - len(lead))
    if len(code) <= MOST_CODE:
        return [Text(lead) + Text(text, "green") for text in code]
    shown = code[: MOST_CODE - 1]
    more = Text(f"{lead}… and {len(code) - len(shown)} more lines", "dim")
    return [*(Text(lead) + Text(text, "green") for text in shown), more]


def _doubt(line: Line, console: Console) -> list[Text]:
    if not line.doubt:
        return []
    room = console.width - INDENT
    lines = wrapped(Text(f"it may be wrong: {line.doubt}", "dim"), room, console)
    if len(lines) > MOST_DOUBT:
        lines = lines[:MOST_DOUBT]
        lines[-1].truncate(room - 2)
        lines[-1].append(" …")
    return [Text(" " * INDENT) + text for text in lines]


def _quiet(sentences: Sequence[str], console: Console) -> list[Text]:
    found = []
    for sentence in sentences:
        if sentence:
            lines = wrapped(Text(printable(sentence), "dim"), console.width - 3, console)
            found += [Text("   ") + line for line in lines]
    return found
