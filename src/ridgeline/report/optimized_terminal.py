"""What trying changes came to, for people at a terminal: the answer first, then every rung with its
proof, then what was not tried, what was written, and what to type next."""

from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from ridgeline.records.optimized import Optimized
from ridgeline.report.optimized_doubt import doubts, remark
from ridgeline.report.optimized_ladder import left_out, titled
from ridgeline.report.optimized_next import next_command
from ridgeline.report.optimized_rows import COLUMNS, KEPT, NUMBERS, Row, apart_rows, rows
from ridgeline.report.optimized_untried import told as told_untried
from ridgeline.report.optimized_words import Tone, about, diagnosed, effort, factor, headline
from ridgeline.report.plain import printable
from ridgeline.report.reasons import explain
from ridgeline.report.wrapping import wrapped

STYLES: dict[Tone, str] = {"good": "bold green", "bad": "red", "unsure": "yellow", "plain": ""}
_GAP = 2
_NARROW = ("rung", "step ms", "× baseline", "× rung before", "kept")
_NARROWEST = 76
"""Columns below which a rung's name would be a word a line beside all figures."""
_WIDEST_RUNG, _FAIR_RUNG, _LEAST_RUNG = 42, 26, 8
_LABEL = 10
_LOUD = ("warning", "stopped")
_LONGEST_LABEL = len("not applied")


def show(found: Optimized, console: Console) -> None:
    _headline(found, console)
    if found.rungs or found.total is not None:
        console.print()
        _ladder(rows(found), console)
        if said := remark(found):
            _say(Text(said, STYLES["unsure"]), console)
        _apart(found, console)
    for told, style in (
        (_left_out(found), ""),
        (told_untried(found, _room(console, _LONGEST_LABEL)), "dim"),
        ([*_written(found), *(("advice", one) for one in found.advice)], ""),
        (_ending(found), ""),
    ):
        if told:
            console.print()
            _labelled(told, console, style)
    _commands(found, console)


def _headline(found: Optimized, console: Console) -> None:
    answer = headline(found)
    style = "bold" if answer.tone == "plain" else f"bold {STYLES[answer.tone]}"
    _say(Text(answer.text, style), console)
    for text in doubts(found):
        _say(Text(text, STYLES["unsure"]), console)
    for label, text in diagnosed(found):
        _say(Text.assemble((f"{label:<6}", "dim"), f"  {text}"), console)
    for text in about(found):
        _say(Text(text), console)


def _ladder(told: Sequence[Row], console: Console) -> None:
    room = console.width - 1
    columns = _columns(told, console.width)
    widths = _widths(columns, told, room)
    _line(columns, widths, [Text(name, "dim") for name in columns], console)
    for row in told:
        found = dict(zip(COLUMNS, row.cells, strict=True))
        beside = cell_len(row.kept) <= widths[-1] and "results" in columns
        if not beside and row.kept != KEPT:
            found["kept"] = ""
        _line(columns, widths, [_styled(row, name, found[name]) for name in columns], console)
        _below(row, not beside, "results" not in columns, console)


def _columns(told: Sequence[Row], width: int) -> tuple[str, ...]:
    """All that have something to say, where the names keep room beside them; else the figures of
    the goal."""
    used = [
        name
        for at, name in enumerate(COLUMNS)
        if name in ("rung", "kept") or any(row.cells[at] for row in told)
    ]
    if _fixed(used, told) + _FAIR_RUNG <= width - 1:
        return tuple(used)
    least = [name for name in _NARROW if name != "× baseline" or width >= _NARROWEST]
    return tuple(name for name in used if name in least)


def _fixed(columns: Sequence[str], told: Sequence[Row]) -> int:
    """The room of all columns but the names; of a reason only the tick."""
    return sum(_wanted(name, told) + _GAP for name in columns[1:-1]) + _GAP + len("kept")


def _wanted(name: str, told: Sequence[Row]) -> int:
    at = COLUMNS.index(name)
    return max(cell_len(text) for text in (name, *(row.cells[at] for row in told)))


def _widths(columns: Sequence[str], told: Sequence[Row], room: int) -> list[int]:
    """Figures are never cut: names take what is left, and reasons what is left then."""
    left = max(room - _fixed(columns, told), _LEAST_RUNG)
    rung = min(_wanted("rung", told), _WIDEST_RUNG, left)
    return [rung, *(_wanted(name, told) for name in columns[1:-1]), len("kept") + left - rung]


def _line(
    columns: Sequence[str], widths: Sequence[int], cells: Sequence[Text], console: Console
) -> None:
    """A row of the table; names and reasons go on below themselves."""
    folded = [list(cell.wrap(console, width)) for cell, width in zip(cells, widths, strict=True)]
    for at in range(max(len(lines) for lines in folded)):
        line = Text(" ")
        for name, width, lines in zip(columns, widths, folded, strict=True):
            part = lines[at].copy() if at < len(lines) else Text()
            part.rstrip()
            part.align("right" if name in NUMBERS else "left", width)
            line.append_text(part).append(" " * _GAP)
        line.rstrip()
        console.print(line, soft_wrap=True)


def _styled(row: Row, column: str, text: str) -> Text:
    if row.kind in ("baseline", "control"):
        return Text(text, "dim")
    if row.kind == "confirmed":
        return Text(text, "bold")
    if column == "kept" or (column == "results" and row.tone == "bad"):
        return Text(text, STYLES[row.tone])
    return Text(text)


def _below(row: Row, why: bool, rest: bool, console: Console) -> None:
    """What has no room in the row: its reason, and in a narrow table the rest of its figures."""
    parts: list[str] = []
    if rest and row.kind in ("rung", "confirmed"):
        told = row.results and row.tone != "bad"  # else the reason says so
        parts = [f"results {row.results}"] if told else []
        parts += [f"peak {row.memory}"] if row.memory else []
        parts += [f"pays after {row.pays}"] if row.pays not in ("", "at once") else []
    said = Text(" · ".join(parts), "dim")
    if why and row.kept not in ("", KEPT):
        said = Text.assemble((row.kept, STYLES[row.tone]), " · " if said.plain else "", said)
    if said.plain:
        for line in wrapped(said, console.width - 4, console):
            console.print(Text("   ") + line, soft_wrap=True)


def _apart(found: Optimized, console: Console) -> None:
    told = apart_rows(found)
    if not told:
        return
    console.print()
    _say(Text("not the same training, so not in the total:", "bold"), console)
    made = []
    for row in told:
        parts = (row.gain, row.rate, f"results {row.results}" if row.results else "")
        peak = f"peak {row.memory}" if row.memory else ""
        made.append((row.title, " · ".join(part for part in (*parts, peak, row.kept) if part)))
    _labelled(made, console)


def _left_out(found: Optimized) -> list[tuple[str, str]]:
    known = left_out(found)
    if len(known) < 2:
        return []
    each = [f"{factor(ratio)}  {printable(titled(rung))}" for rung, ratio in known]
    return [("left out", "\n".join(["the whole against the whole without it:", *each]))]


def _written(found: Optimized) -> list[tuple[str, str]]:
    written = found.written
    if written is None:
        return []
    names = [*written.files, *([written.diff_file] if written.diff_file else [])]
    made = [("wrote", " · ".join(names))] if names else []
    if written.checked:
        made.append(("warning" if written.agrees is False else "checked", written.checked))
    elif written.files and written.agrees is None:
        made.append(("checked", "the copy was not run by itself"))
    made += [("note", printable(one)) for one in written.notes]
    return [*made, *(("by hand", one) for one in written.by_hand)]


def _ending(found: Optimized) -> list[tuple[str, str]]:
    made = [("warning", one) for one in found.problems]
    made += [("stopped", explain(found.stopped))] if found.stopped else []
    return [*made, ("took", effort(found))]


def _labelled(told: Sequence[tuple[str, str]], console: Console, style: str = "") -> None:
    """Paragraphs beside their labels, said once where they repeat; a user's lines stay lines."""
    widest = max((cell_len(label) for label, _ in told), default=0)
    wide = max(_LABEL, min(widest, console.width // 3))
    last = ""
    for label, text in told:
        name = Text("" if label == last else label, "yellow" if label in _LOUD else "dim")
        names = list(name.wrap(console, wide)) or [Text()]
        words = [Text(printable(line), style) for line in text.splitlines()]
        lines = [part for word in words for part in wrapped(word, _room(console, wide), console)]
        for at in range(max(len(names), len(lines))):
            line = names[at].copy() if at < len(names) else Text()
            line.rstrip()
            line.align("left", wide)
            line = Text(" ") + line + Text(" " * _GAP) + (lines[at] if at < len(lines) else Text())
            line.rstrip()
            console.print(line, soft_wrap=True)
        last = label


def _room(console: Console, label: int) -> int:
    return console.width - label - _GAP - 2


def _commands(found: Optimized, console: Console) -> None:
    """Each on a line of its own, whole, so that it can be copied."""
    why, typed = next_command(found)
    told = [("do it again", found.replay)] if found.replay and found.replay != typed else []
    told += [(why, typed)] if typed else []
    if told:
        console.print()
    widest = max((len(label) for label, _ in told), default=0)
    for label, command in told:
        line = Text.assemble(
            f" {label}:{' ' * (widest - len(label))}  ", (printable(command), "bold")
        )
        console.print(line, soft_wrap=True)


def _say(text: Text, console: Console) -> None:
    for line in wrapped(text, console.width - 2, console):
        console.print(Text(" ") + line, soft_wrap=True)
