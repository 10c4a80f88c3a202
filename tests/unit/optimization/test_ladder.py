"""Which changes are kept, and why the others are not."""

from math import prod

import pytest

from ridgeline.optimization.ladder import Candidate, Ladder
from ridgeline.records.optimized import Optimized
from ridgeline.records.trial import Asked
from ridgeline.trials.arm import Outcome
from tests.unit.optimization.fake_bench import FakeBench, Speed, candidate


def times(**factors: float) -> Speed:
    """Independent changes."""
    return lambda names: prod(factors.get(name, 1.0) for name in names)


def climbed(bench: FakeBench, *candidates: Candidate, keep_exact: bool = False) -> Optimized:
    return Ladder(bench, candidates, keep_exact=keep_exact).climb("train.py")


def statuses(found: Optimized) -> dict[str, str]:
    return {rung.change: rung.status for rung in found.rungs}


def test_what_is_faster_and_equal_is_kept_and_confirmed_as_a_whole() -> None:
    bench = FakeBench(times(a=1.5, b=1.2, c=0.8, d=1.0))
    found = climbed(bench, *map(candidate, "abcd"))
    assert statuses(found) == {"a": "kept", "b": "kept", "c": "rejected", "d": "rejected"}
    assert found.total is not None
    assert found.total.ratio.value == pytest.approx(1.8, rel=0.05)
    assert found.total.parity.equality == "equal"
    assert found.total.after_ms == pytest.approx(100 / 1.8, rel=0.05)


def test_a_hopeless_one_is_tried_once() -> None:
    bench = FakeBench(times(c=0.3))
    found = climbed(bench, candidate("c"))
    assert sum("c" in names for names in bench.ran) == 1
    assert "slower" in found.rungs[0].why


def test_one_that_pays_only_with_another_is_tried_with_it() -> None:
    def speed(names: frozenset[str]) -> float:
        return 2.0 if {"layout", "half"} <= names else 0.97 if names else 1.0

    found = climbed(FakeBench(speed), candidate("half", together=("layout",)), candidate("layout"))
    assert statuses(found) == {"half": "kept", "layout": "kept"}
    assert found.rungs[0].together == ("layout",)


def test_a_second_chance_once_the_bottleneck_has_moved() -> None:
    def speed(names: frozenset[str]) -> float:
        compiled = 1.5 if "compile" in names else 1.0
        return compiled * (1.6 if {"half", "compile"} <= names else 1.0)

    found = climbed(FakeBench(speed), candidate("half"), candidate("compile", slot="compile"))
    assert statuses(found) == {"half": "kept", "compile": "kept"}
    assert found.total is not None
    assert found.total.ratio.value == pytest.approx(2.4, rel=0.05)


def test_what_no_longer_pays_beside_the_others_is_dropped() -> None:
    def speed(names: frozenset[str]) -> float:
        return 2.0 if "b" in names else 1.2 if "a" in names else 1.0

    found = climbed(FakeBench(speed), candidate("a"), candidate("b"))
    assert statuses(found) == {"a": "dropped", "b": "kept"}
    assert "no longer of use" in found.rungs[0].why


def test_of_one_slot_the_faster_stays() -> None:
    found = climbed(
        FakeBench(lambda names: 1.5 if "graphs" in names else 1.2 if "plain" in names else 1.0),
        candidate("plain", slot="compile"), candidate("graphs", slot="compile"),
    )  # fmt: skip
    assert statuses(found) == {"plain": "dropped", "graphs": "kept"}
    assert found.rungs[0].why == "GRAPHS is faster"


@pytest.mark.parametrize("how", ["skips", "moves"])
def test_faster_by_doing_less_is_rejected(how: str) -> None:
    bench = FakeBench(times(a=3.0))
    getattr(bench, how).add("a")
    found = climbed(bench, candidate("a"))
    assert statuses(found) == {"a": "rejected"}
    parity = found.rungs[0].parity
    assert parity is not None
    assert parity.equality == "differs"
    assert found.total is None


def test_what_finds_nothing_to_change_is_not_applied_and_never_equal() -> None:
    bench = FakeBench(times(a=1.0))
    bench.missing["a"] = "the program made no DataLoader"
    found = climbed(bench, candidate("a"))
    assert statuses(found) == {"a": "not applied"}
    assert found.rungs[0].why == "the program made no DataLoader"


def test_what_cannot_win_is_not_tried() -> None:
    bench = FakeBench(times(a=3.0, b=3.0))
    found = climbed(
        bench, candidate("a", unable="bfloat16 is emulated"), candidate("b", bound=1.01)
    )
    assert statuses(found) == {"a": "not tried", "b": "not tried"}
    assert [rung.why for rung in found.rungs] == ["bfloat16 is emulated", "at most 1.01 × to gain"]
    assert set(bench.ran) == {frozenset()}


def test_exact_results_forbid_all_that_may_round() -> None:
    found = climbed(
        FakeBench(times(a=2.0, b=2.0)), candidate("a"), candidate("b", alters="nothing"),
        keep_exact=True,
    )  # fmt: skip
    assert statuses(found) == {"a": "not tried", "b": "kept"}
    assert found.rungs[0].why == "it alters rounding"


def test_one_that_fails_is_rejected_with_its_own_words() -> None:
    bench = FakeBench(times(a=2.0, b=1.5))
    bench.fails["a"] = "RuntimeError: no kernel"
    found = climbed(bench, candidate("a"), candidate("b"))
    assert statuses(found) == {"a": "rejected", "b": "kept"}
    assert found.rungs[0].why == "RuntimeError: no kernel"


def test_the_time_may_be_over_at_any_moment() -> None:
    for trials in range(4, 30):
        found = climbed(FakeBench(times(a=1.5, b=1.5), trials=trials), *map(candidate, "ab"))
        told = statuses(found)
        assert set(told) == {"a", "b"}
        if "not tried" in told.values():
            assert found.stopped == "the time was over"


def test_when_compiling_has_paid_is_told() -> None:
    bench = FakeBench(times(compile=2.0))
    bench.compiles["compile"] = 30.0
    found = climbed(bench, candidate("compile", slot="compile"))
    assert found.rungs[0].pays_after == pytest.approx(600, rel=0.05)  # 50 ms a step


def test_a_program_that_cannot_be_timed_says_so() -> None:
    class Broken(FakeBench):
        def trial(
            self, changes: tuple[Asked, ...], *, jitter: float = 0.0, same_random: bool = False
        ) -> Outcome:
            return Outcome(failed="ModuleNotFoundError: No module named 'data'")

    found = climbed(Broken(times()), candidate("a"))
    assert found.stopped == "the program as it is: ModuleNotFoundError: No module named 'data'"
    assert not found.rungs


def test_equal_changes_are_seldom_kept() -> None:
    kept = 0
    for seed in range(60):
        found = climbed(FakeBench(times(), spread=0.03, seed=seed), *map(candidate, "abc"))
        kept += sum(status == "kept" for status in statuses(found).values())
    assert kept <= 12  # of 180; the level is 2.5 % each


def test_an_interrupt_loses_nothing_that_is_known() -> None:
    class Interrupted(FakeBench):
        def trial(
            self, changes: tuple[Asked, ...], *, jitter: float = 0.0, same_random: bool = False
        ) -> Outcome:
            if any(one.change == "b" for one in changes):
                raise KeyboardInterrupt
            return super().trial(changes, jitter=jitter, same_random=same_random)

    found = climbed(Interrupted(times(a=1.5)), *map(candidate, "ab"))
    assert statuses(found) == {"a": "kept"}
    assert found.stopped == "interrupted"
