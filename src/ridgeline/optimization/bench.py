"""Trials of the user's own program, within a budget of time."""

import hashlib
import os
import time
from collections.abc import Mapping
from pathlib import Path

import msgspec

from ridgeline.changes.change import of
from ridgeline.optimization.contest import Bench
from ridgeline.records.run import Target
from ridgeline.records.trial import Asked, FunctionEdit, Plan
from ridgeline.trials.arm import Outcome, run

PATIENCE = 4.0
"""Times the unchanged program's own trial: one that takes longer is not worth waiting for."""
COMPILING_S = 240.0


class ProgramBench(Bench):
    def __init__(
        self,
        target: Target,
        home: Path,
        *,
        budget_s: float,
        steps: int,
        watch: int,
        trains: bool = True,
        functions: Mapping[str, tuple[FunctionEdit, ...]] | None = None,
        seed: int = 0,
    ) -> None:
        self._target = target
        self._home = home
        self._ends = time.monotonic() + budget_s
        self._plan = Plan(seed=seed, steps=steps, watch=watch, trains=trains)
        self._functions = functions or {}
        self._longest_s = 0.0
        self._plain_s = 0.0
        self.taken = 0

    def trial(
        self, changes: tuple[Asked, ...], *, jitter: float = 0.0, same_random: bool = False
    ) -> Outcome:
        edits = [edit for one in changes for edit in self._functions.get(one.change, ())]
        plan = msgspec.structs.replace(
            self._plan,
            changes=changes,
            jitter=jitter,
            functions=tuple(edits),
            same_random=same_random,
            steps=self._plan.watch + 1 if same_random else self._plan.steps,
        )
        home = self._home / (_key(changes) + ("-same" if same_random else ""))
        found = run(
            self._target, plan, home, variables=_variables(changes),
            timeout_s=self._patience(changes),
        )  # fmt: skip
        self.taken += 1
        self._longest_s = max(self._longest_s, found.wall_s)
        if not changes:
            self._plain_s = max(self._plain_s, found.wall_s)
        return found

    def by_itself(self, script: str) -> Outcome:
        self.taken += 1
        target = msgspec.structs.replace(self._target, name=script)
        return run(target, self._plan, self._home / "by itself", timeout_s=COMPILING_S + 600)

    def time_for(self, trials: int) -> bool:
        return time.monotonic() + trials * self._plain_s < self._ends

    def _patience(self, changes: tuple[Asked, ...]) -> float:
        if not self._plain_s:
            return max(self._ends - time.monotonic(), 60.0)
        return PATIENCE * self._plain_s + (COMPILING_S if changes else 60.0)


def _variables(changes: tuple[Asked, ...]) -> dict[str, str]:
    """Of the program's environment, those that changes set."""
    found: dict[str, str] = {}
    for asked in changes:
        give = of(asked.change).variables
        if give is not None:
            found.update(give(os.environ | found, asked.options))
    return found


def _key(changes: tuple[Asked, ...]) -> str:
    """A folder of its own for each set: what one compiles is not found ready by another."""
    if not changes:
        return "plain"
    text = msgspec.json.encode([msgspec.structs.astuple(one) for one in changes], order="sorted")
    return hashlib.sha256(text).hexdigest()[:12]
