"""What is too large or too slow is looked at less, and says so."""

from collections.abc import Callable, Iterator

import msgspec
import pytest
import torch
from torch import Tensor
from verdict_on import built, judged, verdict_on, workload

from ridgeline.equality.calls import held_state, outputs, reference
from ridgeline.equality.calls.collection import collect
from ridgeline.equality.calls.examine import examine
from ridgeline.equality.calls.held_state import digest
from ridgeline.equality.calls.outputs import ElementBudget, outputs_of
from ridgeline.harness.usercode.workload import Declared

X = torch.randn(64, 64)


def test_a_large_output_is_compared_by_a_sample_that_is_the_same_for_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outputs, "MAX_WHOLE_ELEMENTS", 1000)
    monkeypatch.setattr(outputs, "SAMPLED_ELEMENTS", 100)
    verdict = verdict_on(lambda: X * 2, lambda: X + X)
    assert verdict.results.status == "bit-identical"
    assert verdict.results.compared == 100
    assert "by a sample" in verdict.results.detail
    assert verdict_on(lambda: X * 2, lambda: X * 2.02).results.status == "different"
    verdict = verdict_on(lambda: X * 2, lambda: X + X, check=lambda a, b: True)
    assert verdict.results.status == "not compared"
    assert "too large" in verdict.results.reasons[0]


def test_a_file_with_a_check_keeps_more_and_still_compares_with_one_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outputs, "MAX_WHOLE_ELEMENTS", 2000)
    monkeypatch.setattr(outputs, "SAMPLED_ELEMENTS", 100)
    checked = workload(lambda: X * 2)
    checked.declared = Declared(check=lambda a, b: True)
    verdict = judged(checked, workload(lambda: X + X))
    assert verdict.baseline.outputs[0].whole
    assert not verdict.candidate.outputs[0].whole
    assert verdict.results.status == "bit-identical"
    assert judged(checked, workload(lambda: X * 2.02)).results.status == "different"


def test_nan_outside_the_sample_is_seen() -> None:
    x = torch.randn(100_000)
    spoilt = x.clone()
    spoilt[5_001] = torch.nan
    kept = outputs_of(spoilt, ElementBudget(elements=100, each=50))
    assert not kept.whole
    assert kept.leaves[0].nans == 1


def test_room_is_shared_by_all_outputs_of_a_call() -> None:
    room = ElementBudget(elements=2**15, each=2**20)
    assert room.keep(2**15) == 2**15
    assert room.keep(2**20) == 2**14
    assert room.keep(10) == 10


def test_state_too_large_to_keep_is_not_put_back_and_the_extra_calls_are_not_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weight = torch.zeros(1000)

    def step() -> Tensor:
        weight.add_(1)
        return weight[:10].clone()

    monkeypatch.setattr(held_state.SavedState.__init__, "__defaults__", (100,))
    evidence = collect(workload(step), seed=1, as_baseline=True)
    assert "weight changes and is too large" in evidence.repeat.why
    assert "too large" in evidence.reference.why_not
    assert weight.eq(3).all()  # three check calls and not one more
    results, _ = examine(evidence, evidence)
    assert results.ok


def test_weights_too_large_to_keep_do_not_hinder_where_they_do_not_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    big, small = torch.randn(1000, 8), torch.randn(4, 1000)
    monkeypatch.setattr(held_state.SavedState.__init__, "__defaults__", (20_000,))
    evidence = collect(workload(lambda x: x @ big, small), seed=1, as_baseline=True)
    assert evidence.repeat.outputs is not None
    assert evidence.fresh[0].names == ("input 0",)
    assert evidence.fresh[0].outputs is not None


def test_too_much_for_a_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, "MAX_FLOAT_BYTES", 100)
    evidence = collect(workload(lambda: X * 2), seed=1, as_baseline=True)
    assert "over 2 GiB" in evidence.reference.why_not


def test_a_slow_call_is_not_made_again_and_again() -> None:
    seen: list[int] = []

    def noting() -> Tensor:
        seen.append(1)
        return X * len(seen)

    evidence = collect(workload(noting), seed=1, as_baseline=True, budget_s=0.0)
    assert len(seen) == 3
    assert "too long" in evidence.repeat.why
    assert "too long" in evidence.timing_why
    assert "too long" in evidence.reference.why_not
    results, guards = examine(evidence, evidence)
    assert results.status == "bit-identical"
    assert {g.outcome for g in guards} <= {"passed", "not looked for"}


def test_state_that_nobody_can_see_is_told_from_randomness_by_building_anew() -> None:
    def factory() -> Callable[[], Tensor]:
        counter: Iterator[int] = iter(range(1000))
        x = torch.randn(64)
        return lambda: x * (1 + next(counter))

    verdict = judged(built(factory), built(factory))
    assert verdict.baseline.spread == 0.0
    assert verdict.results.status == "bit-identical"


def test_a_digest_tells_content_and_place() -> None:
    x = torch.randn(100, 7)
    assert digest(x) == digest(x.clone())
    assert digest(x) == digest(x.t().contiguous().t())
    moved = x.clone()
    moved[3, 3] = moved[3, 3].nextafter(torch.tensor(9.0))
    assert digest(moved) != digest(x)
    assert digest(x.roll(1, 0)) != digest(x)
    assert digest(torch.zeros(8)) != digest(torch.zeros(9))
    for dtype in (torch.bool, torch.int8, torch.bfloat16, torch.complex64, torch.float8_e4m3fn):
        assert digest(x.to(dtype)) == digest(x.to(dtype).clone())


def test_a_default_device_or_dtype_of_the_users_does_not_matter() -> None:
    x = torch.randn(64)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        verdict = verdict_on(lambda: x * 2, lambda: x + x)
    finally:
        torch.set_default_dtype(before)
    assert verdict.results.status == "bit-identical"
    with torch.device("meta"):
        evidence = collect(workload(lambda: x * 2), seed=1, as_baseline=True)
    assert evidence.outputs[0].leaves[0].values is not None


def test_evidence_has_no_live_tensor_in_it() -> None:
    x = torch.randn(8, requires_grad=True)
    evidence = collect(workload(lambda: x * 2), seed=1, as_baseline=True)
    for returned in evidence.outputs:
        for each in returned.leaves:
            assert each.values is not None
            assert not each.values.requires_grad
    assert msgspec.structs.asdict(evidence)["name"] == "made up"
