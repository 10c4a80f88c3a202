"""A bench with a clock that nobody waits for: a trial takes as long as such a program's does on a
GPU, and what was compiled once is found ready."""

from collections.abc import Callable

from msgspec.structs import replace

from ridgeline.fixes.fix import find_fix
from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.bench import compiling_s
from ridgeline.records.facts import because
from ridgeline.records.trial import Asked, Draws, TrialFailure
from tests.unit.optimization.fake_bench import FakeBench

STEPS = 40
READY = 0.3
"""Of a compile's time, where what it makes lies on disk."""


class ClockedBench(FakeBench):
    """`step_ms`: of a set of changes. `begins_s`: before a process takes its first step."""

    def __init__(
        self, step_ms: Callable[[frozenset[str]], float], budget_s: float, *, seed: int = 0,
        spread: float = 0.02, begins_s: float = 14.0, compiles_s: float = 22.0,
        spent_s: float = 0.0, grown: Callable[[int], float] = float,
    ) -> None:  # fmt: skip
        """`grown`: how many times as long a step takes with a batch so many times as large."""
        super().__init__(lambda names: 100 / self._now_ms(names), spread=spread, seed=seed)
        self.step_ms = step_ms
        self._grown = grown
        self._factor = 1
        self.factors: list[int] = []
        self.now_s = spent_s
        self._budget_s = budget_s
        self._begins_s = begins_s
        self._compiles_s = compiles_s
        self._ready: set[frozenset[str]] = set()
        self._walls: dict[frozenset[str], float] = {}
        self._seen_s = 45.0

    def trial(
        self,
        fixes: tuple[Asked, ...],
        *,
        jitter: float = 0.0,
        draws: Draws = "own",
        fresh: bool = False,
    ) -> Outcome:
        names = frozenset(one.fix for one in fixes)
        told = (int(one.options["factor"]) for one in fixes if "factor" in one.options)
        self._factor = next(told, 1)
        self.factors.append(self._factor)
        found = super().trial(fixes, jitter=jitter, draws=draws, fresh=fresh)
        groups = ("model", "global")
        compiled = frozenset(name for name in names if find_fix(name).fix.group in groups)
        compiled |= {f"batch {self._factor}"}
        slow_s = compiling_s(fixes, self._compiles_s)
        slow_s *= READY if compiled in self._ready else 1
        wall_s = self._begins_s + STEPS * self._now_ms(names) / 1e3 + slow_s
        may_s = self.left_s() - self.held_s
        if wall_s > may_s:
            self.now_s += max(may_s, 0.0)
            code = TrialFailure.TIME_RESERVED if self.held_s else TrialFailure.OUT_OF_TIME
            return Outcome(failure=because(code), cut=True, timed_out=True)
        if slow_s:
            self._ready.add(compiled)
            self._seen_s = self._compiles_s
        self.now_s += wall_s
        self._walls[names] = wall_s - (1 - READY) * slow_s
        assert found.trial is not None
        return replace(
            found, trial=replace(found.trial, compile_s=slow_s, device="cuda"), wall_s=wall_s
        )

    def _now_ms(self, names: frozenset[str]) -> float:
        return self.step_ms(names) * self._grown(self._factor)

    def left_s(self) -> float:
        return self._budget_s - self.now_s

    def cost_s(self, fixes: tuple[Asked, ...]) -> float:
        names = frozenset(one.fix for one in fixes)
        guess = self._walls.get(frozenset(), 0.0) + compiling_s(fixes, self._seen_s)
        return self._walls.get(names, guess)
