"""Trials of a step function, in this process: each from the same state, and nothing of it left
when it is over."""

import hashlib
import os
import shutil
import time
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ridgeline.errors import RidgelineError
from ridgeline.fixes.fix import find_fix
from ridgeline.harness.capture import live
from ridgeline.harness.capture.seams import Seams
from ridgeline.harness.trials.ending import RESULT, Ending
from ridgeline.harness.trials.function_edits import found_at, rewrite
from ridgeline.harness.trials.loader_queue import as_sustained, made_ahead
from ridgeline.harness.trials.random_draws import LoaderDraws
from ridgeline.harness.trials.session import OutputSeams
from ridgeline.harness.trials.timed_steps import is_timed, later_steps
from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.harness.usercode.load import first_words
from ridgeline.measure.deadline import Deadline
from ridgeline.optimization.bench import (
    COMPILING_S,
    MIN_TRIAL_S,
    PATIENCE,
    compiling_s,
)
from ridgeline.optimization.function_program import (
    Batches,
    FunctionProgram,
    FunctionSession,
    Subject,
)
from ridgeline.optimization.function_state import AsItWas, Kept, Process, limited
from ridgeline.records.facts import Reason, because
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.trial import Asked, Draws, FunctionEdit, Plan, Trial, TrialFailure

COMPILES_S = 20.0
"""A first guess of what compiling takes: 5 to 40 s, nothing being imported any more."""


class FunctionBench:
    def __init__(
        self,
        torch: Any,
        subject: Subject,
        home: Path,
        *,
        deadline: Deadline,
        steps: int,
        watch: int,
        kept: Kept,
        least_s: float = 0.0,
        functions: Mapping[str, tuple[FunctionEdit, ...]] | None = None,
    ) -> None:
        self._torch = torch
        self._subject = subject
        self._home = home
        self._deadline = deadline
        # A model that is trained in eval mode is known by its calls alone.
        trains = subject.trains and subject.model.training
        self._plan = Plan(steps=steps, least_s=least_s, watch=watch, trains=trains)
        self._kept = kept
        self._functions = functions or {}
        self._wall_s: dict[str, float] = {}
        self.held_s = 0.0
        self.taken = 0

    def trial(
        self,
        fixes: tuple[Asked, ...],
        *,
        jitter: float = 0.0,
        draws: Draws = "own",
        fresh: bool = False,
    ) -> Outcome:
        """What the unchanged step raises at its first trial is the user's to see."""
        plan = replace(
            self._plan,
            fixes=fixes,
            jitter=jitter,
            draws=draws,
            functions=tuple(e for one in fixes for e in self._functions.get(one.fix, ())),
            steps=self._plan.steps if draws == "own" else self._plan.watch + 1,
            least_s=self._plan.least_s if draws == "own" else 0.0,
        )
        began = time.perf_counter()
        if draws != "own" or any(find_fix(one.fix).fix.slow_start for one in fixes):
            for name in ("torch._dynamo.config", "torch._inductor.config"):
                import_module(name)  # before what is in it is noted
        failure: Reason | None = None
        found, cut = None, False
        with AsItWas(self._torch, self._kept) as around:
            try:
                with limited(self._patience_s(fixes)), warnings.catch_warnings():
                    # Of ours, to be tried: it is not the user's number.
                    warnings.filterwarnings("ignore", "This DataLoader will create")
                    found = self._run(plan, around.process)
            except Exception as error:
                over = self.left_s() <= self.held_s + MIN_TRIAL_S
                cut = isinstance(error, TimeoutError) and over
                first = not fixes and _key(()) not in self._wall_s
                if (first and not cut) or isinstance(error, RidgelineError):
                    raise
                failure = because(TrialFailure.RAISED, error=str(error) if cut else _told(error))
                if cut and self.held_s:
                    failure = because(TrialFailure.CUT_FOR_PROOF, cause=failure)
        wall = time.perf_counter() - began
        self.taken += 1
        self._wall_s[_key(fixes)] = wall  # of the last: the first one compiles, and imports
        return Outcome(trial=found, failure=failure, cut=cut, wall_s=wall)

    def by_itself(self, script: str, like: tuple[Asked, ...]) -> Outcome:
        return Outcome(failure=because(TrialFailure.NO_SCRIPT))

    def left_s(self) -> float:
        return self._deadline.left_s()

    def cost_s(self, fixes: tuple[Asked, ...]) -> float:
        known = self._wall_s.get(_key(fixes))
        if known is not None:
            return known
        return self._wall_s.get(_key(()), 0.0) + compiling_s(fixes, COMPILES_S)

    def _patience_s(self, fixes: tuple[Asked, ...]) -> float:
        """Return the time limit of a trial. It is never 0, which would mean no limit."""
        left = max(self.left_s() - self.held_s, MIN_TRIAL_S)
        plain = self._wall_s.get(_key(()), 0.0)
        if not fixes or not plain:
            return left
        return min(PATIENCE * plain + COMPILING_S, left)

    def _run(self, plan: Plan, process: Process) -> Trial:
        torch, subject = self._torch, self._subject
        directory = self._directory(plan.fixes)
        drawing = LoaderDraws(torch)
        drawing.install()
        program = FunctionProgram(torch, subject)
        session = FunctionSession(torch, directory, plan, program)
        try:
            session.draw()
            self._put_on(program, plan, process)
            (Seams if subject.trains else OutputSeams)(torch, session).put_on()
            live.follow_forks()
            live.session = live.listener = session
            program.alter_optimizer()
            run = program.step_function(tuple(one.fix for one in plan.fixes), session, self._kept)
            loader = program.altered_loader()
            ahead = made_ahead(
                getattr(loader, "num_workers", 0), getattr(loader, "prefetch_factor", None)
            )
            batches = Batches(loader)
            try:
                taken, session.steps = 0, plan.steps + ahead
                while taken < session.steps or session.goes_on:
                    batch = next(batches)
                    returned = run(batch)
                    session.step_over(batch, None if subject.trains else returned)
                    taken += 1
                Ending(directory, plan, session, drawing, 0, 1).write()
            finally:
                batches.close()
        finally:
            session.farewell("finished", "")
            session.forget()
            live.session = live.listener = None
            if session.progress.compiling.seen:
                # What it traced went through functions that are put back now.
                import_module("torch._dynamo").reset()
        return _read(directory, plan.watch + ahead, getattr(loader, "num_workers", 0))

    def _put_on(self, program: FunctionProgram, plan: Plan, process: Process) -> None:
        for asked in plan.fixes:
            try:
                find_fix(asked.fix).apply(program, asked.options)
            except Exception as error:
                program.found_nothing(asked.fix, f"it could not be put on: {_told(error)}")
        if plan.functions:
            for edit in plan.functions:
                process.code(found_at(edit))
            rewrite(program, "sdpa", plan.functions)
        if self._subject.device == "cuda":
            self._torch.cuda.reset_peak_memory_stats()

    def _directory(self, fixes: tuple[Asked, ...]) -> Path:
        """Each set has a folder for what it compiles: another's is not found ready."""
        home = self._home / _key(fixes)
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(home / "inductor")
        directory = home / "trial"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        return directory


def _key(fixes: tuple[Asked, ...]) -> str:
    told = [msgspec.structs.astuple(one) for one in fixes]
    return hashlib.sha256(msgspec.json.encode(told, order="sorted")).hexdigest()[:12]


def _read(directory: Path, untimed: int, workers: int) -> Trial:
    found = msgspec.msgpack.decode((directory / RESULT).read_bytes(), type=Trial)
    steps = list(RunDirectory(directory).steps())
    timed = [step for step in steps if step.index > untimed and is_timed(step, found)]
    device = bool(timed) and all(step.device_ns for step in timed)
    each = [(step.device_ns or 0) if device else step.dur_ns for step in timed]
    queue = {one.step: one for one in found.queue}
    return replace(
        found,
        step_ns=as_sustained(each, [queue.get(step.index) for step in timed], workers),
        samples=tuple(step.samples or None for step in timed),
        compile_s=sum(step.compile_ns for step in steps) / 1e9,
        first_step_s=steps[0].dur_ns / 1e9 if steps else 0.0,
        later=later_steps(found, steps),
        handed={},
    )


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {first_words(error)}"[:300]
