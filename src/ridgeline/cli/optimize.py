"""`ridgeline optimize`: changes tried on a program, kept where they are faster and equal."""

import os
from pathlib import Path
from typing import Any

import click

from ridgeline.cli.output_options import output_options
from ridgeline.cli.target import TargetCommand, target_of
from ridgeline.errors import UsageError

_ENDINGS = (".json",)


@click.command(cls=TargetCommand, name="optimize")
@click.option(
    "--budget",
    default="10m",
    show_default=True,
    metavar="TIME",
    help="How long to try: 90s, 10m, 1h. Whatever it is, the answer is of what was tried.",
)
@click.option(
    "--keep-exact", is_flag=True, help="Nothing that alters rounding: results to the bit."
)
@output_options(_ENDINGS)
@click.pass_context
def command(
    ctx: click.Context,
    budget: str,
    keep_exact: bool,
    as_json: bool,
    output: Path | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Try what a specialist would on a program nobody changed, and keep what is proven.

    The program is diagnosed first. Then each change that could win is put on it from outside, in
    processes of its own that alternate with the unchanged program; kept is what is faster and
    computes the same: losses, gradients, parameters, applied steps, data. At the end the whole is
    confirmed in fresh processes and written into a copy of the script.

    \b
    Examples:
      ridgeline optimize train.py --epochs 1
      ridgeline optimize --budget 30m -o result.json train.py
      ridgeline optimize --keep-exact -m mypackage.train
    """
    given = target_of(ctx)
    if given is None:
        raise UsageError(
            "there is no program to optimize", "e.g. ridgeline optimize train.py --epochs 1"
        )
    from ridgeline.cli.amounts import parse_seconds
    from ridgeline.cli.output import check_output, deliver, progress

    check_output(output, _ENDINGS)
    seconds = parse_seconds("--budget", budget)
    if given.kind == "script" and not os.path.isfile(given.name):
        raise UsageError(f"there is no file {given.name}")

    import msgspec

    from ridgeline.optimization.program import Wishes, optimize
    from ridgeline.records.run import Target
    from ridgeline.report.optimized_terminal import show

    target = Target(kind=given.kind, name=given.name, arguments=given.arguments)
    with progress(quiet) as say:
        found = optimize(target, Wishes(budget_s=seconds, keep_exact=keep_exact), say)
    document: dict[str, Any] = msgspec.to_builtins(found)
    deliver(
        document, as_json, output, markdown=str, csv=str,
        terminal=lambda console: show(found, console),
    )  # fmt: skip
