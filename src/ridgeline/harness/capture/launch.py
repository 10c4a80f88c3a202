"""Becomes the program: the same process, so that signals, terminal and exit code are its own."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ridgeline.records.run import TargetKind

_BOOT = Path(__file__).parent / "boot"
_PACKAGE_HOME = Path(__file__).parents[3]


def command(kind: TargetKind, name: str, arguments: Sequence[str]) -> list[str]:
    """What a person would have typed without us, with the flags this Python was given."""
    target = {"module": ["-m", name], "code": ["-c", name]}.get(kind, [name])
    return [sys.executable, *_flags(sys.orig_argv), *target, *arguments]


def _flags(typed: Sequence[str]) -> list[str]:
    """The interpreter's own options, as they were typed before `-m ridgeline` or the script."""
    flags: list[str] = []
    rest = iter(typed[1:])
    for word in rest:
        if not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):  # --check-hash-based-pycs always
            flags += [word, *([next(rest, "")] if "=" not in word else [])]
            continue
        before, letter, after = _up_to(word[1:], "mcWX")
        # With -I, -E or -S Python would not read what gets us in.
        plain = "".join(one for one in before if one not in "IES")
        if letter in ("W", "X"):  # their value follows, or is the next word
            flags += [f"-{plain}{letter}{after}", *([] if after else [next(rest, "")])]
        elif plain:
            flags.append(f"-{plain}")
        if letter in ("m", "c"):
            break
    return flags


def _up_to(text: str, stops: str) -> tuple[str, str, str]:
    for at, letter in enumerate(text):
        if letter in stops:
            return text[:at], letter, text[at + 1 :]
    return text, "", ""


def environment(directory: Path, rank: int, begins: str = "") -> dict[str, str]:
    """The program's environment with what gets us in; taken out again before its first line.
    `begins`: the module whose `begin` is called once torch is imported, where not capture's."""
    own = dict(os.environ)
    before = own.get("PYTHONPATH")
    if before is not None:
        own["RIDGELINE_BEFORE"] = before
    own["PYTHONPATH"] = os.pathsep.join([str(_BOOT), *([before] if before else [])])
    said = [str(directory.absolute()), str(_PACKAGE_HOME), str(rank), *([begins] if begins else [])]
    own["RIDGELINE_BOOT"] = "\n".join(said)
    return own


def replace_process(arguments: Sequence[str], variables: dict[str, str] | None = None) -> None:
    """Does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(arguments[0], list(arguments), dict(os.environ) if variables is None else variables)
