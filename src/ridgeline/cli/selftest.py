"""`ridgeline selftest`: how often this tool would lie on this machine."""

from pathlib import Path

import click

from ridgeline.cli.output import PAGE_ENDINGS, output_options

EXAMPLES = """\b
Examples:
  ridgeline selftest
  OMP_NUM_THREADS=1 ridgeline selftest --budget 3m
  ridgeline selftest --device cuda -o selftest.md
"""


@click.command("selftest", epilog=EXAMPLES)
@click.option(
    "--budget",
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Time for measuring: 60s, 5m. One window is measured however little it is.",
)
@click.option(
    "--device", default=None, metavar="cpu|cuda|cuda:1", help="Default: a GPU where there is one."
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="For the order and for our own draws.",
)
@output_options(PAGE_ENDINGS)
def command(
    budget: str,
    device: str | None,
    seed: int,
    as_json: bool,
    output: Path | None,
    quiet: bool,
    verbose: bool,
) -> int:
    """How often this tool would lie on this machine.

    One matrix product is timed as `compare` times: a baseline, its control, an identical candidate,
    and candidates that do 2, 5 and 10 % of real extra work. The rounds are cut into windows, each
    judged as a comparison of its own. Beside it: A fully, then B, and Welch's t test; and both once
    more on simulated noise (7 s).

    Exit codes: 0 measured; 3 identical code was called different significantly more often than in
    6 % of the windows; 130 interrupted, after what was measured until then.
    """
    from ridgeline.cli.output import check_output, claim_stdout, deliver, progress
    from ridgeline.report.views.selftest import selftest_report
    from ridgeline.units import parse_seconds

    claim_stdout()
    check_output(output, PAGE_ENDINGS)
    budget_s = parse_seconds("--budget", budget)
    with progress(quiet) as say:
        say("starting")
        from ridgeline.comparison.selftest import selftest
        from ridgeline.machine import resolve_device

        test = selftest(resolve_device(device), budget_s=budget_s, seed=seed, say=say)
    deliver(selftest_report(test), as_json, output)
    if test.stopped == "interrupted":
        return 130
    return 0 if test.passed else 3
