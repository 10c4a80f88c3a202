"""Whether two scripts computed the same, from what their runs left behind."""

import math

import pytest

from ridgeline.equality.scripts import ProgramRecord, compare_scripts

LOSSES = tuple(2.0 / (1 + step) for step in range(40))
NORMS = (3.0, 4.0, 0.0)


def record(**changed: object) -> ProgramRecord:
    values: dict[str, object] = {"losses": LOSSES, "steps": 40, "parameter_norms": NORMS}
    return ProgramRecord(**{**values, **changed})  # type: ignore[arg-type]


def scaled(by: float) -> tuple[float, ...]:
    return tuple(loss * by for loss in LOSSES)


def test_equal_runs_are_bit_identical_and_well_checked() -> None:
    found = compare_scripts(record(), record(), record(), None)
    assert found.status == "bit-identical"
    assert found.strength == "strong"
    assert found.compared == 23


def test_another_order_of_summation_is_equal() -> None:
    found = compare_scripts(record(), record(), record(losses=scaled(1 + 3e-7)), None)
    assert found.status == "equal"


def test_rounding_that_grew_is_within_tolerance() -> None:
    found = compare_scripts(record(), record(), record(losses=scaled(1.0004)), None)
    assert found.status == "within tolerance"


@pytest.mark.parametrize("by", [1.01, 0.99, 0.5, 0.0])
def test_other_losses_are_different(by: float) -> None:
    assert compare_scripts(record(), record(), record(losses=scaled(by)), None).status == (
        "different"
    )


def test_one_other_loss_is_different() -> None:
    losses = (*LOSSES[:3], LOSSES[3] * 1.05, *LOSSES[4:])
    assert compare_scripts(record(), record(), record(losses=losses), None).status == "different"


def test_parameters_that_ended_elsewhere_are_different() -> None:
    found = compare_scripts(record(), record(), record(parameter_norms=(3.0, 4.1, 0.0)), None)
    assert found.status == "different"


def test_skipped_steps_are_different_and_named() -> None:
    found = compare_scripts(record(), record(), record(steps=39), None)
    assert found.status == "different"
    assert "39 optimizer steps" in found.detail


def test_nan_agrees_with_nothing_but_nan() -> None:
    broken = record(losses=(math.nan, *LOSSES[1:]))
    assert compare_scripts(record(), record(), broken, None).status == "different"
    assert compare_scripts(broken, broken, record(), None).status != "equal"
    assert compare_scripts(broken, broken, broken, None).status == "bit-identical"


def test_a_baseline_that_differs_from_itself_widens_what_is_allowed() -> None:
    again = record(losses=scaled(1.003))
    found = compare_scripts(record(), again, record(losses=scaled(1.006)), None)
    assert found.status in ("equal", "within tolerance")
    assert found.allowed_error == pytest.approx(0.009, rel=0.01)


def test_a_baseline_that_is_not_repeatable_compares_nothing() -> None:
    found = compare_scripts(record(), record(losses=scaled(1.5)), record(), None)
    assert found.status == "not compared"
    assert found.strength == "none"


def test_scripts_without_losses_are_not_called_equal() -> None:
    found = compare_scripts(ProgramRecord(), ProgramRecord(), ProgramRecord(), None)
    assert found.status == "not compared"


def test_two_numbers_are_a_weak_check() -> None:
    few = record(losses=(1.0, 0.5), parameter_norms=(), steps=2)
    found = compare_scripts(few, few, few, None)
    assert found.strength == "weak"


def test_a_declared_tolerance_is_used_and_a_loose_one_called_weak() -> None:
    found = compare_scripts(record(), record(), record(losses=scaled(1.03)), 0.05)
    assert found.status == "within tolerance"
    assert found.strength == "weak"


MANY = (*(1.0 + 0.1 * at for at in range(19)), 0.06)
"""The last is a bias that began at nothing."""


def test_one_parameter_that_strays_makes_it_weak() -> None:
    plain = record(parameter_norms=MANY)
    found = compare_scripts(plain, plain, record(parameter_norms=(*MANY[:-1], 0.069)), None)
    assert (found.status, found.strength) == ("within tolerance", "weak")
    assert "1 of 20 parameters' norms are up to 13% off" in found.reasons[0]


@pytest.mark.parametrize(
    "norms",
    [
        (*MANY[:-1], 0.0),  # not trained
        (*MANY[:-3], 2.9, 3.0, 0.06),  # a large part of the whole
        (*(1.1 * norm for norm in MANY[:3]), *MANY[3:]),  # more than a few
        MANY[:-1],
        (*MANY[:-1], float("nan")),
    ],
)
def test_what_is_more_than_a_stray_is_different(norms: tuple[float, ...]) -> None:
    plain = record(parameter_norms=MANY)
    assert compare_scripts(plain, plain, record(parameter_norms=norms), None).status == "different"


SMALL = (*(1.0 + 0.1 * at for at in range(14)), 0.05, 0.05, 0.05, 0.05, 0.06, 0.06)
BIASES = (*SMALL[:14], 0.0501, 0.0501, 0.0502, 0.0502, 0.069, 0.053)
"""Four off by a little, two by more: of 20, with none more than a hundred numbers."""


@pytest.mark.parametrize(
    ("size", "status"), [(100, "within tolerance"), (20_000, "different"), (0, "different")]
)
def test_small_parameters_may_be_off_by_a_little(size: int, status: str) -> None:
    sizes = (*(60_000 for _ in range(14)), *(size for _ in range(6))) if size else ()
    plain = record(parameter_norms=SMALL, parameter_sizes=sizes)
    other = record(parameter_norms=BIASES, parameter_sizes=sizes)
    found = compare_scripts(plain, plain, other, None)
    assert found.status == status
    if status != "different":
        assert found.strength == "weak"
        assert "6 of 20 parameters' norms are up to 13% off" in found.reasons[0]


def test_many_small_ones_far_off_are_different() -> None:
    sizes = (*(60_000 for _ in range(14)), *(100 for _ in range(6)))
    plain = record(parameter_norms=SMALL, parameter_sizes=sizes)
    off = (*SMALL[:14], *(1.1 * one for one in SMALL[14:]))
    other = record(parameter_norms=off, parameter_sizes=sizes)
    assert compare_scripts(plain, plain, other, None).status == "different"


def test_a_stray_beside_other_losses_is_different() -> None:
    plain = record(parameter_norms=MANY)
    other = record(parameter_norms=(*MANY[:-1], 0.069), losses=scaled(1.01))
    assert compare_scripts(plain, plain, other, None).status == "different"
