"""The options every command has: where its words go."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

ENDINGS = (".json", ".md", ".csv")
PAGE_ENDINGS = (*ENDINGS, ".html")


def output_options(endings: tuple[str, ...] = ENDINGS) -> Callable[[F], F]:
    """--json, -o, -q and -v, as `as_json`, `output`, `quiet` and `verbose`."""
    options = (
        click.option(
            "--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else."
        ),
        click.option(
            "-o",
            "--output",
            type=click.Path(dir_okay=False, path_type=Path),
            default=None,
            metavar="FILE",
            help=f"Write to a file; its ending picks the format: {', '.join(endings)}.",
        ),
        click.option("-q", "--quiet", is_flag=True, help="No progress on stderr."),
        click.option("-v", "--verbose", is_flag=True, help="Show tracebacks."),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):  # decorators are listed from the innermost
            command = option(command)
        return command

    return decorate
