"""Fixes under which other random numbers are drawn: by dropout, and by the whole program."""

import pytest

from ridgeline.optimization.candidates import asked
from ridgeline.optimization.judge import NOT_COMPARED, WITHOUT_DROPOUT, Judge
from ridgeline.optimization.measure import STEP
from ridgeline.records.optimized import Optimized, Rung, SearchCode
from ridgeline.report.reasons import explain
from ridgeline.report.views.optimized_phrases import results_word
from tests.unit.optimization.fake_bench import FakeBench, candidate, climbed, statuses, times

HALF = candidate("half", slot="precision", precision="bfloat16")
FUSED = candidate("fused")


def dropping(*names: str, trials: int = 10_000, **factors: float) -> FakeBench:
    bench = FakeBench(times(**factors), trials=trials)
    bench.drops |= set(names)
    return bench


def rung(found: Optimized, name: str) -> Rung:
    return next(one for one in found.rungs if one.fix == name)


def test_another_type_that_drops_others_is_compared_without_dropout() -> None:
    bench = dropping("half", half=2.0)
    found = climbed(bench, HALF)
    assert statuses(found) == {"half": "kept"}
    parity = rung(found, "half").parity
    assert parity is not None
    assert parity.equality == "equal"
    assert parity.why.endswith(WITHOUT_DROPOUT)
    assert found.total is not None
    assert found.total.parity.equality == "equal"
    assert results_word(found.total.parity) == "equal to rounding"


def test_the_baseline_runs_without_dropout_once_unperturbed_and_once_for_each_perturbation() -> (
    None
):
    bench = dropping("half", "fused", half=2.0, fused=1.5)
    found = climbed(bench, HALF, FUSED)
    assert statuses(found) == {"half": "kept", "fused": "kept"}
    plain = [jitter for names, draws, jitter in bench.asked if not names and draws == "none"]
    assert sorted(plain) == sorted({jitter for _, draws, jitter in bench.asked if draws == "own"})
    changed = [names for names, draws, _ in bench.asked if names and draws == "none"]
    assert len(changed) == len(set(changed))  # the whole is known when it is confirmed


def test_results_that_differ_without_dropout_too_differ() -> None:
    bench = dropping("half", half=2.0)
    bench.moves_undropped.add("half")
    found = climbed(bench, HALF)
    assert statuses(found) == {"half": "rejected"}
    assert rung(found, "half").reason.code == SearchCode.RESULTS_DIFFER


def test_a_change_that_turns_dropout_off_is_caught() -> None:
    """It draws nothing any more, and without dropout it would be equal."""
    bench = dropping("half", half=2.0)
    bench.draws_nothing.add("half")
    assert statuses(climbed(bench, HALF)) == {"half": "rejected"}


def test_a_change_that_drops_less_is_caught() -> None:
    bench = dropping("half", half=2.0)
    bench.drops_less.add("half")
    found = climbed(bench, HALF)
    assert statuses(found) == {"half": "rejected"}
    parity = rung(found, "half").parity
    assert parity is not None
    assert [(check.what, check.difference) for check in parity.checks if not check.passed] == [
        ("dropout", 50.0)
    ]


def test_skipped_steps_are_no_matter_of_dropout() -> None:
    bench = dropping("half", half=2.0)
    bench.skips.add("half")
    found = climbed(bench, HALF)
    assert statuses(found) == {"half": "rejected"}
    assert all(draws == "own" for _, draws, _ in bench.asked)


def test_where_there_is_no_dropout_other_results_are_other_results() -> None:
    """What draws is something else."""
    bench = dropping("half", half=2.0)
    bench.undropped = 0
    found = climbed(bench, HALF, candidate("layout"))
    assert statuses(found)["half"] == "rejected"
    assert sum(draws == "none" for _, draws, _ in bench.asked) == 1


def test_the_verdict_names_a_comparison_that_there_was_no_time_for() -> None:
    """Whether dropout is why results differ is not known, and nothing is kept by a guess."""
    found = climbed(dropping("half", half=2.0, trials=7), HALF)
    assert statuses(found) == {"half": "rejected"}
    assert explain(rung(found, "half").reason).endswith(NOT_COMPARED)


def test_what_is_left_of_a_set_that_was_equal_is_not_compared_again() -> None:
    """One of it was left out in the end, where no time may be left."""
    bench = dropping("half", half=2.0)
    judge = Judge(bench, STEP, lambda text: None)
    judge.learn([HALF], False, lambda found: None)
    for fixes in ([HALF, FUSED], [HALF]):
        found = bench.trial(asked(fixes)).trial
        assert found is not None
        assert judge.compared(found, fixes).equality == "equal"
    assert [names for names, draws, _ in bench.asked if names and draws == "none"] == [
        {"half", "fused"}
    ]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_on_a_gpu_what_is_compiled_and_rounds_is_not_first_drawn_as_before(device: str) -> None:
    bench = dropping("compile", "half", compile=2.0, half=1.5)
    bench.device = device
    climbed(bench, candidate("compile", slot="compile"), HALF)
    both = {draws for names, draws, _ in bench.asked if names == {"compile", "half"}}
    assert both >= {"own", "none" if device == "cuda" else "eager"}
    assert ("eager" in both) == (device == "cpu")


COMPILE = candidate("compile", slot="compile")


def redrawing(**factors: float) -> FakeBench:
    """A program without dropout that draws its batches from the generator."""
    bench = FakeBench(times(**factors))
    bench.redraws_data.add("compile")
    bench.undropped = 0
    return bench


def test_a_compiled_program_that_draws_its_batches_is_compared_as_eager_code_draws() -> None:
    bench = redrawing(compile=2.0)
    found = climbed(bench, COMPILE)
    assert statuses(found) == {"compile": "kept"}
    assert found.total is not None
    assert found.total.parity.equality == "equal"
    assert [draws for names, draws, _ in bench.asked if draws != "own"] == ["eager"]


def test_a_compiled_program_that_trains_on_other_data_is_caught() -> None:
    bench = redrawing(compile=2.0)
    bench.other_data.add("compile")
    assert statuses(climbed(bench, COMPILE)) == {"compile": "rejected"}


def test_other_data_without_a_compiler_are_not_explained_by_random_numbers() -> None:
    bench = redrawing(half=2.0)
    bench.other_data.add("half")
    assert statuses(climbed(bench, HALF)) == {"half": "rejected"}
    assert all(draws == "own" for _, draws, _ in bench.asked)


def test_on_a_gpu_what_also_rounds_is_drawn_as_eager_code_draws_once_no_dropout_is_known() -> None:
    bench = redrawing(compile=2.0, half=1.5)
    bench.device = "cuda"
    found = climbed(bench, COMPILE, HALF)
    assert statuses(found) == {"compile": "kept", "half": "kept"}
    both = [draws for names, draws, _ in bench.asked if names == {"compile", "half"}]
    assert "eager" in both
    assert "none" not in both


def test_a_program_that_draws_nothing_is_not_compared_again() -> None:
    bench = redrawing(compile=2.0)
    bench.draws = False
    assert statuses(climbed(bench, COMPILE)) == {"compile": "rejected"}
    assert all(draws == "own" for _, draws, _ in bench.asked)
