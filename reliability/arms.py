"""The three arms of a program: plain, under `run` with timings only, under `run` with a trace.

All arms run in a folder of the same path, emptied between them, so that tracebacks and `__file__`
are alike to the byte.
"""

import json
import shutil
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from reliability.case import HERE, Case
from reliability.outcome import Outcome, python, start, surroundings

ARMS: dict[str, tuple[str, ...] | None] = {
    "plain": None,
    "light": ("-q", "--trace-steps", "0"),
    "traced": ("--steps", "4"),
}
"""light is quiet, so its stderr must be equal with nothing taken away; traced says its block."""


@dataclass(frozen=True)
class Done:
    """What an arm did, and what it left on disk."""

    outcome: Outcome
    files: dict[str, int] = field(default_factory=dict)
    """Written beside the script, our own folder left out: name, size."""
    windows: tuple[str, ...] = ()
    steps: int = 0
    problems: tuple[str, ...] = ()
    run_dirs: int = 0


def run_arm(case: Case, arm: str, folder: Path, extra: dict[str, str] | None = None) -> Done:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    target, before = laid_out(case, folder), set(listed(folder))
    options = ARMS[arm]
    command = [python(), *case.flags, *target, *case.args]
    if options is not None:
        command = [*ridgeline(case.flags), "run", *options, *target, *case.args]
    env = surroundings({k: v.replace("@", str(folder)) for k, v in case.env.items()})
    outcome = start(
        command, folder, env | (extra or {}),
        stdin=case.stdin, streams=case.streams, send=case.send,
    )  # fmt: skip
    files = {name: size for name, size in listed(folder).items() if name not in before}
    return Done(outcome, files, *seen(folder))


def ridgeline(flags: tuple[str, ...] = ()) -> list[str]:
    """The command as a person types it; with the interpreter's own options only `-m` will do."""
    if flags:
        return [python(), *flags, "-m", "ridgeline"]
    return [str(Path(python()).with_name("ridgeline"))]


def laid_out(case: Case, folder: Path) -> list[str]:
    """Writes the program; returns how it is named on the command line."""
    if "from proof import" in case.source:
        shutil.copy(HERE / "proof.py", folder / "proof.py")
    for name, text in case.also.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if case.how == "code":
        return ["-c", case.source]
    if case.how == "zip":
        with zipfile.ZipFile(folder / "app.pyz", "w") as packed:
            packed.writestr("__main__.py", case.source)
        return ["app.pyz"]
    script = folder / case.file
    script.parent.mkdir(parents=True, exist_ok=True)
    if not case.source.startswith("MISSING"):
        encoding = "latin-1" if "coding: latin-1" in case.source else "utf-8"
        script.write_bytes(case.source.encode(encoding))
    if case.how == "module":
        return ["-m", case.file.removesuffix(".py").replace("/", ".").removesuffix(".__main__")]
    if case.how == "folder":
        return [str(Path(case.file).parent)]
    if case.how == "absolute":
        return [str(script)]
    if case.how == "symlink":
        (folder / "links").mkdir()
        (folder / "links" / "other.py").symlink_to(script)
        return ["links/other.py"]
    return [case.file]


def listed(folder: Path) -> dict[str, int]:
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_file() and not name.startswith(".ridgeline"):
            found[name] = path.stat().st_size
    return found


def seen(folder: Path) -> tuple[tuple[str, ...], int, tuple[str, ...], int]:
    """From our own files: the windows that took place, steps counted, faults of ours."""
    windows: list[str] = []
    problems: list[str] = []
    steps = 0
    for path in folder.glob(".ridgeline/runs/*/capture-rank*.json"):
        capture = json.loads(path.read_bytes())
        windows += [window["kind"] for window in capture.get("windows", ())]
        problems += capture.get("problems", ())
        steps += capture.get("steps", 0)
    runs = len(list(folder.glob(".ridgeline/runs/*/run.json")))
    return tuple(windows), steps, tuple(problems), runs
