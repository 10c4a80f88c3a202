"""`--outcome` of `ridgeline compare` and `ridgeline optimize`: whole trainings with many seeds."""

import math
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ridgeline.errors import UsageError

if TYPE_CHECKING:
    from ridgeline.comparison.outcome import OutcomeSettings, Watching
    from ridgeline.measure.clock import Deadline
    from ridgeline.records.parity import Arm, Training, TrainingOutcome

F = TypeVar("F", bound=Callable[..., Any])

OPTIONS = ("seeds", "metric", "margin")
"""The parameters that only `--outcome` uses."""
DIFFERENT, NOT_EQUIVALENT = "different", "not-equivalent"
GATES = (DIFFERENT, NOT_EQUIVALENT)


def outcome_options(about: str) -> Callable[[F], F]:
    """Add --outcome, --seeds, --metric and --margin; `about` says what is trained."""
    options = (
        click.option(
            "--outcome",
            is_flag=True,
            help=f"{about} to their end with several seeds, and test whether they end the same.",
        ),
        click.option(
            "--seeds",
            default=5,
            show_default=True,
            type=click.IntRange(min=2),
            metavar="N",
            help="With --outcome: how many seeds each program is trained with. {seed} in the "
            "program's arguments is replaced by the seed.",
        ),
        click.option(
            "--metric",
            default="",
            metavar="TEXT",
            help='With --outcome: compare the last number printed after this text, e.g. "val '
            'acc".  [default: the final training loss]',
        ),
        click.option(
            "--margin",
            default=None,
            metavar="NUMBER|PERCENT",
            help="With --outcome: a difference below this does not matter: 0.01, 2%.  [default: "
            "the spread of the baseline between its seeds]",
        ),
    )

    def decorate(command: F) -> F:
        for option in reversed(options):  # the innermost decorator comes last in the help
            command = option(command)
        return command

    return decorate


def refuse_without_outcome(ctx: click.Context) -> None:
    """Refuse options that only --outcome uses."""
    for name in OPTIONS:
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise UsageError(f"--{name} is for --outcome only", "add --outcome")


def outcome_settings(
    chosen: dict[str, Any],
    *,
    deadline: "Deadline | None" = None,
    timeout_s: float | None = None,
    device: str | None = None,
) -> "OutcomeSettings":
    from ridgeline.comparison.outcome import OutcomeSettings

    margin, margin_share = _margin(chosen["margin"])
    if chosen["metric"] != chosen["metric"].strip() or "\n" in chosen["metric"]:
        raise UsageError("--metric is text of one line without spaces around it")
    return OutcomeSettings(
        seeds=chosen["seeds"],
        first_seed=chosen["seed"],
        metric=chosen["metric"],
        margin=margin,
        margin_share=margin_share,
        deadline=deadline,
        timeout_s=math.inf if timeout_s is None else timeout_s,
        device=device,
    )


def _margin(text: str | None) -> tuple[float | None, float | None]:
    """Return the margin as a number, or as a share of the baseline's mean."""
    if text is None:
        return None, None
    match = re.fullmatch(r"(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)\s*(%?)", text.strip())
    number = float(match[1]) if match is not None else 0.0
    if match is None or not 0 < number < math.inf:
        raise UsageError(
            f"--margin {text!r} is not a difference",
            "write a number in the unit of the metric (0.01), or a part of it (2%)",
        )
    return (None, number / 100) if match[2] else (number, None)


@contextmanager
def shown_trainings(quiet: bool, metric: str) -> Iterator["Watching"]:
    """Yield where trainings report how far they are: a line on stderr for each finished one, and at
    a terminal what is trained now."""
    from ridgeline.cli.output import progress
    from ridgeline.comparison.outcome import Watching
    from ridgeline.report.plain import printable
    from ridgeline.report.views.outcome import training_line

    if quiet:
        yield Watching()
        return

    def ended(training: "Training") -> None:
        sys.stderr.write(f"{printable(training_line(training, metric))}\n")

    with progress(quiet) as say:

        def begins(arm: "Arm", seed: int) -> None:
            say(f"training the {arm} with seed {seed}")

        yield Watching(begins, ended)


def outcome_exit_code(outcome: "TrainingOutcome", conditions: tuple[str, ...]) -> int:
    """Return 130 after Ctrl-C, 4 if a training failed, 3 if the gate failed, else 0."""
    if outcome.interrupted:
        return 130
    if outcome.failed:
        return 4
    trips = {
        "undecided": outcome.verdict == "UNDECIDED",
        DIFFERENT: outcome.verdict == "DIFFERENT",
        NOT_EQUIVALENT: outcome.verdict != "EQUIVALENT",
    }
    failed = [condition for condition in conditions if trips[condition]]
    if failed:
        click.echo(f"ridgeline: gate failed: the outcome is {outcome.verdict}", err=True)
    return 3 if failed else 0
