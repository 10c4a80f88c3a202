"""The command line: one file a command, found and imported only when it is the one asked for.

`ridgeline --help` answers without torch, numpy or rich.
"""

import contextlib
import io
import os
import sys
from importlib import import_module
from typing import Any

import click

from ridgeline import __version__
from ridgeline.errors import RidgelineError

_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # since click 8.2

COMMANDS = {
    "run": "Profile a program as it is: what limits it, where each step goes.",
    "optimize": "Try changes on a program as it is; keep what is faster and equal, with proof.",
    "runs": "The runs kept here: list them, show one again, remove them.",
    "hardware": "What this machine can do: peaks, bandwidth, launch latency, measured.",
    "model": "What a model costs: FLOPs, bytes, memory, latency, place on the roofline.",
    "compare": "Is it really faster, and does it still compute the same? With an A/A control.",
    "trace": "What holds a traced program back, where its time went, who was late.",
    "explain": "The rules behind a finding: what they look at, why it costs, the fix.",
    "selftest": "How often this tool would lie on this machine.",
}


class LazyGroup(click.Group):
    """Knows every command's name and line; imports a command only to run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        found = import_module(f"ridgeline.cli.{name}").command
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            names = ", ".join(COMMANDS)
            raise click.UsageError(f"{error.message} The commands are: {names}.", ctx) from error


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Each command has its own --help with examples.",
)
@click.version_option(__version__, "-V", "--version", message="ridgeline %(version)s")
def group() -> None:
    """Find what holds a PyTorch program back, fix it, and prove the fix."""


def main() -> None:
    """The program: runs a command, turns its error into a sentence and an exit code."""
    verbose = bool({"-v", "--verbose"} & set(sys.argv[1:]))
    _open_closed_streams()
    _forgive_what_cannot_be_written()
    try:
        code = group.main(prog_name="ridgeline", standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, _NO_ARGUMENTS):
            error.show()  # it is the help text, not an error to explain
        else:
            _explain(*_as_ours(error), verbose)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("ridgeline: stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader went away: nothing is left to say
        sys.exit(0)
    except RidgelineError as error:
        _explain(error.message, error.hint, verbose)
        sys.exit(error.exit_code)
    except OSError as error:
        what = error.filename or "the output"
        _explain(f"{what} could not be written: {error.strerror or error}", "", verbose)
        sys.exit(4)
    except Exception as error:  # a fault of ours: still one sentence
        words = str(error).strip().splitlines()
        _explain(
            f"internal error, {type(error).__name__}{f': {words[0]}' if words else ''}",
            "this is a fault in ridgeline; -v shows where",
            verbose,
        )
        sys.exit(70)
    finally:
        _finish_output()
    sys.exit(code if isinstance(code, int) else 0)


def _as_ours(error: click.ClickException) -> tuple[str, str]:
    """Return the message and the hint of one of click's own errors, worded like our errors."""
    message = error.format_message().strip().rstrip(".")
    if message[1:2].islower():
        message = message[0].lower() + message[1:]
    context = getattr(error, "ctx", None)
    return message, f"{context.command_path} --help lists its options" if context else ""


def _open_closed_streams() -> None:
    """Started with `>&-` or `2>&-`, a stream is None, and every print a crash."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (for the whole run)


def _forgive_what_cannot_be_written() -> None:
    """In an ASCII locale a dash or an arrow is a question mark, and no crash."""
    for stream in (sys.stdout, sys.stderr):
        encoding = (getattr(stream, "encoding", None) or "").lower().replace("_", "-")
        if encoding not in ("utf-8", "utf8") and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _finish_output() -> None:
    """Our last word is said: what a user's code prints at exit is no part of our document."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
    sys.stdout = sys.stderr


def _explain(message: str, hint: str, verbose: bool) -> None:
    """Print an error on stderr. Names of files, and what users typed, may contain anything."""
    from ridgeline.report.plain import printable

    if verbose:
        import traceback

        traceback.print_exc()
    lines = [f"ridgeline: {message}", *([f"  {hint}"] if hint else [])]
    for line in "\n".join(lines).splitlines():
        click.echo(printable(line.expandtabs(4)), err=True)
