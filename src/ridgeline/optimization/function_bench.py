"""Runs trials of a step function in this process. Each begins in the same state, and nothing of it
is left when it is over."""

import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from ridgeline.errors import RidgelineError
from ridgeline.fixes.fix import compiles_first
from ridgeline.harness.trials.ending import RESULT, Ending
from ridgeline.harness.trials.loader_queue import made_ahead
from ridgeline.harness.trials.timed_steps import is_timed, later_steps
from ridgeline.harness.trials.trial_process import COMPILED, Outcome, are_on_device, sustained_times
from ridgeline.harness.usercode.load import first_words
from ridgeline.measure.clock import Deadline
from ridgeline.optimization.bench import (
    MAX_COMPILING_S,
    MAX_TRIAL_FACTOR,
    MIN_TRIAL_S,
    BudgetedBench,
    fixes_key,
)
from ridgeline.optimization.function_program import (
    Batches,
    FunctionProgram,
    FunctionSession,
    StepSubject,
    end_session,
    process_lent,
)
from ridgeline.optimization.function_state import SavedState, time_limit
from ridgeline.records.facts import Reason, because
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.trial import Asked, Draws, FunctionEdit, Plan, Trial, TrialFailure

COMPILING_GUESS_S = 20.0
"""A first guess of what compiling takes: 5 to 40 s, since everything is imported already."""


class FunctionBench(BudgetedBench):
    def __init__(
        self,
        torch: Any,
        subject: StepSubject,
        home: Path,
        *,
        deadline: Deadline,
        steps: int,
        watch: int,
        state: SavedState,
        least_s: float = 0.0,
        functions: Mapping[str, tuple[FunctionEdit, ...]] | None = None,
    ) -> None:
        # A model that is trained in eval mode is known by its calls alone.
        self.is_trained = subject.trains and subject.model.training
        plan = Plan(steps=steps, least_s=least_s, watch=watch, trains=self.is_trained)
        super().__init__(plan, deadline, functions, COMPILING_GUESS_S)
        self._torch = torch
        self._subject = subject
        self._home = home
        self._state = state

    def trial(
        self,
        fixes: tuple[Asked, ...],
        *,
        jitter: float = 0.0,
        draws: Draws = "own",
        fresh: bool = False,
    ) -> Outcome:
        """Run a trial. What the unchanged step raises in its first trial is raised here."""
        plan = self._planned(fixes, jitter, draws)
        began = time.perf_counter()
        failure: Reason | None = None
        trial, cut = None, False
        compiles = draws != "own" or compiles_first(fixes)
        compiled = self._folder(fixes) / COMPILED
        with process_lent(self._torch, self._state, plan.functions, compiled, compiles=compiles):
            try:
                with time_limit(self._limit_s(fixes)):
                    trial = self._run(plan)
            except Exception as error:
                out_of_time = self.left_s() <= self.held_s + MIN_TRIAL_S
                cut = isinstance(error, TimeoutError) and out_of_time
                first = not fixes and not self._baseline_s
                if (first and not cut) or isinstance(error, RidgelineError):
                    raise
                text = f"{type(error).__name__}: {first_words(error)}"[:300]
                failure = because(TrialFailure.RAISED, error=str(error) if cut else text)
                if cut and self.held_s:
                    failure = because(TrialFailure.CUT_FOR_PROOF, cause=failure)
        self.taken += 1
        # The latest trial tells what the next one takes: the first one compiles, and imports.
        self._wall_s[fixes_key(fixes)] = wall_s = time.perf_counter() - began
        return Outcome(trial=trial, failure=failure, cut=cut, wall_s=wall_s)

    def perturbed(self, jitters: Sequence[float]) -> list[Outcome]:
        return [self.trial((), jitter=jitter) for jitter in jitters]

    def by_itself(self, script: str, like: tuple[Asked, ...]) -> Outcome:
        return Outcome(failure=because(TrialFailure.NO_SCRIPT))

    def _folder(self, fixes: tuple[Asked, ...]) -> Path:
        return self._home / fixes_key(fixes)

    def _limit_s(self, fixes: tuple[Asked, ...]) -> float:
        """Return the time limit of a trial. It is never 0, which would mean no limit."""
        left_s = max(self.left_s() - self.held_s, MIN_TRIAL_S)
        if not fixes or not self._baseline_s:
            return left_s
        return min(MAX_TRIAL_FACTOR * self._baseline_s + MAX_COMPILING_S, left_s)

    def _run(self, plan: Plan) -> Trial:
        torch, subject = self._torch, self._subject
        directory = self._trial_directory(plan.fixes)
        program = FunctionProgram(torch, subject)
        session = FunctionSession(torch, directory, plan, program)
        try:
            if subject.device == "cuda":
                torch.cuda.reset_peak_memory_stats()
            session.begin(sees_outputs=not subject.trains)
            program.alter_optimizer()
            run = program.step_function(tuple(one.fix for one in plan.fixes), session, self._state)
            loader = program.altered_loader()
            workers = getattr(loader, "num_workers", 0)
            ahead = made_ahead(workers, getattr(loader, "prefetch_factor", None))
            batches = Batches(loader)
            try:
                taken, session.steps = 0, plan.steps + ahead
                while taken < session.steps or session.goes_on:
                    batch = next(batches)
                    returned = run(batch)
                    session.step_over(batch, None if subject.trains else returned)
                    taken += 1
                Ending(session).write()
            finally:
                batches.close()
        finally:
            program.is_on = False
            session.forget()
            end_session(session)
        return _read(directory, plan.watch + ahead, workers)

    def _trial_directory(self, fixes: tuple[Asked, ...]) -> Path:
        """Make the directory of a trial, in the folder of its set of fixes: what another set has
        compiled must not be found there."""
        home = self._folder(fixes)
        directory = home / "trial"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir(parents=True)
        return directory


def _read(directory: Path, untimed: int, workers: int) -> Trial:
    trial = msgspec.msgpack.decode((directory / RESULT).read_bytes(), type=Trial)
    steps = list(RunDirectory(directory).steps())
    timed = [step for step in steps if step.index > untimed and is_timed(step, trial)]
    return replace(
        sustained_times(trial, timed, workers, are_on_device(timed)),
        compile_s=sum(step.compile_ns for step in steps) / 1e9,
        first_step_s=steps[0].dur_ns / 1e9 if steps else 0.0,
        later=later_steps(trial, steps),
        handed={},
        queued={},
    )
