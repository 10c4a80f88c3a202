"""The program of a trial has imported torch: it is seeded, changed, watched and timed."""

import os
import random
import sys
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.fixes.fix import find_fix
from ridgeline.fixes.program import Program
from ridgeline.harness.capture import launch, live
from ridgeline.harness.capture.seams import Seams
from ridgeline.harness.trials.ending import Ending
from ridgeline.harness.trials.function_edits import rewrite
from ridgeline.harness.trials.random_draws import LoaderDraws
from ridgeline.harness.trials.session import OutputSeams, TrialSession
from ridgeline.records.trial import Plan

PLAN = "plan.json"
RANKS = "ranks"
"""Folder of the processes a launcher starts."""
LAUNCHERS = (
    "torchrun", "torch.distributed.run", "torch.distributed.launch", "accelerate",
    "accelerate.commands.launch", "accelerate.commands.accelerate_cli",
)  # fmt: skip


def begin(torch: Any, directory: str) -> None:
    try:
        _begin(torch, Path(directory))
    except Exception as error:  # without us the program would run to its end, and tell nothing
        print(f"ridgeline: no trial: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _begin(torch: Any, home: Path) -> None:
    if _launches(sys.orig_argv):
        _pass_on(home)
        return
    plan = msgspec.json.decode((home / PLAN).read_bytes(), type=Plan)
    _seed(torch, plan.seed)
    rank = int(os.environ.get("RANK", "0") or 0)
    world = int(os.environ.get("WORLD_SIZE", "1") or 1)
    drawing = LoaderDraws(torch)
    drawing.install()
    program = Program(torch)
    session = TrialSession(torch, home, plan, program, rank, world)
    session.draw()
    for asked in plan.fixes:
        try:
            find_fix(asked.fix).apply(program, asked.options)
        except Exception as error:
            why = f"it could not be put on: {type(error).__name__}: {error}"
            program.found_nothing(asked.fix, why[:300])
    if plan.functions:
        rewrite(program, "sdpa", plan.functions)
    (Seams if plan.trains else OutputSeams)(torch, session).put_on()
    live.follow_forks()
    live.session = live.listener = session
    Ending(home, plan, session, drawing, rank, world).put_on()


def _launches(typed: list[str]) -> bool:
    """Whether this process only starts others, which train."""
    words = iter(typed[1:])
    for word in words:
        if word == "-m":
            return next(words, "") in LAUNCHERS
        if not word.startswith("-"):
            return os.path.basename(word) in LAUNCHERS
    return False


def _pass_on(home: Path) -> None:
    """What got us in here gets us into the processes it starts."""
    ranks = home / RANKS
    ranks.mkdir(exist_ok=True)
    (ranks / PLAN).write_bytes((home / PLAN).read_bytes())
    given = launch.environment(ranks, 0, "ridgeline.harness.trials.begin")
    for name in ("PYTHONPATH", "RIDGELINE_BEFORE", "RIDGELINE_BOOT"):
        if name in given:
            os.environ[name] = given[name]


def _seed(torch: Any, seed: int) -> None:
    """Before the program's own first draw; what it seeds itself stays as it is."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
