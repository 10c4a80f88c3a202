"""Becomes the program: the same process, so that signals, terminal and exit code are its own."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ridgeline.records.run import TargetKind

_BOOT = Path(__file__).parent / "boot"
_PACKAGE_HOME = Path(__file__).parents[2]


def command(kind: TargetKind, name: str, arguments: Sequence[str]) -> list[str]:
    """What a person would have typed without us, with the flags this Python was given."""
    # The one list of flags that CPython itself keeps: -O, -u, -X dev, -W and their like.
    flags = [
        flag
        for flag in subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        if flag not in ("-I", "-E", "-S")  # with these Python would not read what gets us in
    ]
    target = {"module": ["-m", name], "code": ["-c", name]}.get(kind, [name])
    return [sys.executable, *flags, *target, *arguments]


def environment(directory: Path, rank: int) -> dict[str, str]:
    """The program's environment with what gets us in; taken out again before its first line."""
    own = dict(os.environ)
    before = own.get("PYTHONPATH")
    if before is not None:
        own["RIDGELINE_BEFORE"] = before
    own["PYTHONPATH"] = os.pathsep.join([str(_BOOT), *([before] if before else [])])
    own["RIDGELINE_BOOT"] = "\n".join([str(directory.absolute()), str(_PACKAGE_HOME), str(rank)])
    return own


def become(arguments: Sequence[str], variables: dict[str, str] | None = None) -> None:
    """Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(arguments[0], list(arguments), dict(os.environ) if variables is None else variables)
