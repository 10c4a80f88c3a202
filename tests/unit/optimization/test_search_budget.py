"""The search against a clock, with the real catalogue: programs as they were measured on an H200,
each with the steps and the waits it has there."""

import pytest
from msgspec.structs import replace

from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.agenda import SearchSettings
from ridgeline.optimization.candidates import Candidate, candidates
from ridgeline.optimization.ladder import Ladder
from ridgeline.records.facts import because
from ridgeline.records.finding import Finding
from ridgeline.records.ground import Ground
from ridgeline.records.optimized import Optimized, SearchCode
from ridgeline.records.reason_codes import Skip
from ridgeline.records.run import LoaderSeen, ModuleSeen, OptimizerSeen
from ridgeline.records.trial import Asked, TrialFailure
from tests.unit.optimization.clocked_bench import ClockedBench
from tests.unit.optimization.fake_bench import FakeBench, candidate, times

H200 = Ground(device="cuda", capability=(9, 0), cores=16, processors=16, torch=(2, 11))
GPT2 = replace(
    H200, modules=(ModuleSeen(name="GPT2", dtypes=("float32",)),), busy=0.99, products_share=0.72,
    optimizers=(OptimizerSeen(name="AdamW"),), odd_widths=True, optimizer_share=0.02,
    loss_share=0.012,
    findings=("tf32-off", "written-attention"),
)  # fmt: skip
FOUND = (
    Finding(rule="tf32-off", claim="", gain_bound=3.16),
    Finding(rule="written-attention", claim="", gain_bound=1.34),
)
RESNET = replace(
    H200, modules=(ModuleSeen(name="ResNet", dtypes=("float32",)),), busy=0.64, convolutions=True,
    optimizers=(OptimizerSeen(name="SGD"),), products_share=0.25, overhead_share=0.5,
    loaders=(LoaderSeen(workers=4, batch_size=32, pin_memory=True, length=4_000),),
)  # fmt: skip
COMPILERS = {"compile", "compile-reduce-overhead", "compile-max-autotune"}


def gpt2_ms(on: frozenset[str]) -> float:
    """193 plain, 77.5 with autocast, 42.1 with fused attention besides, 31 padded, 23 compiled and
    with the fused update, 24 without the padding, 20.5 with the fused loss, as measured; the rest
    is made up to fit these."""
    half, compiled = "autocast" in on, bool(on & COMPILERS)
    products = 25.0 if half else 40.0 if "tf32" in on else 121.0
    if half and (compiled or "padded-vocabulary" in on):
        products = 13.9 if "padded-vocabulary" in on else 14.9
    attention = 9.0 if compiled else 39.4 if half else 45.0
    if "sdpa" in on:
        attention = 12.0 if not half else 2.5 if compiled else 4.0
    rest = 3.6 if compiled and half else 8.1 if compiled or half else 22.0
    update = 3.0 if compiled and "fused-optimizer" in on else 5.0
    fused = "fused-cross-entropy" in on
    return products + attention + rest + update - fused * (2.5 if half else 0.9)


def resnet_ms(on: frozenset[str]) -> float:
    """Bound by launches; with those gone, by its four loader workers."""
    half, graph = "autocast" in on, bool(on & (COMPILERS - {"compile"}))
    device = 10.5 if half and "channels-last" in on else 13.0 if half else 22.0
    device *= 0.72 if on & COMPILERS else 1.0
    host = 7.0 if graph else 14.0 if "compile" in on else 33.0 if half else 30.9
    input_ms = 3.1 if "loader-workers" in on else 12.5
    return max(device, host, input_ms)


def climbed(bench: ClockedBench, ground: Ground, found: tuple[Finding, ...] = ()) -> Optimized:
    def ask(kept: tuple[Asked, ...]) -> list[Candidate]:
        share = ground.input_share
        on = frozenset(one.fix for one in kept)
        if ground.loaders and bench.step_ms(on) == 12.5:  # it waits for input, a part of the time
            share = 0.3 / ladder.search.gained
        return candidates(replace(ground, input_share=share), found, kept=kept)

    ladder = Ladder(bench, ask)  # type: ignore[arg-type]
    return ladder.climb("train.py")


def kept(found: Optimized) -> set[str]:
    return {rung.fix for rung in found.rungs if rung.status == "kept"}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("begins_s", [8.0, 11.0, 13.0])
@pytest.mark.parametrize("budget_s", [300, 330, 360, 390, 420, 480, 540, 600])
def test_gpt2_reaches_what_a_specialist_does(budget_s: float, begins_s: float, seed: int) -> None:
    """On fast and on slow hosts: a trial takes 12 to 20 s. From six minutes on, what the specialist
    did not do as well."""
    bench = ClockedBench(gpt2_ms, budget_s, seed=seed, spent_s=28, begins_s=begins_s)
    found = climbed(bench, GPT2, FOUND)
    assert {"autocast", "compile", "sdpa", "fused-optimizer"} <= kept(found)
    assert found.total is not None
    assert found.total.confirmed
    assert bench.step_ms(frozenset(kept(found))) <= (24.06 if budget_s < 360 else 21.0)
    assert bench.now_s <= budget_s


@pytest.mark.parametrize("seed", range(4))
def test_resnet_loses_its_launches_and_then_its_wait_for_input(seed: int) -> None:
    bench = ClockedBench(resnet_ms, 540, seed=seed, spread=0.06, spent_s=32)
    found = climbed(bench, RESNET)
    assert {"compile-reduce-overhead", "autocast", "channels-last", "loader-workers"} <= kept(found)
    assert found.total is not None
    assert found.total.confirmed
    assert bench.now_s <= 540


@pytest.mark.parametrize("budget_s", [90, 120, 180, 240])
def test_a_short_budget_has_an_answer_and_is_kept(budget_s: float) -> None:
    bench = ClockedBench(gpt2_ms, budget_s, spent_s=32)
    found = climbed(bench, GPT2, FOUND)
    assert bench.now_s <= budget_s
    assert found.total is None or found.total.ratio.value > 2


def test_a_budget_too_short_for_the_baseline_is_the_answer() -> None:
    bench = ClockedBench(gpt2_ms, 40, spent_s=32)
    found = climbed(bench, GPT2, FOUND)
    assert bench.now_s <= 40
    assert found.total is None
    assert found.stopped == because(SearchCode.NO_BASELINE_TIME)


def test_what_promises_most_is_not_put_off_for_a_compiler() -> None:
    """Workers for a starved loader are not among what is usual beside one."""
    ground = replace(GPT2, loaders=(LoaderSeen(workers=0, batch_size=8, length=100),))
    starved = (*FOUND, Finding(rule="loader-starves", claim="", gain_bound=30.0))

    def step_ms(on: frozenset[str]) -> float:
        return 30.0 if "loader-workers" in on else 600.0

    bench = ClockedBench(step_ms, 400, begins_s=5, spent_s=32)
    found = climbed(bench, replace(ground, input_share=0.95), starved)
    assert "loader-workers" in next(names for names in bench.ran if names)
    assert "loader-workers" in kept(found)


def test_what_found_nothing_to_change_is_asked_again_once_its_partner_is_kept() -> None:
    def speed(names: frozenset[str]) -> float:
        return (2.0 if "half" in names else 1.0) * (1.3 if {"half", "pad"} <= names else 1.0)

    class Bench(FakeBench):
        def trial(self, fixes: tuple[Asked, ...], **told: object) -> Outcome:  # type: ignore[override]
            half = any(one.fix == "half" for one in fixes)
            self.missing = {} if half else {"pad": because(Skip.NO_16_BIT_PRODUCTS)}
            return super().trial(fixes, **told)  # type: ignore[arg-type]

    asked = (candidate("pad", together=("half",)), candidate("half"))
    found = Ladder(Bench(speed), asked, SearchSettings()).climb("train.py")
    assert kept(found) == {"half", "pad"}


class Ends(FakeBench):
    """The budget ends the first trial of `change`, or its second."""

    def __init__(self, fix: str, trials: int) -> None:
        super().__init__(lambda names: 1.3 if fix in names else 1.0)
        self._change = fix
        self._may = trials

    def trial(self, fixes: tuple[Asked, ...], **told: object) -> Outcome:  # type: ignore[override]
        if any(one.fix == self._change for one in fixes):
            self._may -= 1
            if self._may < 0:
                return Outcome(failure=because(TrialFailure.OUT_OF_TIME), cut=True, timed_out=True)
        return super().trial(fixes, **told)  # type: ignore[arg-type]


def test_what_the_budget_ended_was_not_tried() -> None:
    found = Ladder(Ends("a", 0), [candidate("a")]).climb("train.py")
    assert [(rung.status, rung.reason.code) for rung in found.rungs] == [
        ("not tried", TrialFailure.OUT_OF_TIME)
    ]
    assert found.stopped == because(SearchCode.OUT_OF_TIME)


def test_a_pair_the_budget_ended_does_not_take_away_those_before_it() -> None:
    found = Ladder(Ends("a", 1), [candidate("a")]).climb("train.py")
    assert found.rungs[0].status == "rejected"
    assert found.rungs[0].ratio is not None
    assert found.rungs[0].ratio.pairs == 1


@pytest.mark.parametrize(
    ("faster", "trials", "pairs"), [(2.0, 6, 1), (2.0, 12, 2), (1.15, 10, 2), (1.15, 12, 2)]
)
def test_where_time_is_over_one_decisive_pair_confirms(
    faster: float, trials: int, pairs: int
) -> None:
    """With time for six trials there is some for half of the two pairs that usually confirm; what
    gains less takes more pairs, and they have to fit."""
    found = Ladder(FakeBench(times(a=faster), trials=trials), [candidate("a")]).climb("train.py")
    assert found.total is not None
    assert found.total.confirmed
    assert found.total.ratio.pairs == pairs


@pytest.mark.parametrize("trials", range(5, 16))
def test_however_the_time_runs_out_the_search_ends(trials: int) -> None:
    """What found nothing to change is asked again once, also where no time is left for it."""

    bench = FakeBench(lambda names: 1.6 if "half" in names else 1.0, trials=trials)
    bench.missing = {"pad": because(Skip.NO_16_BIT_PRODUCTS)}
    asked = (candidate("pad", together=("half",)), candidate("half"), candidate("other"))
    found = Ladder(bench, asked).climb("train.py")
    assert {rung.fix for rung in found.rungs} == {"pad", "half", "other"}
    assert sum("pad" in names and "half" in names for names in bench.ran) <= 2


def test_only_one_compiler_is_tried_before_what_is_quick() -> None:
    made = [
        candidate("quick"),
        candidate("compile", slot="compile", slow_start=True),
        candidate("regional", slot="compile", slow_start=True),
    ]
    bench = FakeBench(lambda names: 1.6 if "quick" in names else 1.0, trials=13)
    found = Ladder(bench, made).climb("train.py")
    tried = [sorted(names)[-1] for names in bench.ran if names]
    assert "regional" not in tried[: tried.index("quick")]
    assert kept(found) == {"quick"}


def test_what_the_noise_would_hide_is_not_tried() -> None:
    noisy = FakeBench(lambda names: 1.0, spread=0.2, seed=3)
    asked = (candidate("small", bound=1.05), candidate("large", bound=3.0))
    found = Ladder(noisy, asked).climb("train.py")
    codes = {rung.fix: rung.reason.code for rung in found.rungs}
    assert codes["small"] == SearchCode.BOUND_WITHIN_NOISE
    assert "large" in {name for names in noisy.ran for name in names}


def test_halves_of_a_pair_are_of_one_call() -> None:
    """The machine was twice as slow when the earlier call ran."""

    class Later(FakeBench):
        def trial(self, fixes: tuple[Asked, ...], **told: object) -> Outcome:  # type: ignore[override]
            old = bool(fixes) and not told.get("fresh") and len(self.ran) < 6
            old = old or len(self.ran) < 2
            self._speed = lambda names: 0.5 if old else 1.0
            return replace(super().trial(fixes, **told), remembered=old)  # type: ignore[arg-type]

    found = Ladder(Later(lambda names: 1.0), [candidate("a")]).climb("train.py")
    ratio = found.rungs[0].ratio
    assert ratio is not None
    assert ratio.value == pytest.approx(1, rel=0.05)


def test_time_is_held_back_for_a_larger_batch() -> None:
    """Many changes that bring a little would take it all."""
    made = [candidate(name) for name in "abcdefghijklmnopqrstuvwxyz"]
    batch = candidate("larger-batch", alters="semantics")
    batch = replace(batch, options={"factor": "2"})
    bench = FakeBench(
        lambda names: 1.03 ** len(names) * (1.5 if "a" in names else 1.0), spread=0.005, trials=40
    )
    found = Ladder(bench, [*made, batch], SearchSettings(batch=True)).climb("train.py")
    assert found.stopped == because(SearchCode.OUT_OF_TIME)
    assert found.total is not None
    assert found.with_batch is not None


STARVED = replace(
    H200, modules=(ModuleSeen(name="Net", dtypes=("float32",)),), busy=0.1, products_share=0.05,
    optimizers=(OptimizerSeen(name="SGD"),), input_share=0.9,
    loaders=(LoaderSeen(workers=0, batch_size=32, length=4_000),),
)  # fmt: skip


def starved_ms(on: frozenset[str]) -> float:
    return 20.0 if "loader-workers" in on else 200.0


def test_where_time_is_short_what_rounding_does_is_asked_when_a_change_rounds() -> None:
    """Workers alter nothing: the first answer does not wait for parameters moved by rounding."""
    found = (Finding(rule="loader-starves", claim="", gain_bound=9.0),)
    short, ample = (ClockedBench(starved_ms, budget_s) for budget_s in (120.0, 1_200.0))
    assert "loader-workers" in kept(climbed(short, STARVED, found))
    assert short.ran.index(frozenset({"loader-workers"})) == 2
    climbed(ample, STARVED, found)
    assert ample.ran.index(frozenset({"loader-workers"})) == 5
    # What rounds is judged beside what rounding alone does, in either.
    for bench in (short, ample):
        rounds = [at for at, on in enumerate(bench.ran) if on & {"tf32", "autocast", "compile"}]
        moved = [at for at, jitter in enumerate(bench.jitters) if jitter]
        assert not rounds or len(moved) == 2
    assert [jitter > 0 for jitter in short.jitters[:3]] == [False] * 3
