"""What is put on with a compiler, and what becomes of it."""

import pytest

from ridgeline.records.facts import because
from ridgeline.records.optimized import SearchCode
from ridgeline.records.reason_codes import Skip
from tests.unit.optimization.fake_bench import FakeBench, candidate, climbed, statuses, times


def test_fixes_that_did_not_pay_alone_are_tried_with_the_compiler_and_left_out_again() -> None:
    """A launch-bound program: precision and layout pay only once the launches are gone."""

    def speed(names: frozenset[str]) -> float:
        if "graphs" not in names:
            return 1.0 - 0.04 * len(names)
        return 2.0 * (1.3 if "half" in names else 1.0)

    found = climbed(
        FakeBench(speed),
        candidate("half", slot="precision", usual=True),
        candidate("layout", slot="layout", usual=True),
        candidate("graphs", slot="compile", slow_start=True),
    )
    assert statuses(found) == {"half": "kept", "layout": "dropped", "graphs": "kept"}
    half = next(rung for rung in found.rungs if rung.fix == "half")
    assert half.without is not None
    assert half.without.value == pytest.approx(1.3, rel=0.05)
    assert found.total is not None
    assert found.total.ratio.value == pytest.approx(2.6, rel=0.05)


def test_where_they_fail_together_the_compiler_is_tried_alone() -> None:
    def speed(names: frozenset[str]) -> float:
        if names >= {"graphs", "layout"}:
            return 0.9
        return 2.0 if "graphs" in names else 0.97 if names else 1.0

    found = climbed(
        FakeBench(speed), candidate("layout"), candidate("graphs", slot="compile", slow_start=True)
    )
    assert statuses(found)["graphs"] == "kept"
    assert statuses(found)["layout"] == "rejected"
    (graphs,) = (rung for rung in found.rungs if rung.fix == "graphs")
    assert graphs.earlier is not None
    assert graphs.earlier.together == ("LAYOUT",)  # and is not lost


def test_dropout_that_drops_others_is_compared_as_it_drew_before() -> None:
    bench = FakeBench(times(compile=2.0))
    bench.drops.add("compile")
    found = climbed(bench, candidate("compile", slot="compile"))
    assert statuses(found) == {"compile": "kept"}
    assert found.total is not None
    assert found.total.parity.equality == "equal"


def test_what_draws_no_random_numbers_is_not_compiled_again_to_draw_alike() -> None:
    """Results that differ without dropout differ."""
    bench = FakeBench(times(compile=2.0))
    bench.moves.add("compile")
    bench.draws = False
    found = climbed(bench, candidate("compile", slot="compile"))
    assert statuses(found) == {"compile": "rejected"}
    assert bench.ran.count(frozenset({"compile"})) == 1


def test_a_launch_bound_program_gets_all_usual_fixes_at_once() -> None:
    """Graphs come first there: one trial has them all, and what does not apply is left."""

    def speed(names: frozenset[str]) -> float:
        if "graphs" not in names:
            return 1.0
        return 2.0 * (1.4 if "half" in names else 1.0) * (1.1 if "layout" in names else 1.0)

    bench = FakeBench(speed)
    bench.missing["fused"] = because(Skip.ALREADY_FUSED)
    found = climbed(
        bench,
        candidate("graphs", slot="compile", slow_start=True),
        candidate("half", slot="precision", usual=True),
        candidate("layout", slot="layout", usual=True),
        candidate("fused", usual=True),
        candidate("odd"),
    )
    first = next(names for names in bench.ran if names)
    assert first == frozenset({"graphs", "half", "layout", "fused"})
    told = statuses(found)
    assert told.pop("odd") == "rejected"
    assert told == {"graphs": "kept", "half": "kept", "layout": "kept", "fused": "not applied"}
    assert found.total is not None
    assert found.total.ratio.value == pytest.approx(3.08, rel=0.05)


def test_where_all_that_is_usual_makes_other_results_the_lower_precision_is_left_out_first() -> (
    None
):
    bench = FakeBench(times(graphs=2.0, layout=1.3, half=1.5))
    bench.moves.add("half")
    found = climbed(
        bench,
        candidate("graphs", slot="compile", slow_start=True),
        candidate("half", slot="precision", usual=True, precision="bfloat16"),
        candidate("layout", slot="layout", usual=True),
    )
    tried = list(dict.fromkeys(names for names in bench.ran if names))
    assert tried[:2] == [{"graphs", "half", "layout"}, {"graphs", "layout"}]
    assert statuses(found) == {"graphs": "kept", "layout": "kept", "half": "rejected"}


def test_what_was_only_tried_with_others_says_what_became_of_them() -> None:
    """There was no time to try it alone."""
    bench = FakeBench(times(graphs=2.0, half=1.5), trials=11)
    bench.moves.add("half")
    one = candidate("graphs", slot="compile", slow_start=True)
    found = climbed(bench, one, candidate("half", slot="precision", usual=True))
    assert frozenset({"half"}) not in bench.ran
    (half,) = [rung for rung in found.rungs if rung.fix == "half"]
    assert half.status == "not tried"
    assert half.earlier is not None
    assert half.earlier.together == ("GRAPHS",)
    assert half.earlier.reason.code == SearchCode.RESULTS_DIFFER


def test_what_is_usual_and_may_gain_little_goes_with_the_compiler() -> None:
    """Alone it takes many pairs to tell from nothing."""
    bench = FakeBench(times(graphs=2.0, update=1.05, half=1.5))
    found = climbed(
        bench,
        candidate("half", usual=True, bound=4.0),
        candidate("update", usual=True, bound=1.06),
        candidate("tf32", usual=True, bound=5.0, little_beside=("half",)),
        candidate("odd", bound=1.06),
        candidate("graphs", slot="compile", slow_start=True),
    )
    tried = list(dict.fromkeys(names for names in bench.ran if names))
    assert tried[:2] == [{"half"}, {"half", "odd"}]
    assert tried[2] == {"half", "graphs", "tf32", "update", "odd"}
    told = statuses(found)
    assert {told[name] for name in ("half", "graphs", "update")} == {"kept"}
    assert told["tf32"] == "dropped", "left out once in the end"


def test_what_would_go_with_a_compiler_that_cannot_compile_is_tried_alone() -> None:
    bench = FakeBench(times(update=1.2))
    bench.fails["graphs"] = "CompilationError: no"
    found = climbed(
        bench,
        candidate("update", usual=True, bound=1.2),
        candidate("graphs", slot="compile", slow_start=True),
    )
    assert statuses(found) == {"graphs": "rejected", "update": "kept"}
