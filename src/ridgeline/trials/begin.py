"""The program of a trial has imported torch: it is seeded, changed, watched and timed."""

import atexit
import os
import random
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from ridgeline.capture import live, marks
from ridgeline.capture.seams import Seams
from ridgeline.changes.change import of
from ridgeline.changes.program import Program
from ridgeline.records.trial import Plan, Trial
from ridgeline.trials.drawing import Drawing
from ridgeline.trials.functions import rewrite
from ridgeline.trials.session import TrialSession

PLAN, RESULT = "plan.json", "trial.json"


def begin(torch: Any, directory: str) -> None:
    home = Path(directory)
    plan = msgspec.json.decode((home / PLAN).read_bytes(), type=Plan)
    _seed(torch, plan.seed)
    rank = int(os.environ.get("RANK", "0") or 0)
    world = int(os.environ.get("WORLD_SIZE", "1") or 1)
    drawing = Drawing(torch)
    drawing.put_on()
    program = Program(torch)
    session = TrialSession(torch, home, plan, program, rank, world)
    if plan.same_random:
        setattr(import_module("torch._inductor.config"), "fallback_random", True)  # noqa: B010
    for asked in plan.changes:
        try:
            of(asked.change).put_on(program, asked.options)
        except Exception as error:
            why = f"it could not be put on: {type(error).__name__}: {error}"
            program.found_nothing(asked.change, why[:300])
    if plan.functions:
        rewrite(program, "sdpa", plan.functions)
    Seams(torch, session).put_on()
    live.follow_forks()
    live.session = marks.listener = session
    if rank == 0:
        atexit.register(_write, home, plan, session, drawing, os.getpid())


def _seed(torch: Any, seed: int) -> None:
    """Before the program's own first draw; what it seeds itself stays as it is."""
    torch.manual_seed(seed)
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)


def _write(home: Path, plan: Plan, session: TrialSession, drawing: Drawing, pid: int) -> None:
    if os.getpid() != pid:  # a fork that ends by itself
        return
    session.gate.closed = True
    watch = session.watch
    try:
        watch.finish()
    except Exception as error:
        watch.problems.append(f"{type(error).__name__}: {error}"[:200])
    applied, left = session.program.outcome()
    torch = session.program.torch
    cuda = torch.cuda.is_initialized()
    trial = Trial(
        changes=tuple(asked.change for asked in plan.changes),
        applied=applied,
        not_applied=left,
        watched=tuple(watch.steps),
        evaluation=watch.evaluation,
        tensors=watch.tensors,
        peak_bytes=torch.cuda.max_memory_allocated() if cuda else 0,
        device="cuda" if cuda else "cpu",
        workers_draw=drawing.in_workers,
        jitter=plan.jitter,
        settings=tuple(watch.settings),
        problems=tuple(dict.fromkeys(watch.problems)),
    )
    temporary = home / f".{RESULT}"
    temporary.write_bytes(msgspec.json.encode(trial))
    temporary.replace(home / RESULT)
