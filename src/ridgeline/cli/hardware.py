"""`ridgeline hardware`: what this machine is and what it can do at most."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ridgeline.cli.output import PAGE_ENDINGS, output_options
from ridgeline.records.facts import because
from ridgeline.records.machine import Disturbance

if TYPE_CHECKING:
    from ridgeline.records.machine import Machine

MAX_MEASURED_DEVICES = 2
"""Without --device, the CPU and the first GPU are measured."""
EXAMPLES = """\b
Examples:
  ridgeline hardware                             devices, and the ceilings known so far
  ridgeline hardware --measure                   measure the CPU and the first GPU
  ridgeline hardware --measure --device cuda:1
  ridgeline hardware -o machine.html
"""


@click.command("hardware", epilog=EXAMPLES)
@click.option("--measure", is_flag=True, help="Measure the ceilings now (10 to 30 s a device).")
@click.option(
    "--device", metavar="cpu|cuda|cuda:1", help="Only this device.  [default: all; with --measure, "
    "the CPU and the first GPU]",
)  # fmt: skip
@output_options(PAGE_ENDINGS)
def command(
    measure: bool,
    device: str | None,
    as_json: bool,
    output: Path | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """Show what this machine is, and what it can do at most.

    Each device is shown with its ceilings: FLOP/s of a matrix product for each dtype, memory
    bandwidth in bytes/s, and the time to launch an operation. Measured ceilings are kept for each
    device, driver and torch version. Until there are any, those of the datasheet are shown.

    Exit codes: 0 ok; 2 usage; 4 nothing could be measured.
    """
    from ridgeline.cli.output import check_output, deliver, progress
    from ridgeline.report.views.hardware import hardware_report

    check_output(output, PAGE_ENDINGS)
    with progress(quiet) as say:
        machine, unmeasured = _machine(measure, device, say)
    chosen = f" --device {device}" if device else ""
    next_command = (
        ("put a model under them", "ridgeline model FILE.py:build --input SHAPE")
        if measure
        else ("measure the ceilings", f"ridgeline hardware --measure{chosen}")
    )
    deliver(hardware_report(machine, unmeasured, next_command), as_json, output)


def _machine(
    measure: bool, device: str | None, say: Callable[[str], None]
) -> "tuple[Machine, dict[str, tuple[str, ...]]]":
    """Return the machine with its ceilings, and for each device why some were not measured."""
    import msgspec

    from ridgeline import machine as hardware
    from ridgeline.report.views.hardware import device_label

    chosen = None if device is None else hardware.resolve_device(device)
    machine = hardware.identify()
    known = {device_label(found): found for found in machine.devices}
    labels = list(known)
    if chosen is not None:
        labels = ["cpu" if chosen.type == "cpu" else f"cuda:{chosen.index}"]
    if measure:
        for label in labels[:MAX_MEASURED_DEVICES]:
            hardware.measure(label, on_progress=lambda now, on=label: say(f"{on}: {now}"))  # type: ignore[misc]
    devices = tuple(hardware.cached(label) or known[label] for label in labels)
    conditions = []
    for label, found in zip(labels, devices, strict=True):
        is_measured = any(ceiling.source == "measured" for ceiling in found.ceilings)
        ask = hardware.stored_conditions if is_measured else hardware.conditions
        conditions += [
            because(Disturbance.ON_DEVICE, cause=cause, device=label) for cause in ask(label)
        ]
    machine = msgspec.structs.replace(machine, devices=devices, conditions=tuple(conditions))
    return machine, {label: hardware.missing_dtypes(label) for label in labels}
