"""`ridgeline optimize`: changes tried on a program, kept where they are better and equal."""

import os
import shlex
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ridgeline.cli.optimize_typed import OptimizeCommand
from ridgeline.cli.output_options import output_options
from ridgeline.cli.target import Given, target_of, words_of
from ridgeline.errors import UsageError

if TYPE_CHECKING:
    from ridgeline.optimization.program import Wishes
    from ridgeline.records.optimized import Optimized

_ENDINGS = (".json", ".md", ".csv", ".html", ".svg")
REPORT = Path("optimization_report.md")


@click.command(cls=OptimizeCommand, name="optimize")
@click.option(
    "--budget",
    default="10m",
    show_default=True,
    metavar="TIME",
    help="How long to try: 90s, 10m, 1h. Whatever it is, the answer is of what was tried.",
)
@click.option(
    "--goal",
    type=click.Choice(["speed", "throughput", "memory", "energy"]),
    default="speed",
    show_default=True,
    help="What is to be better: a step's time, a sample's, the peak of memory, a sample's energy.",
)
@click.option(
    "--keep-exact",
    is_flag=True,
    help="Nothing that alters rounding or random draws: results to the bit.",
)
@click.option(
    "--batch",
    is_flag=True,
    help="Also try larger batches. They train otherwise, so they stand in a row of their own.",
)
@click.option(
    "--allow",
    metavar="CHANGE,…",
    default="",
    help="Changes that alter what is computed, by name: int8-dynamic, fp8-linear.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Set before the program's own."
)
@click.option(
    "--fresh", is_flag=True, help="Measure all again; an earlier call is not gone on with."
)
@click.option("--no-write", is_flag=True, help="Write no copy of the source and no report.")
@output_options(_ENDINGS)
@click.pass_context
def command(
    ctx: click.Context,
    budget: str,
    goal: Any,
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
    """Try what a specialist would on a program nobody changed, and keep what is proven.

    The program is diagnosed first. Then each change that could win is put on it from outside, in
    processes of its own that alternate with those without it; kept is what is faster and computes
    the same: losses, gradients, parameters, applied steps, data. At the end the whole is confirmed
    in fresh processes, written into a copy of the script (train.py → optimized_train.py), and that
    copy is run by itself. Your files are not touched. The program is run many times, a few dozen
    steps each: what it writes it writes each time.

    Ctrl-C ends it with what was proven so far. A second call goes on where the first ended.

    Exit codes: 0 measured, whether or not anything was won; 2 usage; 4 the program could not be
    run or timed; 130 Ctrl-C.

    \b
    Examples:
      ridgeline optimize train.py --epochs 1
      ridgeline optimize --budget 30m -o result.html train.py
      ridgeline optimize --goal memory -m mypackage.train
      ridgeline optimize --batch --goal throughput train.py
      ridgeline optimize torchrun --nproc-per-node 2 train.py
    """
    given = _program(ctx)
    from ridgeline.cli.amounts import parse_seconds
    from ridgeline.cli.output import check_output, claim_stdout

    check_output(output, _ENDINGS)
    seconds = parse_seconds("--budget", budget)
    allowed = _allowed(allow)
    if keep_exact and allowed:
        raise UsageError(f"--keep-exact and --allow {','.join(allowed)}: one or the other")
    if as_json:
        claim_stdout()

    from ridgeline.optimization.agenda import Wants
    from ridgeline.optimization.program import Wishes

    wants = Wants(
        goal=goal, keep_exact=keep_exact, batch=batch or goal == "throughput", allow=allowed
    )
    wishes = Wishes(wants=wants, budget_s=seconds, seed=seed, again=fresh, write=not no_write)
    found = _optimized(given, wishes, quiet, command.longer(words_of(ctx), seconds))
    _deliver(found, as_json, output, report=not no_write)
    return 130 if found.stopped == "interrupted" else 0 if found.baseline_ms else 4


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


def _optimized(given: Given, wishes: "Wishes", quiet: bool, longer: str) -> "Optimized":
    from msgspec.structs import replace

    from ridgeline.cli.optimize_progress import voice
    from ridgeline.optimization.program import optimize
    from ridgeline.records.run import Target

    target = Target(kind=given.kind, name=given.name, arguments=given.arguments)
    # As with Ctrl-C, trials are ended and what is known is told.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with voice(quiet, wishes.budget_s) as speaking:
        found = optimize(target, wishes, Path(".ridgeline"), speaking)
    return replace(found, replay=f"ridgeline {shlex.join(_typed())}", longer=longer)


def _deliver(found: "Optimized", as_json: bool, output: Path | None, *, report: bool) -> None:
    from ridgeline.cli.output import deliver, write_whole
    from ridgeline.report import optimized_csv, optimized_html, optimized_markdown, optimized_svg
    from ridgeline.report.optimized_document import document
    from ridgeline.report.optimized_terminal import show

    if report and found.rungs:
        svg = REPORT.with_suffix(".svg")
        write_whole(svg, optimized_svg.waterfall(found))
        write_whole(REPORT, optimized_markdown.markdown(found, svg.name))
    drawn = output if output is not None and output.suffix.lower() == ".svg" else None
    if drawn is not None:
        write_whole(drawn, optimized_svg.waterfall(found))
        output = None
    deliver(
        document(found),
        as_json,
        output,
        markdown=lambda: optimized_markdown.markdown(found),
        csv=lambda: optimized_csv.csv(found),
        html=lambda: optimized_html.page(found),
        terminal=lambda console: show(found, console),
    )
    names = [drawn] if drawn is not None and not as_json else []
    names += [REPORT, REPORT.with_suffix(".svg")] if report and found.rungs else []
    if names:
        click.echo(f"wrote {' · '.join(map(str, names))}", err=True)


def _allowed(text: str) -> tuple[str, ...]:
    from ridgeline.optimization.allowing import allowed

    found = allowed(text.split(","), "--allow", "--batch")
    for said in found.needless:
        click.echo(f"ridgeline: {said}", err=True)
    return found.names


def _typed() -> list[str]:
    """As it was typed, but measured again."""
    words = sys.argv[1:]
    return words if "--fresh" in words or words[:1] != ["optimize"] else [
        "optimize", "--fresh", *words[1:],
    ]  # fmt: skip
