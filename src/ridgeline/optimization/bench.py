"""Trials of the user's own program, within a budget of time."""

import hashlib
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec
from msgspec import Struct

from ridgeline.fixes.catalog.prefetch import USUAL
from ridgeline.fixes.fix import find_fix
from ridgeline.harness.trials.loader_queue import made_ahead
from ridgeline.harness.trials.trial_process import COMPILED, Outcome, run
from ridgeline.measure.deadline import Deadline
from ridgeline.optimization.kept_trials import KeptTrials
from ridgeline.optimization.launcher import with_script
from ridgeline.optimization.measure import step_ns
from ridgeline.records.facts import because
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, Draws, FunctionEdit, Plan, TrialFailure
from ridgeline.units import seconds

PATIENCE = 4.0
"""Times the unchanged program's own trial: one that takes longer is not worth waiting for."""
COMPILING_S = 240.0
"""And what compiling may take."""
SLOW_START_S = 20.0
"""A trial may take this much longer than twice the unchanged program's trial, for starting its
process. Beyond that it counts as hanging."""
MIN_TRIAL_S = 1.0
"""A process is not started if less time is left: it could not even import torch."""


class Bench(Protocol):
    held_s: float
    """Of the budget, not for the trials that run now: what is kept needs it to be confirmed."""

    def trial(
        self,
        fixes: tuple[Asked, ...],
        *,
        jitter: float = 0.0,
        draws: Draws = "own",
        fresh: bool = False,
    ) -> Outcome:
        """`fresh`: run now, whatever is known from before."""

    def by_itself(self, script: str, like: tuple[Asked, ...]) -> Outcome:
        """Another script, with nothing put on; it was made to do what these do."""

    def left_s(self) -> float:
        """Of the budget."""

    def cost_s(self, fixes: tuple[Asked, ...]) -> float:
        """What one more trial of these would take, as far as is known."""


def compiling_s(fixes: tuple[Asked, ...], usually_s: float) -> float:
    """What these would compile for, before they were ever tried."""
    every = [find_fix(one.fix).fix for one in fixes]
    return max((one.longer * usually_s for one in every if one.slow_start), default=0.0)


OTHERWISE = math.log(1.5)
"""A step's time then and now: further apart, the machine is another, or busy with other things."""
COMPILES_S = 45.0
"""A first guess of what compiling adds to a trial: 20 to 40 s on an H200, 30 to 120 s on a CPU."""


class Fed(Struct, frozen=True, kw_only=True):
    """What feeds the unchanged program: the more is made ahead, the longer a trial has to be."""

    workers: int = 0
    prefetch: int | None = None
    ahead: int = 0
    """Steps of the plan that are for what was made ahead."""
    most: int = 0
    """That a trial may have more."""

    def more_steps(self, fixes: tuple[Asked, ...]) -> int:
        told = {one.fix: one.options for one in fixes}
        workers = int(told.get("loader-workers", {}).get("workers", self.workers))
        factor = int(told.get("prefetch", {}).get("factor", self.prefetch or USUAL))
        ahead = made_ahead(workers, factor)
        return min(max(ahead - self.ahead, 0), self.most)


class ProgramBench(Bench):
    def __init__(
        self,
        target: Target,
        home: Path,
        plan: Plan,
        *,
        deadline: Deadline,
        functions: Mapping[str, tuple[FunctionEdit, ...]] | None = None,
        kept: KeptTrials | None = None,
        fed: Fed | None = None,
    ) -> None:
        """`deadline` is when the last trial has to be over; a trial that is still running then is
        ended."""
        self._target = target
        self._home = home
        self._deadline = deadline
        self._plan = plan
        self._functions = functions or {}
        self._kept = kept or KeptTrials(None)
        self._fed = fed or Fed()
        self._walls: dict[str, float] = {}
        self._compiles_s = 0.0
        self.held_s = 0.0
        self.taken = 0
        self.remembered = 0
        """Trials of an earlier call."""
        self.forgot = ""
        """Why those were measured again."""
        self._alike = False

    def trial(
        self,
        fixes: tuple[Asked, ...],
        *,
        jitter: float = 0.0,
        draws: Draws = "own",
        fresh: bool = False,
    ) -> Outcome:
        edits = [edit for one in fixes for edit in self._functions.get(one.fix, ())]
        plan = msgspec.structs.replace(
            self._plan,
            fixes=fixes,
            jitter=jitter,
            functions=tuple(edits),
            draws=draws,
            steps=self._steps(fixes) if draws == "own" else self._plan.watch + 1,
            least_s=self._plan.least_s if draws == "own" else 0.0,
        )
        found = None if fresh else self._remembered(plan)
        if found is None:
            found = self._run(plan, self._folder(fixes, draws))
            self._kept.put(plan, found)
            self.taken += 1
        elif found.remembered:
            self.remembered += 1
        if draws == "own" and not jitter:
            self._learn(fixes, found)
        return found

    def _remembered(self, plan: Plan) -> Outcome | None:
        """Of an earlier call, where the machine is as it was: the first is run again to see."""
        found = self._kept.take(plan)
        if found is None:
            return None
        found = msgspec.structs.replace(found, remembered=True)
        if self._alike or found.trial is None or plan.fixes or plan.jitter:
            return found
        self._alike = True
        now = self._run(plan, self._folder(()))
        self.taken += 1
        was_ns, is_ns = step_ns(found.trial), step_ns(now.trial) if now.trial else None
        if not was_ns or not is_ns or abs(math.log(was_ns / is_ns)) < OTHERWISE:
            return found
        self._kept.forget()
        self._kept.put(plan, now)
        self.forgot = (
            f"trials of an earlier call were not gone on from: a step took {seconds(was_ns / 1e9)} "
            f"then, and takes {seconds(is_ns / 1e9)} now"
        )
        return now

    def by_itself(self, script: str, like: tuple[Asked, ...]) -> Outcome:
        """It finds compiled what those have compiled: the same graphs, from another file."""
        self.taken += 1
        target = with_script(self._target, script)
        plan = msgspec.structs.replace(self._plan, steps=self._steps(like))
        left = self.left_s()
        if left < MIN_TRIAL_S:
            return Outcome(failure=because(TrialFailure.OUT_OF_TIME), timed_out=True, cut=True)
        found = run(target, plan, self._folder(like), timeout_s=left)
        return msgspec.structs.replace(found, cut=found.timed_out)

    def _steps(self, fixes: tuple[Asked, ...]) -> int:
        return self._plan.steps + self._fed.more_steps(fixes)

    def left_s(self) -> float:
        return self._deadline.left_s()

    def cost_s(self, fixes: tuple[Asked, ...]) -> float:
        known = self._walls.get(_key(fixes))
        if known is not None:
            return known
        plain = self._walls.get(_key(()), 0.0)
        return plain + compiling_s(fixes, self._compiles_s or COMPILES_S)

    def _run(self, plan: Plan, folder: Path) -> Outcome:
        """Run a trial within its own time limit, and within what the budget leaves without its
        reserve."""
        patience = self._patience(plan.fixes)
        left = self.left_s() - self.held_s
        if left < MIN_TRIAL_S:
            code = TrialFailure.TIME_RESERVED if self.held_s else TrialFailure.OUT_OF_TIME
            return Outcome(failure=because(code), timed_out=True, cut=True)
        found = run(
            self._target, plan, folder, variables=_variables(plan.fixes),
            timeout_s=min(patience, left),
        )  # fmt: skip
        if not found.timed_out:
            return found
        if left >= patience:
            return found
        failure = because(TrialFailure.OUT_OF_TIME)
        if self.held_s:
            failure = because(TrialFailure.CUT_FOR_PROOF, cause=found.failure)
        return msgspec.structs.replace(found, failure=failure, cut=True)

    def compiled(self, fixes: tuple[Asked, ...]) -> Path:
        """Where what these compiled lies ready."""
        return (self._folder(fixes) / COMPILED).absolute()

    def _folder(self, fixes: tuple[Asked, ...], draws: Draws = "own") -> Path:
        return self._home / (_key(_compiled(fixes)) + ("" if draws == "own" else f"-{draws}"))

    def _learn(self, fixes: tuple[Asked, ...], found: Outcome) -> None:
        """What was compiled once is found ready the next time, which then tells what it takes."""
        name, trial = _key(fixes), found.trial
        compiled = trial.compile_s if trial is not None else 0.0
        if not any(find_fix(one.fix).fix.longer > 1 for one in fixes):
            self._compiles_s = max(self._compiles_s, compiled)
        again = found.wall_s if name in self._walls else found.wall_s - 0.7 * compiled
        self._walls[name] = again

    def _patience(self, fixes: tuple[Asked, ...]) -> float:
        plain = self._walls.get(_key(()), 0.0)
        if not plain:
            return math.inf
        if any(find_fix(one.fix).fix.slow_start for one in fixes):
            return PATIENCE * plain + COMPILING_S
        # One under which it hangs is not to take the time of all the others.
        share = max(self.left_s(), 0.0) / PATIENCE
        return min(PATIENCE * plain + 60.0, max(share, 2 * plain + SLOW_START_S))


def _variables(fixes: tuple[Asked, ...]) -> dict[str, str]:
    """Of the program's environment, those that changes set."""
    found: dict[str, str] = {}
    for asked in fixes:
        give = find_fix(asked.fix).variables
        if give is not None:
            found.update(give(os.environ | found, asked.options))
    return found


def _compiled(fixes: tuple[Asked, ...]) -> tuple[Asked, ...]:
    """Those that alter what is compiled: each set of them has a folder of its own, so that what one
    compiles is not found ready by another, and a fused update does not compile the model again."""
    return tuple(one for one in fixes if find_fix(one.fix).fix.group in ("model", "global"))


def _key(fixes: tuple[Asked, ...]) -> str:
    if not fixes:
        return "plain"
    text = msgspec.json.encode([msgspec.structs.astuple(one) for one in fixes], order="sorted")
    return hashlib.sha256(text).hexdigest()[:12]
