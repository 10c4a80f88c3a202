"""A self-test for the terminal, for a page and for programs."""

import csv as csv_module
import io
from typing import TYPE_CHECKING, Any

import msgspec

from ridgeline.records.selftest import Bench, SelfTest
from ridgeline.report.cells import markdown_cell, spreadsheet_cell
from ridgeline.report.selftest_text import (
    HEADER,
    about,
    advice,
    following,
    method,
    notes,
    rows,
    summary,
    title,
)

if TYPE_CHECKING:
    from rich.console import Console

SCHEMA = "ridgeline.selftest/1"
_COUNTS = ("windows", "faster", "slower", "same", "undecided")
_COLUMNS = ("source", "rounds", "procedure", "effect", *_COUNTS, "called", "called_low",
            "called_high", "seen")  # fmt: skip


def document(test: SelfTest) -> dict[str, Any]:
    """Shares are fractions; `called` of identical code is a false alarm, else a find."""
    benches = [test.measured] if test.simulated is None else [test.measured, test.simulated]
    return {
        "schema": SCHEMA,
        "summary": summary(test),
        "passed": test.passed,
        "advice": advice(test),
        **msgspec.to_builtins(test),
        **{bench.source: _bench(bench) for bench in benches},
        "notes": notes(test),
    }


def markdown(test: SelfTest) -> str:
    lines = [f"### {markdown_cell(summary(test))}", ""]
    if advice(test):
        lines += [markdown_cell(advice(test)), ""]
    lines += [markdown_cell(about(test)), ""]
    for bench in (test.measured, test.simulated):
        if bench is not None:
            lines += [f"#### {markdown_cell(title(bench))}", "", *_markdown_table(bench), ""]
    said = [*notes(test), *method(test)]
    return "\n".join([*lines, *(f"- {markdown_cell(text)}" for text in said)]) + "\n"


def csv(test: SelfTest) -> str:
    """A line a source of noise, procedure and effect."""
    text = io.StringIO()
    writer = csv_module.writer(text, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for bench in (test.measured, test.simulated):
        for tally in bench.tallies if bench is not None else ():
            rate = tally.called
            cells = [
                *(bench.source, bench.rounds, tally.procedure, tally.effect),  # type: ignore[union-attr]
                *(getattr(tally, name) for name in _COUNTS),
                *(rate.share, rate.low, rate.high, tally.seen),
            ]
            writer.writerow([spreadsheet_cell("" if cell is None else cell) for cell in cells])
    return text.getvalue()


def show(test: SelfTest, console: "Console") -> None:
    from rich.padding import Padding
    from rich.text import Text

    def say(text: str, style: str = "") -> None:
        console.print(Padding(Text(text, style=style), (0, 0, 0, 1), expand=False))

    say(summary(test), "bold" if test.passed else "bold red")
    if advice(test):
        say(advice(test), "red")
    say(about(test), "dim")
    for bench in (test.measured, test.simulated):
        if bench is not None:
            console.print()
            say(title(bench), "bold")
            _terminal_table(bench, console)
    console.print()
    for text in notes(test):
        say(text, "yellow")
    for text in method(test):
        say(text, "dim")
    what, command = following(test)
    console.print()
    say(f"{what}:  {command}")


def _bench(bench: Bench) -> dict[str, Any]:
    """As it is, with each rate as a share as well."""
    found: dict[str, Any] = msgspec.to_builtins(bench)
    for written, tally in zip(found["tallies"], bench.tallies, strict=True):
        written["called"]["share"] = tally.called.share
    return found


def _markdown_table(bench: Bench) -> list[str]:
    rule = "| --- |" + " ---: |" * (len(HEADER) - 1)
    body = [f"| {' | '.join(map(markdown_cell, row))} |" for row in rows(bench)]
    return [f"| {' | '.join(HEADER)} |", rule, *body]


def _terminal_table(bench: Bench, console: "Console") -> None:
    from rich.padding import Padding
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for at, name in enumerate(HEADER):
        table.add_column(name, justify="right" if at else "left")
    for row in rows(bench):
        table.add_row(*row)
    console.print(Padding(table, (0, 0, 0, 1), expand=False), highlight=False)
