"""What could not be compared makes an answer weak; a trial without results makes it unknown."""

from math import inf, nan
from random import Random

import pytest
from msgspec.structs import replace

from ridgeline.equality.trials.parity import compare
from ridgeline.records.parity import Alters
from ridgeline.records.trial import TensorPrint, Trial, WatchedStep

JITTER = 2.0**-23
LOSSES = (2.0, 1.9, 1.7, 1.6, 1.4, 1.3)


def steps(
    losses: tuple[float | None, ...] = LOSSES, sums: tuple[float, ...] = ()
) -> tuple[WatchedStep, ...]:
    return tuple(
        WatchedStep(
            loss=loss, gradient_norm=1.0, gradients=2, samples=8, forwards=1, backwards=1,
            batch_sum=sums[place] if sums else float(place + 1),
        )
        for place, loss in enumerate(losses)
    )  # fmt: skip


def tensor(name: str = "weight", moved: float = 0.1, norm: float = 2.0) -> TensorPrint:
    return TensorPrint(name=name, norm=norm, projection=0.3, moved=moved, numel=64)


BASE = Trial(watched=steps(), tensors=(tensor(), tensor("bias")), evaluation=(3.0, 0.5))


def test_equal_records_are_equal() -> None:
    assert compare([BASE, BASE], BASE, "nothing").equality == "equal"


def test_two_watched_steps_are_weak() -> None:
    short = replace(BASE, watched=BASE.watched[:2])
    found = compare([short, short], short, "nothing")
    assert found.equality == "weak"
    assert found.missing == ("only 2 steps watched",)
    assert "weak: only 2 steps watched" in found.why


def test_no_losses_are_weak() -> None:
    blind = replace(BASE, watched=steps((None,) * 6))
    assert compare([blind, blind], blind, "nothing").equality == "weak"


def test_nothing_seen_is_unknown() -> None:
    assert compare([BASE], Trial(), "nothing").equality == "unknown"
    assert compare([Trial()], BASE, "rounding").equality == "unknown"
    assert compare([], BASE, "rounding").equality == "unknown"


def test_workers_that_draw_other_samples_are_weak_and_still_count() -> None:
    losses = tuple(loss * 1.05 for loss in LOSSES)
    other = replace(BASE, watched=steps(losses, (9.0, 8.0, 7.0, 5.0, 3.0, 2.0)), workers_draw=True)
    found = compare([BASE, BASE], other, "nothing")
    assert found.equality == "weak"
    assert "draw random numbers" in found.missing[0]
    skipped = replace(other, watched=(*other.watched[:5], replace(other.watched[5], applied=False)))
    assert compare([BASE, BASE], skipped, "nothing").equality == "differs"
    frozen = replace(other, tensors=(tensor(moved=0.0), tensor("bias")))
    assert compare([BASE, BASE], frozen, "nothing").equality == "differs"


def test_workers_that_drew_the_same_samples_must_give_equal_results() -> None:
    drawn = replace(BASE, workers_draw=True)
    assert compare([drawn, drawn], drawn, "nothing").equality == "equal"
    off = replace(drawn, watched=steps(tuple(loss * 1.01 for loss in LOSSES)))
    assert compare([drawn, drawn], off, "nothing").equality == "differs"


def test_other_samples_without_drawing_workers_differ() -> None:
    other = replace(BASE, watched=steps(sums=(1.0, 2.0, 3.0, 6.0, 5.0, 4.0)))
    found = compare([BASE, BASE], other, "nothing")
    assert found.why == "the data of steps 4 and 6 are not the baseline's"


@pytest.mark.parametrize("alters", ["nothing", "rounding"])
def test_a_perturbed_run_can_show_that_the_data_differ_between_runs(
    alters: Alters,
) -> None:
    """The program is seeded by the clock, and a budget of 60 s allowed a single unperturbed run."""
    moved = replace(BASE, watched=steps(sums=(4.0, 1.0, 6.0, 2.0, 3.0, 5.0)), jitter=JITTER)
    other = replace(BASE, watched=steps(sums=(6.0, 5.0, 1.0, 4.0, 2.0, 3.0)))
    found = compare([BASE, moved], other, alters)
    assert found.equality == "weak"
    assert "does not see the same data" in found.why


def test_rounding_of_batches_that_a_model_makes_is_not_other_data() -> None:
    """A generator called without gradients, whose fakes come first."""

    def fakes(part: float, jitter: float = 0.0) -> Trial:
        sums = tuple(place + 1 + part * (-1) ** place for place in range(6))
        return replace(BASE, watched=steps(sums=sums), jitter=jitter)

    baseline = [BASE, BASE, fakes(2e-3, 2.0**-8)]
    assert compare(baseline, fakes(4e-3), "rounding", "bfloat16").equality == "equal"
    assert compare(baseline, fakes(0.9), "rounding", "bfloat16").equality == "differs"
    assert compare(baseline, fakes(4e-3), "nothing").equality == "differs"
    assert compare([BASE, BASE], fakes(4e-3), "rounding", "bfloat16").equality == "differs"


def test_a_baseline_that_varies_widens_its_own_band() -> None:
    other = replace(BASE, watched=steps(tuple(loss * 1.002 for loss in LOSSES)))
    third = replace(BASE, watched=steps(tuple(loss * 0.997 for loss in LOSSES)))
    assert compare([BASE, BASE], third, "nothing").equality == "differs"
    assert compare([BASE, other], third, "nothing").equality == "equal"


@pytest.mark.parametrize("value", [nan, inf])
def test_a_number_that_is_not_finite_equals_only_itself(value: float) -> None:
    broken = replace(BASE, watched=steps((*LOSSES[:5], value)))
    found = compare([BASE, BASE], broken, "rounding", "bfloat16")
    assert found.equality == "differs"
    assert found.checks[0].what == "finite"
    both = compare([broken, broken], broken, "nothing")
    assert both.equality == "equal"
    assert "the loss is not finite at step 6, in both" in both.why


def test_a_fix_that_alters_semantics_needs_falling_losses_and_is_weak_at_best() -> None:
    larger = replace(BASE, watched=steps(tuple(loss * 0.8 for loss in LOSSES)))
    assert compare([BASE, BASE], larger, "semantics").equality == "weak"
    rising = replace(BASE, watched=steps(LOSSES[::-1]))
    assert compare([BASE, BASE], rising, "semantics").equality == "differs"
    broken = replace(BASE, watched=steps((*LOSSES[:5], nan)))
    assert compare([BASE, BASE], broken, "semantics").equality == "differs"
    blind = replace(BASE, watched=steps((None,) * 6))
    assert compare([BASE, BASE], blind, "semantics").equality == "unknown"


def test_inference_with_altered_semantics_reports_how_far_outputs_moved() -> None:
    calls = tuple(WatchedStep(samples=8, forwards=1, batch_sum=float(n)) for n in range(6))
    served = replace(BASE, watched=calls, evaluation=(10.0, 3.0))
    near = compare([served, served], replace(served, evaluation=(10.1, 3.0)), "semantics")
    assert near.equality == "weak"
    assert near.why.startswith("outputs of the first batch are off by 1 %")
    far = compare([served, served], replace(served, evaluation=(16.0, 3.0)), "semantics")
    assert far.equality == "differs"
    exact = compare([served, served], served, "rounding")
    assert exact.equality == "equal"


def test_a_program_that_ended_early_differs_and_says_why() -> None:
    short = replace(BASE, watched=BASE.watched[:4], ended="it raised RuntimeError")
    found = compare([BASE, BASE], short, "rounding")
    assert found.why.startswith("it took 4 steps where the baseline took 6: it raised")


def test_names_of_a_compiled_module_are_mapped_to_the_programs_own() -> None:
    wrapped = tuple(replace(one, name=f"_orig_mod.{one.name}") for one in BASE.tensors)
    found = compare([BASE, BASE], replace(BASE, tensors=wrapped), "nothing")
    assert found.equality == "equal"
    assert any(check.what == "parameters" for check in found.checks)


def test_a_loss_slightly_beyond_the_band_is_weak_late_and_differs_early() -> None:
    def off(step: int, by: float) -> Trial:
        losses = (loss + by if place == step else loss for place, loss in enumerate(LOSSES))
        return replace(BASE, watched=steps(tuple(losses)))

    near = compare([BASE, BASE], off(5, 2e-4), "rounding")
    assert near.equality == "weak"
    assert near.missing[0].startswith("the loss at step 6 is off by 1e-4, allowed")
    assert compare([BASE, BASE], off(5, 2e-3), "rounding").equality == "differs"
    assert compare([BASE, BASE], off(0, 2e-5), "rounding").equality == "differs"
    assert compare([BASE, BASE], off(5, 2e-4), "nothing").equality == "differs"


def fresh(draw: Random, fall: float) -> Trial:
    """A run of a program without a seed: losses of 8 steps with 7 % of scatter."""
    losses = tuple(1.4 * (1 - fall * step / 7) * draw.gauss(1, 0.07) for step in range(8))
    sums = tuple(draw.random() for _ in range(8))
    return replace(BASE, watched=steps(losses, sums))


def test_losses_that_rise_by_chance_alone_do_not_differ() -> None:
    draw = Random(0)
    called = [
        compare([fresh(draw, 0.05), fresh(draw, 0.05)], fresh(draw, 0.05), "rounding").equality
        for _ in range(300)
    ]
    assert called.count("weak") >= 298


def test_losses_that_rise_where_the_baselines_fall_differ() -> None:
    draw = Random(0)
    called = [
        compare([fresh(draw, 0.4), fresh(draw, 0.4)], fresh(draw, -0.4), "rounding").equality
        for _ in range(300)
    ]
    assert called.count("differs") >= 298


def test_a_repeat_without_losses_does_not_excuse_a_candidate() -> None:
    draw = Random(0)
    base, rising, unseen = (fresh(draw, fall) for fall in (0.4, -0.4, 0.4))
    blind = replace(unseen, watched=tuple(replace(one, loss=None) for one in unseen.watched))
    assert compare([base, blind], rising, "rounding").equality == "differs"
    assert compare([base, blind], fresh(draw, 0.4), "rounding").equality == "weak"
