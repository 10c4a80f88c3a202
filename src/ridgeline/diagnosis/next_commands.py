"""What to type next: only commands that exist and have something to work on."""

import shlex
from pathlib import Path

from ridgeline.records.machine import Device
from ridgeline.records.run import Capture, PythonView, Target
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_summary import Verdict

_IN_PYTHON = ("input-bound", "launch/overhead-bound")
_AGAIN = ("script", "module")
_WORTH_SAMPLING = 20
"""Steps below which a sampler sees nothing."""
_LONGEST = 160


def command_line(target: Target) -> str:
    """As it was typed after `ridgeline run`."""
    before = {"module": ["-m"], "code": ["-c"]}.get(target.kind, [])
    words = [*before, target.name, *target.arguments] if target.name else []
    return " ".join(shlex.quote(word) for word in words)


def next_commands(
    directory: RunDirectory,
    target: Target,
    verdict: Verdict,
    device: Device | None,
    view: PythonView | None,
    capture: Capture | None,
) -> tuple[str, ...]:
    found = []
    trace = directory.trace_file(capture.rank if capture is not None else 0)
    long = capture is not None and capture.steps >= _WORTH_SAMPLING
    if verdict.bound in _IN_PYTHON and view is None and long and target.kind in _AGAIN:
        again = f"ridgeline run --python {command_line(target)}"
        found.append(again if len(again) <= _LONGEST else "ridgeline run --python …")
    if trace.is_file():
        several = capture is not None and capture.world > 1  # only all traces show who was late
        looked_at = directory.path if several else trace
        found.append(f"ridgeline trace {shlex.quote(_near(looked_at))}")
    if capture is not None and capture.steps and not _measured(device):
        found.append("ridgeline hardware --measure")
    return tuple(found)


def _measured(device: Device | None) -> bool:
    return device is not None and any(
        c.quantity == "matmul" and c.state == "usable" for c in device.ceilings
    )


def _near(path: Path) -> str:
    """As short as it can be typed from here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
