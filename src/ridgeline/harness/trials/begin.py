"""Begins a trial inside the program's process once the program has imported torch: seeds it,
applies the fixes, watches and times it."""

import os
import random
import sys
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.fixes.program import Program
from ridgeline.harness.capture import launch, live
from ridgeline.harness.capture.seams import Seams
from ridgeline.harness.trials.ending import Ending
from ridgeline.harness.trials.random_draws import LoaderDraws
from ridgeline.harness.trials.session import OutputSeams, TrialSession, apply_fixes
from ridgeline.records.trial import Plan

PLAN = "plan.json"
RANKS = "ranks"
"""Name of the folder for the processes that a launcher starts."""
LAUNCHERS = (
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate",
    "accelerate.commands.launch", "accelerate.commands.accelerate_cli",
)  # fmt: skip


def begin(torch: Any, directory: str) -> None:
    try:
        _begin(torch, Path(directory))
    except Exception as error:  # the program would run to its end, for nothing
        print(f"ridgeline: no trial: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _begin(torch: Any, home: Path) -> None:
    if _is_launcher(sys.orig_argv):
        _begin_in_children(home)
        return
    plan = msgspec.json.decode((home / PLAN).read_bytes(), type=Plan)
    _seed(torch, plan.seed)
    rank = int(os.environ.get("RANK", "0") or 0)
    world = int(os.environ.get("WORLD_SIZE", "1") or 1)
    loader_draws = LoaderDraws(torch)
    loader_draws.install()
    program = Program(torch)
    session = TrialSession(torch, home, plan, program, rank, world)
    session.set_draws()
    apply_fixes(program, plan)
    (Seams if plan.trains else OutputSeams)(torch, session).put_on()
    live.follow_forks()
    live.session = live.listener = session
    Ending(home, plan, session, loader_draws, rank, world).install()


def _is_launcher(command: list[str]) -> bool:
    """Return whether this process only starts others, which train."""
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return next(words, "") in LAUNCHERS
        if not word.startswith("-"):
            return os.path.basename(word) in LAUNCHERS
    return False


def _begin_in_children(home: Path) -> None:
    """Set the variables that make the processes which this one starts begin a trial."""
    ranks = home / RANKS
    ranks.mkdir(exist_ok=True)
    (ranks / PLAN).write_bytes((home / PLAN).read_bytes())
    variables = launch.environment(ranks, 0, "ridgeline.harness.trials.begin")
    for name in ("PYTHONPATH", "RIDGELINE_BEFORE", "RIDGELINE_BOOT"):
        if name in variables:
            os.environ[name] = variables[name]


def _seed(torch: Any, seed: int) -> None:
    """Seed before the program's first draw; what the program seeds itself stays so."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
