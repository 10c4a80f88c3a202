"""The search with the batch size free, against a clock: ResNet-50 as it was measured on an H200,
on one batch kept on the device."""

from typing import Any

import pytest

from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.agenda import SearchSettings
from ridgeline.optimization.candidates import candidates
from ridgeline.optimization.ladder import Ladder
from ridgeline.records.facts import because
from ridgeline.records.ground import Ground
from ridgeline.records.optimized import Optimized
from ridgeline.records.run import LoaderSeen, ModuleSeen, OptimizerSeen
from ridgeline.records.trial import Asked, TrialFailure
from tests.unit.optimization.clocked_bench import ClockedBench

RESIDENT = Ground(
    device="cuda", capability=(9, 0), cores=16, processors=16, torch=(2, 11), busy=0.63,
    modules=(ModuleSeen(name="ResNet", dtypes=("float32",)),), convolutions=True,
    optimizers=(OptimizerSeen(name="SGD"),), products_share=0.3, overhead_share=0.37,
    loaders=(LoaderSeen(workers=0, batch_size=32, length=8_000),), copies=0,
)  # fmt: skip
GRAPHS = {"compile-reduce-overhead", "compile-max-autotune"}
GROWN = {1: 1.0, 2: 1.7, 4: 3.1, 8: 5.8, 16: 11.4, 32: 22.6}
"""4,700 samples/s, then 5,500, 6,100, 6,520, 6,630, 6,690."""


def resident_ms(on: frozenset[str]) -> float:
    """20.6 plain and 11.3 with graphs, bound by launches and then by float32; 6.8 with all."""
    half = "autocast" in on
    device = 5.6 if half and "channels-last" in on else 8.0 if half else 10.0
    device += 1.2 if "fused-optimizer" in on else 1.5
    return max(device, 3.0 if on & GRAPHS else 13.0 if "compile" in on else 20.6)


def climbed(bench: ClockedBench) -> Optimized:
    ladder = Ladder(
        bench,  # type: ignore[arg-type]
        lambda kept: candidates(RESIDENT, (), kept=kept),
        SearchSettings(batch=True),
    )
    return ladder.climb("train.py")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("begins_s", [8.0, 12.0])
@pytest.mark.parametrize("budget_s", [480, 600])
def test_resnet_reaches_what_a_specialist_does(budget_s: float, begins_s: float, seed: int) -> None:
    bench = ClockedBench(
        resident_ms, budget_s, seed=seed, spread=0.03, spent_s=20, begins_s=begins_s,
        compiles_s=44.0, grown=lambda factor: GROWN[factor],
    )  # fmt: skip
    found = climbed(bench)
    assert found.total is not None
    assert found.total.confirmed
    kept = frozenset(rung.fix for rung in found.rungs if rung.status == "kept")
    assert bench.step_ms(kept) < 7.2
    assert found.with_batch is not None
    assert found.with_batch.confirmed
    factor = max(bench.factors)
    assert 32e3 * factor / (6.8 * GROWN[factor]) > 6_400
    assert bench.now_s <= budget_s + 25


class Small(ClockedBench):
    """Four times the batch is the largest that fits."""

    def trial(self, fixes: tuple[Asked, ...], **told: Any) -> Outcome:
        if any(int(one.options.get("factor", 1)) > 4 for one in fixes):
            self.now_s += 15
            return Outcome(
                failure=because(
                    TrialFailure.RAISED, error="torch.OutOfMemoryError: CUDA out of memory."
                )
            )
        return super().trial(fixes, **told)


def test_where_a_large_batch_does_not_fit_the_next_smaller_one_is_tried() -> None:
    bench = Small(
        resident_ms, 480, spread=0.03, spent_s=20, begins_s=10, compiles_s=44.0,
        grown=lambda factor: GROWN[factor],
    )  # fmt: skip
    found = climbed(bench)
    told = {r.options["factor"]: r.status for r in found.rungs if r.fix == "larger-batch"}
    assert told == {"8": "rejected", "4": "kept"}
    assert found.with_batch is not None
    assert found.with_batch.confirmed


def test_with_time_for_each_the_batch_is_doubled() -> None:
    bench = ClockedBench(
        resident_ms, 1_800, spread=0.01, spent_s=20, begins_s=8, compiles_s=20.0,
        grown=lambda factor: GROWN[factor],
    )  # fmt: skip
    found = climbed(bench)
    assert {2, 4, 8} <= set(bench.factors)
    assert found.with_batch is not None
