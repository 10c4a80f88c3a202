"""Runs trials of the user's own program, within a time budget."""

import hashlib
import math
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from ridgeline.fixes.catalog.prefetch import DEFAULT_BATCHES_AHEAD
from ridgeline.fixes.fix import Fix, find_fix
from ridgeline.harness.capture.launch import IN_A_TRIAL
from ridgeline.harness.trials.loader_queue import made_ahead
from ridgeline.harness.trials.trial_process import COMPILED, Outcome, run
from ridgeline.harness.usercode.child_process import end_leftovers
from ridgeline.measure.clock import Deadline
from ridgeline.optimization.kept_trials import KeptTrials
from ridgeline.optimization.launcher import launcher_command, with_script
from ridgeline.optimization.measure import undisturbed_ns
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import SearchCode
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Draws, FunctionEdit, Plan, TrialFailure

MAX_TRIAL_FACTOR = 4.0
"""A trial that takes longer than this multiple of the baseline's trial is not worth waiting for."""
MAX_COMPILING_S = 240.0
"""Time that compiling may add to a trial."""
MAX_FACTOR_EXTRA_S = 60.0
SLOW_START_S = 20.0
"""A trial may take this much longer than twice the baseline's trial, for starting its process.
Beyond that it counts as hanging."""
MAX_AT_ONCE = 2
"""Runs that take place at the same time, where their times serve nothing."""
MIN_SPARE_CORES = 4
"""Cores that such runs must leave besides one for each of their processes."""
MIN_TRIAL_S = 1.0
"""A process is not started if less time is left: it could not even import torch."""
MAX_STEP_TIME_RATIO = 1.5
"""If the baseline's step takes so many times longer or shorter than in an earlier call, the machine
is another, or busy with other things, and earlier trials are not reused."""
COMPILING_GUESS_S = 45.0
"""A first guess of what compiling adds to a trial: 20 to 40 s on an H200, 30 to 120 s on a CPU."""
CACHED_COMPILING_SHARE = 0.7
"""Share of the time for compiling that a second trial of the same fixes saves."""


class Bench(Protocol):
    """Whoever runs trials for the search."""

    held_s: float
    """Time that the trials which run now must leave for the confirmation of what is kept."""

    def trial(
        self,
        fixes: tuple[Asked, ...],
        *,
        jitter: float = 0.0,
        draws: Draws = "own",
        fresh: bool = False,
    ) -> Outcome:
        """Run a trial under these fixes. With `fresh` it is run now, whatever is known from
        before."""

    def perturbed(self, jitters: Sequence[float]) -> list[Outcome]:
        """Run the baseline once for each of these perturbations. Runs that take place at the same
        time are not timed."""

    def by_itself(self, script: str, like: tuple[Asked, ...]) -> Outcome:
        """Run another script without fixes; it was written to do what the fixes `like` do."""

    def left_s(self) -> float:
        """Return what is left of the budget."""

    def cost_s(self, fixes: tuple[Asked, ...]) -> float:
        """Return what one more trial under these fixes would take, as far as is known."""


def compiling_s(fixes: tuple[Asked, ...], guess_s: float) -> float:
    """Return what compiling under these fixes is expected to take, before they were ever tried."""
    return max((fix.longer * guess_s for fix in _of(fixes) if fix.slow_start), default=0.0)


def _of(fixes: tuple[Asked, ...]) -> list[Fix]:
    return [find_fix(one.fix).fix for one in fixes]


def fixes_key(fixes: tuple[Asked, ...]) -> str:
    """Return a short name for a set of fixes with their options."""
    if not fixes:
        return "plain"
    text = msgspec.json.encode([msgspec.structs.astuple(one) for one in fixes], order="sorted")
    return hashlib.sha256(text).hexdigest()[:12]


class BudgetedBench:
    """Holds what all benches share: plans of trials, what trials cost, and the budget."""

    def __init__(
        self,
        plan: Plan,
        deadline: Deadline,
        functions: Mapping[str, tuple[FunctionEdit, ...]] | None,
        compiling_guess_s: float,
    ) -> None:
        """`deadline` is when the last trial has to be over; a trial that is still running then is
        ended. `functions` are the functions that a fix rewrites."""
        self._plan = plan
        self._deadline = deadline
        self._functions = functions or {}
        self._compiling_s = 0.0
        self._compiling_guess_s = compiling_guess_s
        self._wall_s: dict[str, float] = {}
        self._cached_s: dict[str, float] = {}
        """What compiling takes where a race has compiled the same before."""
        self.held_s = 0.0
        self.taken = 0
        """Trials that were run."""

    def left_s(self) -> float:
        return self._deadline.left_s()

    def cost_s(self, fixes: tuple[Asked, ...]) -> float:
        known = self._wall_s.get(fixes_key(fixes))
        if known is not None:
            return known
        cached_s = self._cached_s.get(fixes_key(fixes))
        if cached_s is not None:
            return self._baseline_s + cached_s
        return self._baseline_s + compiling_s(fixes, self._compiling_s or self._compiling_guess_s)

    def take_compiled(self, fixes: tuple[Asked, ...], compiled: Path, compile_s: float) -> None:
        """Let trials under these fixes find what a race has compiled, which took `compile_s`."""
        folder = self._folder(fixes)
        if compiled.is_dir() and not (folder / COMPILED).exists():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / COMPILED).symlink_to(compiled)
        self._cached_s[fixes_key(fixes)] = (1 - CACHED_COMPILING_SHARE) * compile_s

    def _folder(self, fixes: tuple[Asked, ...]) -> Path:
        """Return the folder of the trials under these fixes."""
        raise NotImplementedError

    @property
    def _baseline_s(self) -> float:
        """What a trial of the baseline takes; 0 before the first."""
        return self._wall_s.get(fixes_key(()), 0.0)

    def _planned(
        self, fixes: tuple[Asked, ...], jitter: float, draws: Draws, more_steps: int = 0
    ) -> Plan:
        timed = draws == "own"
        return replace(
            self._plan,
            fixes=fixes,
            jitter=jitter,
            draws=draws,
            functions=tuple(edit for one in fixes for edit in self._functions.get(one.fix, ())),
            steps=self._plan.steps + more_steps if timed else self._plan.watch + 1,
            least_s=self._plan.least_s if timed and not jitter else 0.0,
        )


class Feeding(Struct, frozen=True, kw_only=True):
    """Says what feeds the baseline. The more is made ahead, the longer a trial has to be."""

    workers: int = 0
    prefetch: int | None = None
    ahead: int = 0
    """Steps of the plan that are for what was made ahead."""
    max_more: int = 0
    """Steps that a trial may have in addition."""

    def more_steps(self, fixes: tuple[Asked, ...]) -> int:
        options = {one.fix: one.options for one in fixes}
        workers = int(options.get("loader-workers", {}).get("workers", self.workers))
        factor = int(
            options.get("prefetch", {}).get("factor", self.prefetch or DEFAULT_BATCHES_AHEAD)
        )
        return min(max(made_ahead(workers, factor) - self.ahead, 0), self.max_more)


class ProgramBench(BudgetedBench, Bench):
    """Runs each trial in a fresh process of the program."""

    def __init__(
        self,
        target: Target,
        home: Path,
        plan: Plan,
        *,
        deadline: Deadline,
        functions: Mapping[str, tuple[FunctionEdit, ...]] | None = None,
        kept: KeptTrials | None = None,
        feeding: Feeding | None = None,
    ) -> None:
        super().__init__(plan, deadline, functions, COMPILING_GUESS_S)
        self._target = target
        self._home = home
        self._kept = kept or KeptTrials(None)
        self._feeding = feeding or Feeding()
        self.remembered = 0
        """Trials that were taken from an earlier call."""
        self.outdated: Reason | None = None
        """Why earlier trials were not reused."""
        self._on_gpu = False
        """Whether the baseline works on a GPU, as far as is known."""
        self._checked = False
        """Whether the first earlier trial was run again, to see if the machine is as it was."""

    def trial(
        self,
        fixes: tuple[Asked, ...],
        *,
        jitter: float = 0.0,
        draws: Draws = "own",
        fresh: bool = False,
    ) -> Outcome:
        plan = self._planned(fixes, jitter, draws, self._feeding.more_steps(fixes))
        outcome = None if fresh else self._earlier(plan)
        if outcome is None:
            outcome = self._run(plan, self._folder(fixes, draws))
            self._kept.put(plan, outcome)
            self.taken += 1
        elif outcome.remembered:
            self.remembered += 1
        if draws == "own" and not jitter:
            self._learn_cost(fixes, outcome)
        if outcome.trial is not None:
            self._on_gpu = outcome.trial.device == "cuda"
        return outcome

    def perturbed(self, jitters: Sequence[float]) -> list[Outcome]:
        if len(jitters) < 2 or not self._has_room():
            return [self.trial((), jitter=jitter) for jitter in jitters]
        plans = [
            replace(self._planned((), jitter, "own"), steps=self._plan.watch + 1)
            for jitter in jitters
        ]
        known = [self._earlier(plan) for plan in plans]
        folder = self._folder(())
        names = [f"perturbed-{number}" for number in range(len(plans))]
        runs = [
            partial(self._run, plan, folder, name)
            for plan, name, outcome in zip(plans, names, known, strict=True)
            if outcome is None
        ]
        with ThreadPoolExecutor(MAX_AT_ONCE) as pool:
            try:
                fresh = iter([future.result() for future in [pool.submit(run) for run in runs]])
            except BaseException:
                for name in names:
                    end_leftovers(IN_A_TRIAL, str((folder / name).absolute()))
                raise
        outcomes = []
        for plan, earlier in zip(plans, known, strict=True):
            outcome = earlier if earlier is not None else next(fresh)
            if earlier is None and outcome.trial is None and not outcome.cut:
                outcome = self._run(plan, folder)  # both may not fit into the device's memory
            if earlier is None:
                self._kept.put(plan, outcome)
            if outcome.trial is not None:
                outcome = replace(outcome, trial=replace(outcome.trial, step_ns=()))
            outcomes.append(outcome)
        self.taken += len(runs)
        self.remembered += len(plans) - len(runs)
        return outcomes

    def _has_room(self) -> bool:
        """Return whether two runs of the baseline leave the machine cores to spare. Programs that
        start others are run one at a time: both would open the same port."""
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
        used = MAX_AT_ONCE * (1 + self._feeding.workers)
        alone = self._on_gpu and not launcher_command(self._target)
        return alone and cores - used >= MIN_SPARE_CORES

    def _earlier(self, plan: Plan) -> Outcome | None:
        """Return a trial of an earlier call. The first one, of the baseline, is run again to see
        whether the machine is as it was; if not, nothing earlier is used."""
        outcome = self._kept.take(plan)
        if outcome is None:
            return None
        outcome = replace(outcome, remembered=True)
        if self._checked or outcome.trial is None or plan.fixes or plan.jitter:
            return outcome
        self._checked = True
        now = self._run(plan, self._folder(()))
        self.taken += 1
        then_ns = undisturbed_ns(outcome.trial)
        now_ns = undisturbed_ns(now.trial) if now.trial is not None else None
        if not then_ns or not now_ns:
            return outcome
        if abs(math.log(then_ns / now_ns)) < math.log(MAX_STEP_TIME_RATIO):
            return outcome
        self._kept.forget()
        self._kept.put(plan, now)
        self.outdated = because(
            SearchCode.EARLIER_TRIALS_OUTDATED, then_s=then_ns / 1e9, now_s=now_ns / 1e9
        )
        return now

    def by_itself(self, script: str, like: tuple[Asked, ...]) -> Outcome:
        """Run the script where the fixes `like` were compiled: it compiles the same graphs."""
        self.taken += 1
        left_s = self.left_s()
        if left_s < MIN_TRIAL_S:
            return Outcome(failure=because(TrialFailure.OUT_OF_TIME), timed_out=True, cut=True)
        plan = replace(self._plan, steps=self._plan.steps + self._feeding.more_steps(like))
        target = with_script(self._target, script)
        outcome = run(target, plan, self._folder(like), timeout_s=left_s)
        return replace(outcome, cut=outcome.timed_out)

    def compiled(self, fixes: tuple[Asked, ...]) -> Path:
        """Return the folder of what was compiled under these fixes."""
        return (self._folder(fixes) / COMPILED).absolute()

    def _run(self, plan: Plan, folder: Path, name: str = "trial") -> Outcome:
        """Run a trial within its own time limit, and within what the budget leaves without its
        reserve."""
        limit_s = self._limit_s(plan.fixes)
        left_s = self.left_s() - self.held_s
        if left_s < MIN_TRIAL_S:
            code = TrialFailure.TIME_RESERVED if self.held_s else TrialFailure.OUT_OF_TIME
            return Outcome(failure=because(code), timed_out=True, cut=True)
        outcome = run(
            self._target, plan, folder, variables=_variables(plan.fixes),
            timeout_s=min(limit_s, left_s), name=name,
        )  # fmt: skip
        if not outcome.timed_out or left_s >= limit_s:
            return outcome
        failure = because(TrialFailure.OUT_OF_TIME)
        if self.held_s:
            failure = because(TrialFailure.CUT_FOR_PROOF, cause=outcome.failure)
        return replace(outcome, failure=failure, cut=True)

    def _folder(self, fixes: tuple[Asked, ...], draws: Draws = "own") -> Path:
        """Return the folder of all trials under the same fixes that alter what is compiled. A set
        must not find what another set has compiled, but a fused update need not compile the model
        again."""
        compiled = tuple(one for one in fixes if find_fix(one.fix).fix.group in ("model", "global"))
        return self._home / (fixes_key(compiled) + ("" if draws == "own" else f"-{draws}"))

    def _learn_cost(self, fixes: tuple[Asked, ...], outcome: Outcome) -> None:
        """Note what the next trial under these fixes will take: most of what this one has compiled
        is cached then."""
        key = fixes_key(fixes)
        compiling_s = outcome.trial.compile_s if outcome.trial is not None else 0.0
        if not any(fix.longer > 1 for fix in _of(fixes)):
            self._compiling_s = max(self._compiling_s, compiling_s)
        saved_s = 0.0 if key in self._wall_s else CACHED_COMPILING_SHARE * compiling_s
        self._wall_s[key] = outcome.wall_s - saved_s

    def _limit_s(self, fixes: tuple[Asked, ...]) -> float:
        plain_s = self._baseline_s
        if not plain_s:
            return math.inf
        if any(fix.slow_start for fix in _of(fixes)):
            return MAX_TRIAL_FACTOR * plain_s + MAX_COMPILING_S
        # A fix under which the program hangs must not take the time of all the others.
        share_s = max(self.left_s(), 0.0) / MAX_TRIAL_FACTOR
        return min(
            MAX_TRIAL_FACTOR * plain_s + MAX_FACTOR_EXTRA_S,
            max(share_s, 2 * plain_s + SLOW_START_S),
        )


def _variables(fixes: tuple[Asked, ...]) -> dict[str, str]:
    """Return the environment variables that the fixes set."""
    variables: dict[str, str] = {}
    for one in fixes:
        make = find_fix(one.fix).variables
        if make is not None:
            variables.update(make(os.environ | variables, one.options))
    return variables
