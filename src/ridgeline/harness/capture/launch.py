"""Starts the program: in place of this process, so that signals, terminal and exit code are the
program's own, or as its child; and what a program that begins under us does first."""

import os
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.harness.usercode.child_process import Child, Ended, no_leftovers, run_to_end
from ridgeline.records.run import Target, TargetKind

_BOOT = Path(__file__).parent / "boot"
_PACKAGE_HOME = Path(__file__).parents[3]
IN_A_TRIAL = "RIDGELINE_TRIAL"
"""A variable set to the folder of a trial, or of a whole training. By it the program can see that
it runs in one, and we find the processes that it leaves behind."""
PLAN = "plan.json"
"""Name of the file that tells a fresh process of the program what to do there."""
_LAUNCHERS = (
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate",
    "accelerate.commands.launch", "accelerate.commands.accelerate_cli",
)  # fmt: skip


def command(kind: TargetKind, name: str, arguments: Sequence[str]) -> list[str]:
    """Return the command that a user would type without us, with the options that this Python was
    given."""
    target = {"module": ["-m", name], "code": ["-c", name]}.get(kind, [name])
    return [sys.executable, *_flags(sys.orig_argv), *target, *arguments]


def _flags(typed: Sequence[str]) -> list[str]:
    """Return the interpreter's own options that stand before `-m ridgeline` or the script."""
    flags: list[str] = []
    rest = iter(typed[1:])
    for word in rest:
        if not word.startswith("-") or word == "-":
            break
        if word.startswith("--"):  # --check-hash-based-pycs always
            flags += [word, *([next(rest, "")] if "=" not in word else [])]
            continue
        before, letter, after = _split_at_letter(word[1:], "mcWX")
        # With -I, -E or -S Python would not import our sitecustomize.
        plain = "".join(option for option in before if option not in "IES")
        if letter in ("W", "X"):  # the value follows at once, or is the next word
            flags += [f"-{plain}{letter}{after}", *([] if after else [next(rest, "")])]
        elif plain:
            flags.append(f"-{plain}")
        if letter in ("m", "c"):
            break
    return flags


def _split_at_letter(text: str, letters: str) -> tuple[str, str, str]:
    """Split `text` at the first of `letters`, as str.partition does."""
    for position, letter in enumerate(text):
        if letter in letters:
            return text[:position], letter, text[position + 1 :]
    return text, "", ""


def environment(directory: Path, rank: int, begins: str = "") -> dict[str, str]:
    """Return the program's environment with the variables by which our sitecustomize is imported;
    it removes them before the program's first line. `begins` names the module whose `begin` is
    called once torch is imported; by default that is `seams`."""
    own = dict(os.environ)
    before = own.get("PYTHONPATH")
    if before is not None:
        own["RIDGELINE_BEFORE"] = before
    own["PYTHONPATH"] = os.pathsep.join([str(_BOOT), *([before] if before else [])])
    boot = [str(directory.absolute()), str(_PACKAGE_HOME), str(rank), *([begins] if begins else [])]
    own["RIDGELINE_BOOT"] = "\n".join(boot)
    return own


class FreshProgram:
    """A fresh process of a program in which ours begins: a trial, a race, a whole training, or a
    run of a script that is timed. `begin` of the module `begins` is called there once the program
    has imported torch, and finds the plan in `directory`."""

    def __init__(
        self, target: Target, directory: Path, begins: str, plan: Any, *, seed: int, compiled: Path
    ) -> None:
        """`compiled` is the folder of what the program compiles: what was compiled for one purpose
        must not be found ready by another."""
        (directory / PLAN).write_bytes(msgspec.json.encode(plan))
        self.command = command(target.kind, target.name, target.arguments)
        self.environment = environment(directory, 0, begins)
        self.environment["TORCHINDUCTOR_CACHE_DIR"] = str(compiled.absolute())
        self.environment[IN_A_TRIAL] = self.mark = str(directory.absolute())
        # A vocabulary made from a set of words has another order in every process.
        self.environment.setdefault("PYTHONHASHSEED", str(seed % 2**32))

    def start(self) -> Child:
        return Child(self.command, self.environment)

    def run(
        self,
        limit_s: float,
        *,
        variables: Mapping[str, str] | None = None,
        look: Callable[[int], None] | None = None,
        keep_output: Path | None = None,
    ) -> Ended:
        """Run the program to its end, but no longer than `limit_s`, with these variables added to
        its environment. Nothing that it starts is left behind."""
        own = self.environment | dict(variables or {})
        with no_leftovers(IN_A_TRIAL, self.mark):
            return run_to_end(self.command, own, limit_s, look, keep_output)


def begin_or_exit(begin: Callable[[], None]) -> None:
    """Begin our part of a fresh process. If that fails, end the process: the program would run to
    its end for nothing."""
    try:
        begin()
    except Exception as error:
        print(f"ridgeline: not begun: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def replace_process(arguments: Sequence[str], variables: dict[str, str] | None = None) -> None:
    """Replace this process by a command. This function does not return."""
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(arguments[0], list(arguments), dict(os.environ) if variables is None else variables)


def is_launcher(command: Sequence[str]) -> bool:
    """Return whether the process with this command only starts others, which train."""
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return next(words, "") in _LAUNCHERS
        if not word.startswith("-"):
            return os.path.basename(word) in _LAUNCHERS
    return False


def begin_in_children(directory: Path, begins: str) -> None:
    """Make the processes that this launcher starts call `begin` of the module `begins`, as
    `environment` does for a child of ours."""
    variables = environment(directory, 0, begins)
    for name in ("PYTHONPATH", "RIDGELINE_BEFORE", "RIDGELINE_BOOT"):
        if name in variables:
            os.environ[name] = variables[name]


def seed_generators(torch: Any, seed: int) -> None:
    """Seed torch, random and numpy before the program's first draw; what the program seeds itself
    stays so."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
