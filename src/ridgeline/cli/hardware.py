"""`ridgeline hardware`: what this machine is and what it can do at most."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ridgeline.cli.output_options import PAGE_ENDINGS, output_options

if TYPE_CHECKING:
    from ridgeline.records.machine import Machine


@click.command("hardware")
@click.option(
    "--measure", is_flag=True, help="Measure the ceilings now and keep them (10 to 30 s)."
)
@click.option("--device", metavar="cpu|cuda|cuda:1", help="Only this device.")
@output_options(PAGE_ENDINGS)
def command(
    measure: bool,
    device: str | None,
    as_json: bool,
    output: Path | None,
    quiet: bool,
    verbose: bool,
) -> None:
    """What this machine is, and what it can do at most.

    Shows each device with its ceilings: FLOP/s of a matrix product for each dtype, memory
    bandwidth, launch latency. Measured ones are kept per device, driver and torch version; until
    there are any, those of the datasheet are shown.

    --measure without --device measures the CPU and, where there is one, the first GPU.
    """
    from ridgeline.cli.output import check_output, deliver, progress
    from ridgeline.report.views.hardware import hardware_report

    check_output(output, PAGE_ENDINGS)
    with progress(quiet) as say:
        machine, left_out = _look(measure, device, say)
    chosen = f" --device {device}" if device else ""
    next_command = (
        ("put a model under them", "ridgeline model FILE.py:build --input SHAPE")
        if measure
        else ("measure the ceilings", f"ridgeline hardware --measure{chosen}")
    )
    deliver(hardware_report(machine, left_out, next_command), as_json, output)


def _look(
    measure: bool, device: str | None, say: Callable[[str], None]
) -> "tuple[Machine, dict[str, tuple[str, ...]]]":
    import msgspec

    from ridgeline import machine as hardware
    from ridgeline.report.views.hardware import device_label

    chosen = None if device is None else hardware.resolve_device(device)
    machine = hardware.identify()
    labels = [device_label(found) for found in machine.devices]
    if chosen is not None:
        labels = ["cpu" if chosen.type == "cpu" else f"cuda:{chosen.index}"]
    if measure:
        for target in labels if chosen is not None else labels[:2]:
            hardware.measure(target, on_progress=lambda now, on=target: say(f"{on}: {now}"))  # type: ignore[misc]
    known = {device_label(found): found for found in machine.devices}
    devices = tuple(hardware.cached(name) or known[name] for name in labels)
    conditions = []
    for name, found in zip(labels, devices, strict=True):
        measured = any(ceiling.source == "measured" for ceiling in found.ceilings)
        said = hardware.measured_under(name) if measured else hardware.conditions(name)
        conditions += [f"{name}: {sentence}" for sentence in said]
    left_out = {name: hardware.left_out(name) for name in labels}
    return msgspec.structs.replace(
        machine, devices=devices, conditions=tuple(dict.fromkeys(conditions))
    ), left_out
