"""`ridgeline optimize`: tries fixes on a program and keeps those proven better and equal."""

import os
import shlex
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ridgeline.cli.output import PAGE_ENDINGS, output_options
from ridgeline.cli.target import Given, TargetCommand, target_of, words_of
from ridgeline.errors import RidgelineError, UsageError

if TYPE_CHECKING:
    from ridgeline.optimization.program import OptimizeSettings
    from ridgeline.records.optimized import Optimized
    from ridgeline.records.run import Target

_ENDINGS = (*PAGE_ENDINGS, ".svg")


class OptimizeCommand(TargetCommand):
    def again(
        self, args: Sequence[str], *, budget_s: float | None = None, fresh: bool = False
    ) -> str:
        """Return the typed command with another budget, or measuring everything anew. Without
        either it continues from what is known."""
        ours, rest = self._split(args)
        replaced = {"--fresh"} | ({"--budget"} if budget_s is not None else set())
        kept, i = list[str](), 0
        while i < len(ours):
            name = ours[i].partition("=")[0]
            if name not in replaced:
                kept.append(ours[i])
            i += 2 if ours[i] == "--budget" and name in replaced else 1
        added = ["--fresh"] if fresh else []
        if budget_s is not None:
            seconds = round(budget_s)
            added = ["--budget", f"{seconds // 60}m" if seconds % 60 == 0 else f"{seconds}s"]
        mark = ["--"] if list(args[len(ours) : len(ours) + 1]) == ["--"] else []
        return shlex.join(["ridgeline", "optimize", *added, *kept, *mark, *rest])


@click.command(cls=OptimizeCommand, name="optimize")
@click.option(
    "--budget",
    default="5m",
    show_default=True,
    metavar="TIME",
    help="Time limit for the whole command: 90s, 10m, 1h. You get the best that is proven in it.",
)
@click.option(
    "--goal",
    type=click.Choice(["speed", "throughput", "memory", "energy"]),
    default="speed",
    show_default=True,
    help="What to improve: the time of a step (speed), the time of a sample (throughput), the peak "
    "of memory, or the energy of a sample.",
)
@click.option(
    "--fit",
    metavar="SIZE",
    help="Make the peak of memory fit: 24GiB, 900MiB. Fixes that save memory are tried, the "
    "cheapest first, until the measured peak of a trial is within it. Implies --goal memory.",
)
@click.option(
    "--keep-exact",
    is_flag=True,
    help="Try only fixes that leave every result the same to the bit: none that alters rounding or "
    "random draws.",
)
@click.option(
    "--batch",
    is_flag=True,
    help="Also try larger batches. A larger batch trains differently, so it is reported in a row "
    "of its own.",
)
@click.option(
    "--allow",
    metavar="FIX,…",
    default="",
    help="Also try these fixes, which alter what is computed, e.g. int8-dynamic,fp8-linear.  "
    "[default: none]",
)
@click.option(
    "--seed",
    type=int,
    default=0,
    show_default=True,
    help="Seeds random numbers before the program starts; the program's own seed wins.",
)
@click.option(
    "--fresh",
    is_flag=True,
    help="Measure everything again; do not continue an earlier call.",
)
@click.option(
    "--no-write", is_flag=True, help="Write neither the optimized copy of the script nor a report."
)
@output_options(_ENDINGS)
@click.pass_context
def command(
    ctx: click.Context,
    budget: str,
    goal: Any,
    fit: str | None,
    keep_exact: bool,
    batch: bool,
    allow: str,
    seed: int,
    fresh: bool,
    no_write: bool,
    as_json: bool,
    output: Path | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """Get a faster copy of a program, with proof that it computes the same.

    The program is diagnosed first. Then each fix that can help is tried on it from outside: fresh
    processes with the fix alternate with fresh processes without it. A fix is kept if it is faster
    and computes the same: losses, gradients, parameters, applied steps, data. At the end all kept
    fixes together are confirmed in fresh processes and written into a copy of the script (train.py
    becomes optimized_train.py), and that copy is run on its own.

    Your files are not touched. The program is run many times, for a few dozen steps each time; the
    files it writes itself are written each time, unless it looks for RIDGELINE_TRIAL in its
    environment.

    Ctrl-C ends the search and reports what was proven so far. A second call continues where the
    first ended.

    Exit codes: 0 measured, whether or not a fix was kept; 2 usage; 4 the program could not be run
    or timed; 130 Ctrl-C.

    \b
    Examples:
      ridgeline optimize train.py --epochs 1
      ridgeline optimize --budget 30m -o result.html train.py
      ridgeline optimize --goal memory -m mypackage.train
      ridgeline optimize --fit 24GiB train.py              # until its peak is within 24 GiB
      ridgeline optimize --goal throughput train.py        # tries larger batches too
      ridgeline optimize torchrun --nproc-per-node 2 train.py
    """
    began_s = time.monotonic()
    given = _program(ctx)
    from ridgeline.cli.output import check_output, claim_stdout
    from ridgeline.units import parse_seconds, parse_size

    check_output(output, _ENDINGS)
    seconds = parse_seconds("--budget", budget)
    allowed = _allowed(allow)
    if fit is not None:
        is_chosen = ctx.get_parameter_source("goal") is click.core.ParameterSource.COMMANDLINE
        if is_chosen and goal != "memory":
            raise UsageError(f"--fit makes memory the goal, and --goal is {goal}", "leave one out")
        goal = "memory"
    if keep_exact and allowed:
        raise UsageError(f"--keep-exact and --allow {','.join(allowed)}: one or the other")
    if as_json:
        claim_stdout()

    from ridgeline.optimization.agenda import SearchSettings
    from ridgeline.optimization.program import OptimizeSettings
    from ridgeline.records.run import Target

    search = SearchSettings(
        goal=goal,
        fit_bytes=parse_size(fit) if fit is not None else 0,
        keep_exact=keep_exact,
        batch=batch or goal == "throughput",
        allow=allowed,
    )
    settings = OptimizeSettings(
        search=search, budget_s=seconds, began_s=began_s, seed=seed, again=fresh, write=not no_write
    )
    target = Target(kind=given.kind, name=given.name, arguments=given.arguments)
    from msgspec.structs import replace

    words = words_of(ctx)
    result = replace(
        _optimized(target, settings, quiet),
        replay=command.again(words, fresh=True),
        resume=command.again(words),
        longer=command.again(words, budget_s=2 * seconds),
    )
    _deliver(result, as_json, output, None if no_write else target)
    return 130 if result.interrupted else 0 if result.baseline_ms else 4


def _program(ctx: click.Context) -> Given:
    given = target_of(ctx)
    if given is None:
        raise UsageError(
            "there is no program to optimize", "e.g. ridgeline optimize train.py --epochs 1"
        )
    if "TORCHELASTIC_RUN_ID" in os.environ:
        raise UsageError(
            "ridgeline optimize starts the program's processes itself, many times",
            f"ridgeline optimize torchrun --nproc-per-node {os.environ.get('WORLD_SIZE', 2)} …",
        )
    if given.kind != "script" or os.path.isfile(given.name):
        return given
    if given.name == "torchrun":
        if not any(word.endswith(".py") for word in given.arguments):
            raise UsageError(
                "torchrun was given no script",
                "e.g. ridgeline optimize torchrun --nproc-per-node 2 train.py",
            )
        return Given("module", "torch.distributed.run", given.arguments)
    if os.path.isdir(given.name):
        raise UsageError(f"{given.name} is a folder", "name the script, or use -m package")
    raise command.no_such_file(ctx, given.name)


def _optimized(target: "Target", settings: "OptimizeSettings", quiet: bool) -> "Optimized":
    from ridgeline.cli.optimize_progress import shown_progress
    from ridgeline.optimization.program import optimize

    end_like_ctrl_c()
    with shown_progress(quiet, settings.budget_s) as progress:
        return optimize(target, settings, Path(".ridgeline"), progress)


def end_like_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP (a terminal that is closed) end the search as Ctrl-C does: the trials,
    which have sessions of their own, would run on. Under nohup SIGHUP stays ignored."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def _deliver(
    result: "Optimized", as_json: bool, output: Path | None, reported: "Target | None"
) -> None:
    """Print or write the answer. `reported` is the target if a report is wanted, else None."""
    from ridgeline.cli.output import deliver
    from ridgeline.report.views.optimized import optimized_report

    also = _write_report(reported, result) if reported is not None and result.rungs else []
    if output is not None and not as_json and result.written is not None:
        copies = [*result.written.files, result.written.diff_file]
        also = [*(Path(name) for name in copies if name), *also]
    deliver(optimized_report(result), as_json, output, also=also)


def _write_report(target: "Target", result: "Optimized") -> list[Path]:
    """Write optimized_train.md and its picture beside the script, and return both paths. If the
    report cannot be written, stderr says so, and the answer is still given."""
    from ridgeline.cli.output import write_whole
    from ridgeline.optimization.launcher import named_file
    from ridgeline.records.ladder import Ladder
    from ridgeline.report.renderers import charts, markdown
    from ridgeline.report.views.optimized import document
    from ridgeline.report.views.optimized_pictures import waterfall
    from ridgeline.source.editing.copies import free, signed_comment
    from ridgeline.source.editing.tree import Cannot

    script = named_file(target)
    try:
        report = free(script.with_suffix(".md"), [])
        drawing = free(script.with_suffix(".svg"), [])
        picture = charts.waterfall(waterfall(Ladder(result)), headed=True)
        text = markdown.render(document(result), picture=drawing.name)
        write_whole(drawing, signed_comment(picture))
        write_whole(report, signed_comment(text))
    except (RidgelineError, Cannot) as error:
        click.echo(f"ridgeline: no report was written: {error}", err=True)
        return []
    return [report, drawing]


def _allowed(text: str) -> tuple[str, ...]:
    from ridgeline.optimization.candidates import allowed_fixes

    allowed = allowed_fixes(text.split(","), "--allow", "--batch")
    for sentence in allowed.needless:
        click.echo(f"ridgeline: {sentence}", err=True)
    return allowed.names
