"""`ridgeline compare`: is it really faster, and does it still compute the same?"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ridgeline.cli.output import PAGE_ENDINGS, output_options
from ridgeline.errors import UsageError

if TYPE_CHECKING:
    from ridgeline.comparison.contenders import Options
    from ridgeline.records.comparison import Comparison, PairFolder
    from ridgeline.report.document import Report

EXAMPLES = """\b
Examples:
  ridgeline compare slow.py:step fast.py:step
  ridgeline compare base.py head.py -- --epochs 1
  ridgeline compare net.py:eager net.py:compiled net.py:graphs --budget 2m
  ridgeline compare base.py:step head.py:step --fail-if slower --threshold 5% -o comment.md
  ridgeline compare examples/pairs/ -o pairs.html
"""
FOLDER_BUDGET_S = 20.0


class _WithArguments(click.Command):
    """Everything after `--` belongs to the scripts."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        cut = args.index("--") if "--" in args else len(args)
        ctx.meta["script_arguments"] = tuple(args[cut + 1 :])
        return super().parse_args(ctx, args[:cut])


@click.command("compare", cls=_WithArguments, epilog=EXAMPLES)
@click.argument("targets", nargs=-1, required=True, metavar="BASELINE CANDIDATE… | FOLDER")
@click.option(
    "--budget",
    default=None,
    metavar="TIME",
    help="Time limit for the whole comparison, or for each pair of a folder: 60s, 5m. Without it, "
    "the rounds have 60s (20s for each pair of a folder), or as long as 8 rounds take. Either way "
    "the comparison ends as soon as the verdict is clear.",
)
@click.option(
    "--threshold", default="2%", show_default=True, help="A difference below this does not matter."
)
@click.option(
    "--fail-if",
    "fail_if",
    multiple=True,
    type=click.Choice(["slower", "not-faster", "undecided"]),
    help="Exit with 3 on this verdict; may be given more than once. INVALID fails any gate.",
)
@click.option(
    "--goal",
    default=None,
    type=click.Choice(["speed", "memory", "throughput"]),
    help="What the candidates aim at. Default: what their files say (GOAL), else speed.",
)
@click.option(
    "--isolate",
    is_flag=True,
    help="Each variant in its own process, for those that disturb others.",
)
@click.option(
    "--processes",
    default=3,
    show_default=True,
    type=click.IntRange(min=3, max=50),
    help="With --isolate: sets of processes. The spread between them counts.",
)
@click.option("--cold", is_flag=True, help="Empty the last-level cache before every call.")
@click.option(
    "--tolerance",
    default=None,
    type=click.FloatRange(min=0, min_open=True),
    help="Relative error allowed in results, for a candidate that changes precision on purpose.",
)
@click.option("--no-check", is_flag=True, help="Do not compare results, nor look for cheats.")
@click.option(
    "--by",
    default="auto",
    type=click.Choice(["auto", "step", "run"]),
    help="Scripts: time steps or whole runs. Default: steps, where all scripts take some.",
)
@click.option(
    "--steps",
    default=None,
    type=click.IntRange(min=10),
    metavar="N",
    help="Scripts: end each after N optimizer steps.",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="For the variants and for our own draws.",
)
@click.option("--device", default=None, help="cpu hides the GPUs; cuda:1 shows only that one.")
@click.option(
    "--timeout",
    default=None,
    metavar="TIME",
    help="A call that has not come back by then hangs. Default 5m, for a whole script 30m.",
)
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
    """Compare variants in interleaved rounds, with an A/A control, and check their results.

    A target file.py:name is a function without arguments; if it returns a callable (or a callable
    with its inputs), that is what is timed. A target without a colon is a whole script. The first
    target is the baseline. A FOLDER is searched for baseline_X.py / optimized_X.py pairs.

    The verdict is FASTER, SLOWER, SAME, UNDECIDED or INVALID; the ratio is the baseline's time over
    the candidate's, with a 95 % interval.

    Exit codes: 0 measured; 2 usage; 3 the gate (--fail-if) failed; 4 something could not be
    measured, or a candidate is INVALID.
    """
    began_s = time.monotonic()
    from ridgeline.cli.output import check_output, claim_stdout, deliver, progress

    claim_stdout()
    check_output(output, PAGE_ENDINGS)
    options = _options(chosen, ctx.meta["script_arguments"])
    with progress(quiet) as say:
        found = _compared(targets, options, say, began_s)
    from ridgeline.comparison.verdicts import exit_code, failures

    deliver(_report(found), as_json, output)
    failed = failures(found, fail_if)
    for sentence in failed:
        click.echo(f"ridgeline: gate failed: {sentence}", err=True)
    interrupted = getattr(found, "interrupted", getattr(found, "stopped", "") == "interrupted")
    return 130 if interrupted else exit_code(found, fail_if)


def _compared(
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
    _refuse_idle_options(kinds == {"function"}, options)
    compare = compare_functions if kinds == {"function"} else compare_script_files
    try:
        return compare(targets, options.started(began_s), say)
    except SkippedError as skipped:
        raise RidgelineError(f"not measured: the workload skips itself here: {skipped}") from None


def _refuse_idle_options(functions: bool, options: "Options") -> None:
    """An option that would do nothing is a misunderstanding."""
    if functions:
        idle = {"what follows --": options.arguments, "--steps": options.steps,
                "--by": options.by != "auto"}  # fmt: skip
    else:
        idle = {"--isolate": options.isolate, "--cold": options.cold}
    given = [name for name, used in idle.items() if used]
    if given:
        raise UsageError(f"{given[0]} is for {'scripts' if functions else 'functions'}")


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


def _report(found: "Comparison | PairFolder") -> "Report":
    from ridgeline.records.comparison import Comparison
    from ridgeline.report.views.comparison import comparison_report
    from ridgeline.report.views.pair_folder import folder_report

    if isinstance(found, Comparison):
        return comparison_report(found, sys.argv[1:])
    return folder_report(found)
