"""Begins a trial inside the program's process once the program has imported torch: seeds it,
applies the fixes, watches and times it."""

import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.fixes.program import Program
from ridgeline.harness.capture import launch
from ridgeline.harness.trials.ending import Ending
from ridgeline.harness.trials.session import TrialSession
from ridgeline.records.trial import Plan

RANKS = "ranks"
"""Name of the folder for the processes that a launcher starts."""


def begin(torch: Any, directory: str) -> None:
    launch.begin_or_exit(lambda: _begin(torch, Path(directory)))


def _begin(torch: Any, home: Path) -> None:
    if launch.is_launcher(sys.orig_argv):
        _begin_in_children(home)
        return
    plan = msgspec.json.decode((home / launch.PLAN).read_bytes(), type=Plan)
    launch.seed_generators(torch, plan.seed)
    rank = int(os.environ.get("RANK", "0") or 0)
    world = int(os.environ.get("WORLD_SIZE", "1") or 1)
    session = TrialSession(torch, home, plan, Program(torch), rank, world)
    session.begin(sees_outputs=not plan.trains)
    Ending(session, rank, world).install()


def _begin_in_children(home: Path) -> None:
    """Make the processes that this one starts begin a trial."""
    ranks = home / RANKS
    ranks.mkdir(exist_ok=True)
    (ranks / launch.PLAN).write_bytes((home / launch.PLAN).read_bytes())
    launch.begin_in_children(ranks, "ridgeline.harness.trials.begin")
