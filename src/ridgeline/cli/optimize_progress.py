"""The progress of `ridgeline optimize`, on stderr. A terminal shows one line that is redrawn, and a
line for each fix that is settled; a log gets a new line for each of both."""

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
def shown_progress(quiet: bool, budget_s: float) -> Iterator[Progress]:
    """Yield the functions by which a search reports what it does and which fixes are settled."""
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
    """The progress line: the time, read anew whenever the line is drawn, and what is being done."""

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

    text = f"{_MARKS[rung.status]} {titled(rung)}{_partners(rung)}"
    if rung.status == "rejected" and rung.ratio is not None:
        return f"{text}: rejected, {without_figures(rung)}: {factor(rung.ratio)}"
    return f"{text}: {rung.status}, {explain(rung.reason)}"


def _partners(rung: Rung) -> str:
    """Return the fixes that were tried together with it; "" for a fix that was dropped later,
    because a fix is dropped alone."""
    if not rung.together or rung.status == "dropped":
        return ""
    from ridgeline.fixes.fix import registered

    known = {entry.fix.id: entry.fix.title for entry in registered()}
    return f" with {', '.join(known.get(name, name) for name in rung.together)}"


def _clock(seconds: float) -> str:
    if seconds >= 3600:
        return units.seconds(seconds)
    return f"{int(seconds // 60)}:{int(seconds % 60):02d}"
