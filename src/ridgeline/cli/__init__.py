"""The command line. Each command is a module of this package that is imported only when it runs:
`ridgeline --help` imports neither torch nor numpy nor rich."""

import contextlib
import io
import os
import sys
from importlib import import_module
from typing import Any

import click

from ridgeline.errors import RidgelineError
from ridgeline.version import __version__

_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())  # since click 8.2

COMMANDS = {
    "run": "Run a program unchanged, and say what limits it and where each step goes.",
    "optimize": "Find fixes for a program; keep those proven faster and equal.",
    "runs": "List the recorded runs, show one again, remove some.",
    "view": "Look at all recorded runs in a browser, and at a run under way.",
    "report": "Make files of a recorded run: page, PDF, Markdown, table, curves, timeline.",
    "hardware": "Show what this machine can do: peaks, bandwidth, launch latency.",
    "model": "Show what a model costs: FLOPs, bytes, memory, latency, roofline.",
    "compare": "Compare variants: which is faster, and do they compute the same?",
    "trace": "Show what holds a traced program back, where time went, who was late.",
    "memory": "Show the peak of a memory snapshot, who owned it, what grew, what would help.",
    "explain": "Explain the rule behind a finding: why it costs, and the fix.",
    "selftest": "Measure how often Ridgeline would be wrong on this machine.",
}
EXAMPLES = """\b
Examples:
  ridgeline run train.py          what limits the training, and the fix for it
  ridgeline optimize train.py     the fixes that are proven to help, in a copy of the script
  ridgeline model net.py:build --input 32x3x224x224
  ridgeline trace trace.json.gz
  ridgeline memory snapshot.pickle
Each command has its own --help with examples.
"""


class LazyGroup(click.Group):
    """A group that knows the name and the help line of every command, and imports a command only to
    run it."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command = import_module(f"ridgeline.cli.{name}").command
        assert isinstance(command, click.Command)
        return command

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
    epilog=EXAMPLES,
)
@click.version_option(__version__, "-V", "--version", message="ridgeline %(version)s")
def group() -> None:
    """Find what holds a PyTorch program back, fix it, and prove the fix."""


def main() -> None:
    """Run a command, and turn its errors into sentences and exit codes."""
    verbose = bool({"-v", "--verbose"} & set(sys.argv[1:]))
    _replace_closed_streams()
    _replace_unwritable_characters()
    try:
        code = group.main(prog_name="ridgeline", standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, _NO_ARGUMENTS):
            error.show()  # this is the help text and no error
        else:
            _explain(*_as_ours(error), verbose)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("ridgeline: stopped", err=True)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader of the pipe has ended; Python would complain at exit
        sys.exit(0)
    except RidgelineError as error:
        _explain(error.message, error.hint, verbose)
        sys.exit(error.exit_code)
    except OSError as error:
        file = error.filename or "the output"
        _explain(f"{file} could not be written: {error.strerror or error}", "", verbose)
        sys.exit(4)
    except Exception as error:  # the fault is ours: one sentence all the same
        lines = str(error).strip().splitlines()
        _explain(
            f"internal error, {type(error).__name__}{f': {lines[0]}' if lines else ''}",
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


def _replace_closed_streams() -> None:
    """A stream that was closed by `>&-` or `2>&-` is None, and every print would fail: write to
    nothing instead."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115  (for the whole run)


def _replace_unwritable_characters() -> None:
    """Print a question mark for a dash or an arrow where the locale has none, and do not fail."""
    for stream in (sys.stdout, sys.stderr):
        encoding = (getattr(stream, "encoding", None) or "").lower().replace("_", "-")
        if encoding not in ("utf-8", "utf8") and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def _finish_output() -> None:
    """Send whatever is still printed (user code may print at exit) to stderr: the document on
    stdout is complete."""
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
