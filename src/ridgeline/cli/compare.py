"""`ridgeline compare`: is it really faster, and does it still compute the same?"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ridgeline.cli.outcome import GATES, outcome_options
from ridgeline.cli.output import PAGE_ENDINGS, output_options
from ridgeline.errors import UsageError

if TYPE_CHECKING:
    from ridgeline.comparison.contenders import Options
    from ridgeline.records.comparison import Comparison, PairFolder
    from ridgeline.records.parity import TrainingOutcome
    from ridgeline.report.document import Report

EXAMPLES = """\b
Examples:
  ridgeline compare slow.py:step fast.py:step
  ridgeline compare base.py head.py -- --epochs 1
  ridgeline compare net.py:eager net.py:compiled net.py:graphs --budget 2m
  ridgeline compare base.py:step head.py:step --fail-if slower --threshold 5% -o comment.md
  ridgeline compare examples/pairs/ -o pairs.html
  ridgeline compare train.py optimized_train.py --outcome --seeds 8 --metric "val acc"
"""
_WITH_OUTCOME = {
    "targets", "budget", "fail_if", "seed", "device", "timeout", "outcome", "seeds", "metric",
    "margin", "as_json", "output", "quiet", "verbose",
}  # fmt: skip
"""Parameters that have an effect with --outcome."""
FOLDER_BUDGET_S = 20.0
"""The time for each pair of a folder, unless --budget names another."""


class _WithArguments(click.Command):
    """A command that keeps the words after `--` for the scripts it compares."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        end = args.index("--") if "--" in args else len(args)
        ctx.meta["script_arguments"] = tuple(args[end + 1 :])
        return super().parse_args(ctx, args[:end])


@click.command("compare", cls=_WithArguments, epilog=EXAMPLES)
@click.argument("targets", nargs=-1, required=True, metavar="BASELINE CANDIDATE… | FOLDER")
@click.option(
    "--budget",
    default=None,
    metavar="TIME",
    help="Time limit for the comparison, or for each pair of a folder: 60s, 5m. The comparison "
    "ends earlier if the verdict is clear.  [default: 60s of rounds, 20s for each pair of a "
    "folder; longer if 8 rounds need longer]",
)
@click.option(
    "--threshold",
    default="2%",
    metavar="PERCENT",
    show_default=True,
    help="The smallest difference that matters: candidates within it are SAME.",
)
@click.option(
    "--fail-if",
    "fail_if",
    multiple=True,
    type=click.Choice(["slower", "not-faster", "undecided", *GATES]),
    help="Exit with code 3 if a candidate gets this verdict. May be given more than once. An "
    "INVALID candidate always fails the gate. The last two are for --outcome.",
)
@click.option(
    "--goal",
    default=None,
    type=click.Choice(["speed", "memory", "throughput"]),
    help="What a candidate should improve.  [default: GOAL in the candidates' files, else speed]",
)
@click.option(
    "--isolate",
    is_flag=True,
    help="Run each variant in a process of its own, if one would disturb the others.",
)
@click.option(
    "--processes",
    default=3,
    show_default=True,
    type=click.IntRange(min=3, max=50),
    help="With --isolate: how many processes each variant gets. The interval includes the spread "
    "between them.",
)
@click.option("--cold", is_flag=True, help="Empty the last-level cache before each call.")
@click.option(
    "--tolerance",
    default=None,
    type=click.FloatRange(min=0, min_open=True),
    metavar="SHARE",
    help="Relative error allowed in results, e.g. 0.01, for a candidate that changes precision on "
    "purpose.  [default: what the files declare, else the tolerance of the dtype]",
)
@click.option(
    "--no-check", is_flag=True, help="Neither compare results nor look for cheats: time only."
)
@click.option(
    "--by",
    default="auto",
    type=click.Choice(["auto", "step", "run"]),
    help="For scripts: time their steps or whole runs.  [default: steps if all scripts take them]",
)
@click.option(
    "--steps",
    default=None,
    type=click.IntRange(min=10),
    metavar="N",
    help="For scripts: end each after N optimizer steps.  [default: at its end]",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Seeds the variants, the order of the rounds and the bootstrap.",
)
@click.option(
    "--device",
    default=None,
    metavar="cpu|cuda:1",
    help="cpu hides all GPUs from the variants; cuda:1 hides all but that one.",
)
@click.option(
    "--timeout",
    default=None,
    metavar="TIME",
    help="A call that takes longer counts as hanging and is stopped.  [default: 5m; for a script "
    "30m]",
)
@outcome_options("Train both scripts")
@output_options(PAGE_ENDINGS)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    targets: tuple[str, ...],
    fail_if: tuple[str, ...],
    as_json: bool,
    output: Path | None,
    quiet: bool,
    verbose: bool,
    **chosen: Any,
) -> int:
    """Find out which variant is faster, and whether the variants compute the same.

    The first target is the baseline; the others are candidates. A target file.py:name is a function
    without arguments. If it returns a callable (or a callable with its inputs), that is what is
    timed. A target without a colon is a whole script; what follows -- is passed to the scripts. A
    FOLDER is searched for pairs of baseline_X.py and optimized_X.py.

    The verdict is FASTER, SLOWER, SAME, UNDECIDED or INVALID. The ratio is the baseline's time over
    the candidate's, with a 95 % interval: 1.25 means 1.25 times as fast. The variants are timed in
    interleaved rounds, beside a second copy of the baseline that shows the noise.

    With --outcome nothing is timed: two scripts are trained to their end with several seeds. The
    verdict is EQUIVALENT, DIFFERENT or UNDECIDED, with the difference that could have been seen.

    Exit codes: 0 measured; 2 usage; 3 the gate (--fail-if) failed; 4 a target could not be
    measured, a training failed, or a candidate is INVALID; 130 interrupted.
    """
    began_s = time.monotonic()
    from ridgeline.cli.output import check_output, claim_stdout, deliver, progress

    claim_stdout()
    check_output(output, PAGE_ENDINGS)
    options = _options(chosen, ctx.meta["script_arguments"])
    if chosen["outcome"]:
        compared = _compare_outcomes(ctx, targets, options, quiet, began_s)
        from ridgeline.cli.outcome import outcome_exit_code
        from ridgeline.report.views.outcome import outcome_report

        deliver(outcome_report(compared), as_json, output)
        return outcome_exit_code(compared, fail_if)
    _refuse_outcome_options(ctx, fail_if)
    with progress(quiet) as say:
        comparison = _compare_targets(targets, options, say, began_s)
    from ridgeline.comparison.verdicts import exit_code, failures

    deliver(_report(comparison), as_json, output)
    failed = failures(comparison, fail_if)
    for sentence in failed:
        click.echo(f"ridgeline: gate failed: {sentence}", err=True)
    interrupted = getattr(
        comparison, "interrupted", getattr(comparison, "stopped", "") == "interrupted"
    )
    return 130 if interrupted else exit_code(comparison, fail_if)


def _compare_outcomes(
    ctx: click.Context,
    targets: tuple[str, ...],
    options: "Options",
    quiet: bool,
    began_s: float,
) -> "TrainingOutcome":
    """Train two scripts to their end with several seeds."""
    from ridgeline.cli.outcome import outcome_settings, shown_trainings
    from ridgeline.comparison.outcome import compare_outcomes
    from ridgeline.records.run import Target

    if len(targets) != 2 or any(_kind(target) != "script" for target in targets):
        raise UsageError(
            "--outcome compares whole trainings of two scripts",
            "ridgeline compare train.py optimized_train.py --outcome",
        )
    for target in targets:
        if not Path(target).is_file():
            raise UsageError(f"there is no file {target}")
    gates = {"slower", "not-faster"} & set(ctx.params["fail_if"])
    if gates:
        raise UsageError(f"--fail-if {gates.pop()} is about time, and --outcome is not")
    for parameter in ctx.command.params:
        name = parameter.name or ""
        if name not in _WITH_OUTCOME and _is_typed(ctx, name):
            raise UsageError(f"{parameter.opts[0]} has no effect with --outcome", "leave it out")
    settings = outcome_settings(
        ctx.params,
        deadline=options.started(began_s).deadline,
        timeout_s=options.timeout_s,
        device=options.device,
    )
    baseline, candidate = (
        Target(kind="script", name=target, arguments=options.arguments) for target in targets
    )
    with shown_trainings(quiet, settings.metric) as watching:
        return compare_outcomes(baseline, candidate, settings, watching)


def _refuse_outcome_options(ctx: click.Context, fail_if: tuple[str, ...]) -> None:
    from ridgeline.cli.outcome import refuse_without_outcome

    refuse_without_outcome(ctx)
    for gate in fail_if:
        if gate in GATES:
            raise UsageError(f"--fail-if {gate} is for --outcome only", "add --outcome")


def _is_typed(ctx: click.Context, name: str) -> bool:
    return ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


def _compare_targets(
    targets: tuple[str, ...], options: "Options", say: Callable[[str], None], began_s: float
) -> "Comparison | PairFolder":
    import msgspec

    from ridgeline.comparison.contenders import SkippedError
    from ridgeline.comparison.functions import compare_functions
    from ridgeline.comparison.pair_folder import compare_folder
    from ridgeline.comparison.scripts import compare_script_files
    from ridgeline.errors import RidgelineError

    kinds = {_kind(target) for target in targets}
    if "folder" in kinds:
        if len(targets) > 1:
            raise UsageError("a folder is compared alone", "name one folder, or targets")
        options = msgspec.structs.replace(options, usual_s=FOLDER_BUDGET_S)
        return compare_folder(Path(targets[0]), options, say)
    if len(targets) < 2:
        raise UsageError(
            "one target is not a comparison",
            f"name the baseline first, then the candidates: ridgeline compare {targets[0]} …",
        )
    if len(kinds) > 1:
        raise UsageError(
            "a function and a whole script cannot be compared",
            "name functions (file.py:name) or scripts (file.py), not both",
        )
    _refuse_options_without_effect(kinds == {"function"}, options)
    compare = compare_functions if kinds == {"function"} else compare_script_files
    try:
        return compare(targets, options.started(began_s), say)
    except SkippedError as skipped:
        raise RidgelineError(f"not measured: the workload skips itself here: {skipped}") from None


def _refuse_options_without_effect(functions: bool, options: "Options") -> None:
    """Refuse options that would have no effect on this kind of target."""
    if functions:
        without_effect = {"what follows --": options.arguments, "--steps": options.steps,
                "--by": options.by != "auto"}  # fmt: skip
    else:
        without_effect = {"--isolate": options.isolate, "--cold": options.cold}
    given = [name for name, used in without_effect.items() if used]
    if given:
        raise UsageError(f"{given[0]} is for {'scripts' if functions else 'functions'} only")


def _kind(target: str) -> str:
    if Path(target).is_dir():
        return "folder"
    where, colon, name = target.rpartition(":")
    return "function" if colon and where and name else "script"


def _options(chosen: dict[str, Any], arguments: tuple[str, ...]) -> "Options":
    from ridgeline.comparison.contenders import Options
    from ridgeline.units import parse_seconds, parse_share

    budget, timeout = chosen["budget"], chosen["timeout"]
    return Options(
        budget_s=None if budget is None else parse_seconds("--budget", budget),
        threshold=parse_share("--threshold", chosen["threshold"]),
        seed=chosen["seed"],
        goal=chosen["goal"],
        isolate=chosen["isolate"],
        processes=chosen["processes"],
        cold=chosen["cold"],
        checked=not chosen["no_check"],
        rtol=chosen["tolerance"],
        timeout_s=None if timeout is None else parse_seconds("--timeout", timeout),
        device=chosen["device"],
        by=chosen["by"],
        steps=chosen["steps"],
        arguments=arguments,
    )


def _report(comparison: "Comparison | PairFolder") -> "Report":
    from ridgeline.records.comparison import Comparison
    from ridgeline.report.views.comparison import comparison_report
    from ridgeline.report.views.pair_folder import folder_report

    if isinstance(comparison, Comparison):
        return comparison_report(comparison, sys.argv[1:])
    return folder_report(comparison)
