"""What `ridgeline optimize` says while it works, on stderr: on a terminal one line that changes and
one for each change settled; in a log a line for each."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from ridgeline import units
from ridgeline.optimization.search import Progress
from ridgeline.records.optimized import Rung
from ridgeline.report.reasons import explain

if TYPE_CHECKING:
    from rich.text import Text

_MARKS = {"kept": "✓", "rejected": "✗", "dropped": "✗", "not applied": "–", "not tried": "–"}


@contextmanager
def voice(quiet: bool, budget_s: float) -> Iterator[Progress]:
    if quiet:
        yield Progress()
        return
    began = time.monotonic()

    def at() -> str:
        return f"{_clock(time.monotonic() - began)} of {_clock(budget_s)}"

    if not sys.stderr.isatty():
        yield Progress(
            lambda text: click.echo(f"{at()}  {text}", err=True),
            lambda rung: click.echo(f"{at()}  {settled(rung)}", err=True),
        )
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, highlight=False)
    line = ClockedLine(at)
    with console.status(line):
        yield Progress(
            line.say,
            lambda rung: console.print(escape(settled(rung)), soft_wrap=False, overflow="ellipsis"),
        )


class ClockedLine:
    """The progress line: the current time, taken anew whenever the line is drawn, and what is being
    done."""

    def __init__(self, at: Callable[[], str]) -> None:
        self._at = at
        self._doing = ""

    def say(self, doing: str) -> None:
        self._doing = doing

    def __rich__(self) -> "Text":
        from rich.text import Text

        return Text.assemble((self._at(), "dim"), "  ", self._doing)


def settled(rung: Rung) -> str:
    from ridgeline.report.views.optimized_phrases import factor, titled, without_figures

    said = f"{_MARKS[rung.status]} {titled(rung)}{_partners(rung)}"
    if rung.status == "rejected" and rung.ratio is not None:
        return f"{said}: rejected, {without_figures(rung)}: {factor(rung.ratio)}"
    return f"{said}: {rung.status}, {explain(rung.reason)}"


def _partners(rung: Rung) -> str:
    """Those it was tried with as one. What is dropped later is dropped by itself."""
    if not rung.together or rung.status == "dropped":
        return ""
    from ridgeline.fixes.fix import registered

    known = {one.fix.id: one.fix.title for one in registered()}
    return f" with {', '.join(known.get(name, name) for name in rung.together)}"


def _clock(seconds: float) -> str:
    if seconds >= 3600:
        return units.seconds(seconds)
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"
