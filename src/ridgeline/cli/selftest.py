"""`ridgeline selftest`: how often this tool would be wrong on this machine."""

from pathlib import Path

import click

from ridgeline.cli.output import PAGE_ENDINGS, output_options

EXAMPLES = """\b
Examples:
  ridgeline selftest
  ridgeline selftest --device cuda -o selftest.md
  OMP_NUM_THREADS=1 ridgeline selftest --budget 3m      one thread: less noise
"""


@click.command("selftest", epilog=EXAMPLES)
@click.option(
    "--budget",
    default="60s",
    show_default=True,
    metavar="TIME",
    help="Time for measuring: 60s, 5m. At least one window is measured, however long it takes.",
)
@click.option(
    "--device",
    default=None,
    metavar="cpu|cuda|cuda:1",
    help="[default: a GPU if there is one, else the CPU]",
)
@click.option(
    "--seed",
    default=0,
    show_default=True,
    type=click.IntRange(min=0),
    help="Seeds the order of the rounds and the simulation.",
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
    """Measure how often `ridgeline compare` would be wrong on this machine.

    One matrix product is timed as `compare` times: a baseline, a second copy of it as control, an
    identical candidate, and candidates that do 2, 5 and 10 % more work. The rounds are cut into
    windows, and each window is judged like a comparison of its own. The report says how often
    identical code was called different, and how often the extra work was found. Beside these stand
    the rates of two common methods, timing all of A and then all of B, and Welch's t test, and the
    same rates on simulated noise, which takes another 7 s.

    Exit codes: 0 measured; 2 usage; 3 identical code was called different in significantly more
    than 6 % of the windows; 130 interrupted: the report covers what was measured until then.
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
