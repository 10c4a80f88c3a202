"""How often a comparison lies, and what it finds: the figures the tool answers for.

Simulated on AR(1) noise of 0.45 with drift, seeds fixed. A test fails where the promised figure is
missed by more than so many runs may miss it by chance (1.64 standard errors); the figures rest on
larger simulations, 1,500 runs each on seeds that decided nothing: over 60 rounds at sigma 0.10
identical code was called different in 4.9 % (looks included), a 5 % effect in 93.3 %.
"""

import math
from functools import lru_cache

import numpy as np
import pytest
from msgspec import Struct

from ridgeline.records.comparison import OrderEffect
from ridgeline.statistics.analysis import RoundTable, analyse
from ridgeline.statistics.significance import plan_looks, welch_p_value
from ridgeline.statistics.simulation import sequential_samples, simulated_rounds

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _no_order_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """It enters no verdict and would double the time."""
    nothing = OrderEffect(share=0.0, significant=False)
    monkeypatch.setattr("ridgeline.statistics.analysis.order_effect", lambda *_, **__: nothing)


class Setting(Struct, frozen=True, kw_only=True):
    rounds: int = 60
    effect: float = 1.0
    sigma: float = 0.10
    stalls: float = 0.0
    candidates: int = 1
    looks: bool = False
    runs: int = 300


class Shares(Struct, frozen=True):
    called: float
    """Runs in which a candidate was called FASTER or SLOWER."""
    wrong_way: float
    left_out_one: float
    """Runs in which an interval left out 1, whatever the verdict."""
    covered: float


@lru_cache
def shares(setting: Setting) -> Shares:
    variants = 2 + setting.candidates
    effects = [1.0, 1.0] + [setting.effect] * setting.candidates
    looks = plan_looks(setting.rounds)
    counted = np.zeros(4)
    for seed in range(setting.runs):
        table = simulated_rounds(
            setting.rounds,
            variants,
            effects=effects,
            sigma=setting.sigma,
            stalls=setting.stalls,
            seed=1000 + seed,
        )
        plan = zip(looks.rounds, looks.alphas, strict=True) if setting.looks else [(10**9, 0.05)]
        for rounds, alpha in plan:
            seen = RoundTable(samples=table.samples[:rounds], positions=table.positions[:rounds])
            found = analyse(seen, alpha=alpha, threshold=0.02, seed=seed)
            if "UNDECIDED" not in found.verdicts:
                break
        wrong = "FASTER" if setting.effect > 1 else "SLOWER"
        counted += (
            bool({"FASTER", "SLOWER"} & set(found.verdicts)),
            setting.effect != 1 and wrong in found.verdicts,
            any(one.ci_low > 1 or one.ci_high < 1 for one in found.estimates),
            all(one.ci_low <= 1 / setting.effect <= one.ci_high for one in found.estimates),
        )
    return Shares(*(counted / setting.runs).tolist())


def at_most(promised: float, runs: int) -> float:
    return promised + 1.64 * math.sqrt(promised * (1 - promised) / runs)


@pytest.mark.parametrize(("sigma", "stalls"), [(0.05, 0.0), (0.10, 0.0), (0.10, 0.10)])
def test_identical_code_is_called_different_in_six_percent_at_most(
    sigma: float, stalls: float
) -> None:
    found = shares(Setting(sigma=sigma, stalls=stalls, looks=True))
    assert found.called <= at_most(0.06, 300)
    assert found.left_out_one <= at_most(0.06, 300)


@pytest.mark.parametrize(
    ("rounds", "runs"), [(8, 400), (15, 400), (30, 400), (60, 400), (200, 150)]
)
def test_intervals_of_identical_code_exclude_one_in_six_percent_at_most(
    rounds: int, runs: int
) -> None:
    found = shares(Setting(rounds=rounds, runs=runs))
    assert found.left_out_one <= at_most(0.06, runs)
    assert found.covered >= 1 - at_most(0.06, runs)


@pytest.mark.parametrize("looks", [False, True])
def test_an_effect_of_five_percent_is_found_in_sixty_rounds(looks: bool) -> None:
    found = shares(Setting(effect=1.05, looks=looks))
    assert found.called >= 0.90
    assert found.wrong_way == 0.0
    assert found.covered >= 1 - at_most(0.06, 300)


def test_less_noise_finds_it_nearly_always() -> None:
    assert shares(Setting(effect=1 / 1.05, sigma=0.05, looks=True, runs=150)).called >= 0.98


def test_stalls_lower_the_power_but_not_the_error_rate() -> None:
    found = shares(Setting(effect=1.10, stalls=0.10, runs=200))
    assert found.called >= 0.90
    assert found.covered >= 1 - at_most(0.06, 200)


def test_five_equal_candidates_are_no_more_often_called_different() -> None:
    found = shares(Setting(candidates=5, runs=200))
    assert found.called <= at_most(0.06, 200)
    assert found.left_out_one <= at_most(0.06, 200)


def test_welch_on_one_variant_after_the_other_is_wrong_in_most_runs() -> None:
    called = sum(welch_p_value(*sequential_samples(60, seed=seed)) < 0.05 for seed in range(300))
    assert called / 300 >= 0.40
