"""Where the words of `ridgeline trace` go: a file in the format of its ending, then stdout."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click
import msgspec

from ridgeline.cli.output import PIPE_COLUMNS, say_written, write_whole
from ridgeline.report.plain import json_text

if TYPE_CHECKING:
    from ridgeline.records.finding import Finding
    from ridgeline.records.trace import TraceStudy
    from ridgeline.trace.trace import Trace


NARROWEST = 40
"""Columns; on less no table has room for a name and two figures."""


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Where the person asked the words to go."""

    as_json: bool
    output: Path | None
    ending: str
    """Of the output's name; it picks the format."""


def deliver(
    document: Callable[[], dict[str, Any]],
    wanted: Wanted,
    *,
    texts: Mapping[str, Callable[[], str]],
    terminal: Callable[[Any], None],
) -> None:
    """Write the requested file and name it in one line on stderr. JSON goes to stdout; so does the
    report if no file was requested."""
    output, ending = wanted.output, wanted.ending
    if output is not None and ending == ".json":
        write_whole(output, _json(document()) + "\n")
    elif output is not None and ending in texts:
        write_whole(output, texts[ending]())
    if wanted.as_json:
        text = _json(document())
        try:
            click.echo(text)
        except BrokenPipeError:
            _reader_left()
    elif output is not None:
        say_written([output])
    else:
        terminal(_console())


def _reader_left() -> NoReturn:
    """It has enough (`| head`): an end like any other, where click and rich exit with 1."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(0)


def _console() -> Any:
    from rich.console import Console

    class Quiet(Console):
        def on_broken_pipe(self) -> None:
            _reader_left()

    # a pipe has no width: wide enough that few names are cut, or what COLUMNS says
    told = sys.stdout.isatty() or os.environ.get("COLUMNS", "").isdigit()
    console = Quiet(highlight=False) if told else Quiet(width=PIPE_COLUMNS, highlight=False)
    console.width = max(console.width, NARROWEST)
    return console


def export(
    study: "TraceStudy", traces: "tuple[Trace, ...]", wanted: Wanted, findings: "Sequence[Finding]"
) -> None:
    """The formats that are made from the events themselves."""
    output, ending = wanted.output, wanted.ending
    if output is None:
        return
    if ending == ".parquet":
        from ridgeline.trace.exports.sql import write_parquet

        write_parquet(traces, output)
    elif ending == ".speedscope.json":
        from ridgeline.trace.exports.speedscope import speedscope

        write_whole(output, msgspec.json.encode(speedscope(traces[0], study)).decode())
    elif ending in (".perfetto.json", ".perfetto.json.gz"):
        from ridgeline.trace.exports.perfetto import mark

        mark(traces[0], study, output, findings)


def _json(document: dict[str, Any]) -> str:
    return json_text(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
