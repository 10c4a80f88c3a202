import math
from typing import Any

import pytest
from msgspec.structs import replace

from ridgeline.equality.trials.parity import compare
from ridgeline.records.parity import Parity
from ridgeline.records.trial import OutputPrint, TensorPrint, Trial, WatchedStep

WEIGHT = TensorPrint(name="weight", norm=1.0, projection=0.3, moved=0.0, numel=64)
STEPS = 8


def an_output(step: int, far: float = 0.0, **given: Any) -> OutputPrint:
    """`far` is added to every part, as a share of the norm."""
    sketch = tuple(math.sin(7.0 * step + at) + far for at in range(24))
    return OutputPrint(numel=160, norm=math.sqrt(12.0), sketch=sketch, **given)


def trial(*outputs: OutputPrint | None, changed: float | None = None) -> Trial:
    steps = [
        WatchedStep(
            samples=16, batch_sum=float(step), forwards=1, outputs=() if one is None else (one,),
            outputs_changed=changed if step < STEPS - 2 else None,
        )
        for step, one in enumerate(outputs)
    ]  # fmt: skip
    return Trial(watched=tuple(steps), tensors=(WEIGHT,), evaluation=(3.0, 1.0))


def plain(**given: Any) -> Trial:
    return trial(*(an_output(step) for step in range(STEPS)), **given)


def text_of(found: Parity, what: str = "outputs") -> str:
    return next(check.text for check in found.checks if check.what == what)


def test_outputs_that_are_all_zero_make_the_answer_weak() -> None:
    """The last layer of an untrained vision transformer."""
    zero = OutputPrint(numel=160, norm=0.0, sketch=(0.0,) * 24)
    blank = trial(*[zero] * STEPS)
    found = compare([blank, blank], blank, "rounding", "bfloat16")
    assert found.equality == "weak"
    assert "every output of the model is zero" in found.why


def test_equal_outputs_for_every_batch_make_the_answer_weak() -> None:
    alike = trial(*[an_output(0)] * STEPS)
    found = compare([alike, alike], alike, "nothing")
    assert found.equality == "weak"
    assert "the same output for every batch" in found.why


def test_equal_outputs_are_reported_as_equal() -> None:
    found = compare([plain(), plain()], plain(), "nothing")
    assert found.equality == "equal"
    assert text_of(found) == "outputs equal exactly over 8 batches"


def test_rounding_is_allowed_only_if_the_fix_may_alter_rounding() -> None:
    rounded = trial(*(an_output(step, 1e-6 / math.sqrt(2)) for step in range(STEPS)))
    found = compare([plain(), plain()], rounded, "rounding")
    assert found.equality == "equal", found.why
    assert text_of(found).startswith("outputs equal to 1e-6 over 8 batches, allowed ")
    coarse = trial(*(an_output(step, 1e-4) for step in range(STEPS)))
    assert compare([plain(), plain()], coarse, "nothing").equality == "differs"


@pytest.mark.parametrize("step", range(STEPS))
def test_one_wrong_batch_differs_wherever_it_is(step: int) -> None:
    wrong = trial(*(an_output(at, 0.3 * (at == step)) for at in range(STEPS)))
    for precision in ("float32", "bfloat16"):
        found = compare([plain(), plain()], wrong, "rounding", precision)
        assert found.equality == "differs"
        assert f"the outputs of step {step + 1} are off by" in found.why


def test_a_missing_part_of_a_batch_differs() -> None:
    good = an_output(3)
    missing = replace(good, sketch=(*good.sketch[:-2], 0.0, 0.0))
    wrong = trial(*(missing if at == 3 else an_output(at) for at in range(STEPS)))
    assert compare([plain()] * 2, wrong, "rounding", "bfloat16").equality == "differs"


def test_a_repeated_output_differs_even_if_all_outputs_are_similar() -> None:
    close = [an_output(0, 0.02 * step) for step in range(STEPS)]
    stale = trial(*[close[0]] * STEPS)
    found = compare([trial(*close)] * 2, stale, "rounding", "bfloat16")
    assert found.equality == "differs"
    assert "the outputs of step 2 repeat those of step 1" in found.why
    one = tuple(replace(step, batch_sum=1.0) for step in stale.watched)
    same = replace(stale, watched=one)  # a benchmark on one batch
    assert compare([same, same], same, "rounding", "bfloat16").equality == "equal"


def test_fewer_elements_fewer_outputs_and_no_numbers_differ() -> None:
    less = trial(*(replace(an_output(step), numel=150) for step in range(STEPS)))
    found = compare([plain()] * 2, less, "rounding", "bfloat16")
    assert "an output of step 1 has 150 elements where the baseline's has 160" in found.why
    two = replace(plain().watched[0], outputs=(an_output(0), an_output(0)))
    more = replace(plain(), watched=(two, *plain().watched[1:]))
    why = compare([plain()] * 2, more, "rounding").why
    assert "2 outputs at step 1 where the baseline has 1" in why
    broken = trial(
        *(replace(an_output(at), norm=math.nan if at == 4 else 3.0) for at in range(STEPS))
    )
    assert "an output of step 5 is not finite" in compare([plain()] * 2, broken, "rounding").why
    assert compare([broken] * 2, broken, "rounding").equality == "equal"


def test_outputs_of_the_changed_program_that_were_not_seen_make_it_weak() -> None:
    found = compare([plain()] * 2, trial(*[None] * STEPS), "rounding")
    assert found.equality == "weak"
    assert [check.doubt for check in found.checks if check.what == "outputs"] == [True]


def test_an_unseen_step_makes_the_answer_weak() -> None:
    none = trial(*(an_output(step) if step else None for step in range(STEPS)))
    found = compare([plain()] * 2, none, "rounding")
    assert found.equality == "weak"
    assert len(found.missing) == 1
    assert "at step 1" in found.missing[0]
    assert "outputs equal exactly over 7 batches" in found.why
    assert compare([none] * 2, plain(), "rounding").equality == "equal"


def boxes(*counts: int) -> Trial:
    """A detector that returns so many boxes, step by step."""
    return trial(
        *(replace(an_output(at), numel=4 * count, rows=count) for at, count in enumerate(counts))
    )


COUNTS = (10, 12, 9, 14, 8, 10, 11, 13)


def test_outputs_whose_sizes_vary_between_baselines_are_not_compared() -> None:
    base, other = boxes(*COUNTS), boxes(10, 11, *COUNTS[2:])
    found = compare([base, other], other, "nothing")
    assert found.equality == "equal", found.why
    assert text_of(found) == "outputs equal exactly over 7 batches"
    jittered = replace(other, jitter=2.0**-23)
    assert compare([base, base, jittered], other, "rounding").equality == "equal"
    assert compare([base, base, jittered], other, "nothing").equality == "differs"
    never = compare([base, boxes(*(count + 1 for count in COUNTS))], base, "nothing")
    assert never.equality == "weak"
    assert "their sizes vary" in never.missing[0]


def test_sizes_that_follow_the_data_make_it_weak_and_fixed_ones_differ() -> None:
    base, other = boxes(*COUNTS), boxes(10, 11, *COUNTS[2:])
    found = compare([base, base], other, "rounding")
    assert found.equality == "weak"
    assert found.missing == ("an output of step 2 has 44 elements where the baseline's has 48",)
    assert compare([base, base], other, "nothing").equality == "differs"
    lengths = [replace(an_output(at), numel=16 * n, rows=16) for at, n in enumerate(COUNTS)]
    padded = trial(*lengths)
    short = trial(*(replace(one, numel=15 * one.numel // 16, rows=15) for one in lengths))
    assert compare([padded] * 2, short, "rounding", "bfloat16").equality == "differs"


def masked(seed: int, odd: int = 16) -> Trial:
    return trial(*(replace(an_output(seed + step), odd=odd) for step in range(STEPS)))


def test_other_numbers_beside_a_mask_differ() -> None:
    assert compare([masked(0)] * 2, masked(0), "rounding").equality == "equal"
    found = compare([masked(0)] * 2, masked(50), "rounding", "bfloat16")
    assert found.equality == "differs"
    more = compare([masked(0)] * 2, masked(0, 17), "rounding")
    assert "17 elements of an output of step 1 are not finite where 16 of" in more.why
    assert compare([plain()] * 2, masked(0), "rounding").equality == "differs"

    def filled(far: float) -> Trial:
        fill = OutputPrint(numel=160, norm=4e9, sketch=(1e9,) * 24)
        return trial(*(replace(fill, rest=an_output(step, far)) for step in range(STEPS)))

    assert compare([filled(0.0)] * 2, filled(1e-7), "rounding").equality == "equal"
    assert compare([filled(0.0)] * 2, filled(0.5), "rounding", "bfloat16").equality == "differs"


def test_outputs_with_infinite_norms_make_the_answer_weak() -> None:
    def lost(seed: int) -> Trial:
        return trial(*(replace(an_output(seed + at), norm=math.inf) for at in range(STEPS)))

    found = compare([lost(0)] * 2, lost(9), "rounding")
    assert found.equality == "weak"
    assert [check.difference for check in found.checks if check.doubt] == [None]


def test_a_class_that_rounding_may_have_changed_makes_the_answer_weak() -> None:
    def classes(*ids: int) -> Trial:
        return trial(
            *(OutputPrint(numel=1, norm=n, sketch=(n, *[0.0] * 23), whole=True) for n in ids)
        )

    base = classes(3, 5, 7, 3, 1, 2, 4, 6)
    other = classes(3, 3, 7, 3, 1, 2, 4, 6)
    assert compare([base] * 2, other, "rounding", "bfloat16").equality == "weak"
    assert compare([base] * 2, other, "nothing").equality == "differs"
    stale = compare([base] * 2, classes(*[3] * 8), "rounding", "bfloat16")
    assert stale.equality == "differs"
    assert "the outputs of step 2 repeat those of step 1" in stale.why


def test_kept_outputs_that_change_differ_unless_the_baseline_changes_them() -> None:
    kept = plain(changed=0.0)
    found = compare([kept, kept], plain(changed=0.7), "rounding", "bfloat16")
    assert "later steps write over the outputs of step 1, which are kept" in found.why
    assert compare([kept, kept], plain(changed=math.inf), "rounding").equality == "differs"
    same = compare([kept, kept], kept, "rounding")
    assert [check.passed for check in same.checks if check.what == "kept outputs"] == [True]
    for base in (plain(), plain(changed=0.5), plain(changed=math.inf)):
        assert compare([base, base], plain(changed=0.7), "nothing").equality == "equal"


def test_other_classes_in_a_coarse_precision_make_the_answer_weak() -> None:
    base = trial(*(an_output(step, whole=True) for step in range(STEPS)))
    other = trial(*(an_output(step, 0.3 * (step == 3), whole=True) for step in range(STEPS)))
    assert compare([base] * 2, other, "rounding", "bfloat16").equality == "weak"
    assert compare([base] * 2, other, "nothing").equality == "differs"


def test_a_program_whose_outputs_vary_is_compared_with_its_own_variation() -> None:
    sampled = [trial(*(an_output(at, far) for at in range(STEPS))) for far in (0.0, 0.01, 0.02)]
    assert compare(sampled[:2], sampled[2], "nothing").equality == "equal"
