"""A bench without processes: each set of changes has a speed, a spread and what it computes."""

import math
import random
from collections.abc import Callable, Sequence
from math import prod

from msgspec.structs import replace

from ridgeline.fixes.fix import Fix
from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.agenda import SearchSettings
from ridgeline.optimization.candidates import Candidate
from ridgeline.optimization.ladder import Ladder
from ridgeline.records.facts import Reason, because
from ridgeline.records.optimized import Optimized
from ridgeline.records.trial import (
    Applied,
    Asked,
    Draws,
    NotApplied,
    TensorPrint,
    Trial,
    TrialFailure,
    WatchedStep,
)

COMPILERS = frozenset({"compile", "graphs"})
Speed = Callable[[frozenset[str]], float]


class FakeBench:
    held_s = 0.0
    outdated = None

    def __init__(
        self, speed: Speed, *, spread: float = 0.01, seed: int = 0, trials: int = 10_000
    ) -> None:
        self._speed = speed
        self._spread = spread
        self._rng = random.Random(seed)
        self._left = trials
        self.ran: list[frozenset[str]] = []
        self.jitters: list[float] = []
        """Of each of these."""
        self.skips: set[str] = set()
        """Changes under which the scaler throws updates away."""
        self.moves: set[str] = set()
        """Changes under which losses differ."""
        self.missing: dict[str, Reason] = {}
        """Changes that find nothing to change."""
        self.fails: dict[str, str] = {}
        self.compiles: dict[str, float] = {}
        self.peaks: dict[str, float] = {}
        """Of what a change takes, times the memory of the unchanged program."""
        self.drops: set[str] = set()
        """Changes under which dropout drops others; compiled ones, unless they draw as eager code,
        or it drops none."""
        self.redraws_data: set[str] = set()
        """Compilers under which the loop draws other batches, unless they draw as eager code."""
        self.other_data: set[str] = set()
        """Fixes under which the batches are others, whatever is drawn."""
        self.draws = True
        self.undropped: int | None = 100
        """Elements that dropout is asked for."""
        self.draws_nothing: set[str] = set()
        self.drops_less: set[str] = set()
        self.moves_undropped: set[str] = set()
        """Changes under which losses differ where nothing is dropped."""
        self.asked: list[tuple[frozenset[str], Draws, float]] = []
        self.device = "cpu"
        self.noise = 0.0
        """How far two runs of the baseline lie apart, and a run under fixes from the first."""
        self.joules: float | None = None

    def trial(
        self,
        fixes: tuple[Asked, ...],
        *,
        jitter: float = 0.0,
        draws: Draws = "own",
        fresh: bool = False,
    ) -> Outcome:
        names = frozenset(one.fix for one in fixes)
        self.ran.append(names)
        self.jitters.append(jitter)
        self._left -= 1
        failed = next((why for name, why in self.fails.items() if name in names), "")
        if failed:
            return Outcome(failure=because(TrialFailure.RAISED, error=failed))
        done = names - set(self.missing)
        base = 1e8 / self._speed(done) * math.exp(self._rng.gauss(0, self._spread))
        steps = tuple(round(base * (1 + self._rng.gauss(0, 0.002))) for _ in range(24))
        self.asked.append((names, draws, jitter))
        dropped = draws == "own" or (draws == "eager" and done & self.drops - COMPILERS)
        off = 0.3 if done & self.moves else 1e-7 if jitter or done else 0.0
        if (done & self.drops and dropped) or (done & self.moves_undropped and draws == "none"):
            off = 0.02
        off += self.noise * (len(self.asked) - 1)
        redrawn = bool(done & self.other_data or (draws == "own" and done & self.redraws_data))
        off = 0.02 if redrawn else off
        batch = next((int(c.options.get("factor", 1)) for c in fixes if "batch" in c.fix), 1)
        found = self._computed(names, done, steps, jitter, off, batch, redrawn)
        less = 2 if done & self.drops_less else 1
        undropped = self.undropped // less if self.undropped and draws == "none" else self.undropped
        return Outcome(
            trial=replace(
                found,
                draws=self.draws and not done & self.draws_nothing,
                undropped=undropped if draws == "none" else None,
                device=self.device,
            )
        )

    def _computed(
        self,
        names: frozenset[str],
        done: frozenset[str],
        steps: tuple[int, ...],
        jitter: float,
        off: float,
        batch: int,
        redrawn: bool,
    ) -> Trial:
        watched = tuple(
            WatchedStep(
                loss=(2.0 - 0.05 * i) * (1 + off * (i + 1)), gradient_norm=1.0 + 0.1 * i,
                gradients=4, applied=not (done & self.skips and i % 2), samples=16,
                batch_sum=i * (1.5 if redrawn else 1.0), forwards=1, backwards=1, learning_rate=0.1,
            )
            for i in range(8)
        )  # fmt: skip
        tensor = TensorPrint(name="weight", norm=3.0, projection=1.0, moved=0.5, numel=64)
        return Trial(
            fixes=tuple(names),
            applied=tuple(Applied(fix=name) for name in sorted(done)),
            not_applied=tuple(
                NotApplied(fix=name, reason=self.missing[name]) for name in sorted(names - done)
            ),
            step_ns=steps,
            watched=watched,
            tensors=(tensor,),
            evaluation=(1.0, 2.0),
            peak_bytes=round(1e6 * prod(self.peaks.get(name, 1.0) for name in done)),
            samples=tuple(16 * batch for _ in steps),
            energy_j=None if self.joules is None else self.joules * steps[0] / 1e9,
            compile_s=sum(self.compiles.get(name, 0.0) for name in done),
            jitter=jitter,
        )

    def perturbed(self, jitters: Sequence[float]) -> list[Outcome]:
        return [self.trial((), jitter=jitter) for jitter in jitters]

    def by_itself(self, script: str, like: tuple[Asked, ...]) -> Outcome:
        return self.trial(())

    def left_s(self) -> float:
        return self._left + 0.5

    def cost_s(self, fixes: tuple[Asked, ...]) -> float:
        return 1.0


def candidate(
    name: str, *, bound: float | None = None, unable: Reason | None = None, **told: object
) -> Candidate:
    given: dict[str, object] = {
        "id": name, "group": "model", "title": name.upper(), "alters": "rounding", "why": "",
        "wrong_when": "", **told,
    }  # fmt: skip
    return Candidate(
        fix=Fix(**given),  # type: ignore[arg-type]
        bound=bound, promise=bound or 1.0, unable=unable,
    )  # fmt: skip


def times(**factors: float) -> Speed:
    """Independent changes."""
    return lambda names: prod(factors.get(name, 1.0) for name in names)


def climbed(bench: FakeBench, *candidates: Candidate, keep_exact: bool = False) -> Optimized:
    return Ladder(bench, candidates, SearchSettings(keep_exact=keep_exact)).climb("train.py")


def statuses(found: Optimized) -> dict[str, str]:
    return {rung.fix: rung.status for rung in found.rungs}
