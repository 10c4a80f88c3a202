"""No call is faster than its own arithmetic at the device's peak."""

import msgspec
import pytest
import torch
from torch import nn
from verdict_on import workload

from ridgeline.comparison.verdicts import floor_of_candidate
from ridgeline.equality.calls import guards
from ridgeline.equality.calls.collection import collect
from ridgeline.equality.calls.evidence import Evidence, Work
from ridgeline.equality.calls.guards import examine_floor, floor_ns
from ridgeline.records.comparison import Guard
from ridgeline.records.machine import Ceiling, Device

PEAK = Ceiling(quantity="matmul", value=1e9, unit="FLOP/s", source="measured", dtype="float32")
COPY = Ceiling(quantity="copy", value=1e10, unit="B/s", source="measured")
DEVICE = Device(
    kind="cpu", index=0, name="made up", memory_bytes=2**34, cache_bytes=2**20,
    ceilings=(PEAK, COPY),
)  # fmt: skip
X = torch.randn(50, 100)
W = torch.randn(100, 100)


@pytest.fixture(scope="module")
def product() -> Evidence:
    return collect(workload(lambda: X @ W), seed=1, as_baseline=False)


def test_a_time_below_the_arithmetic_fails(product: Evidence) -> None:
    # 2 × 50 × 100 × 100 FLOPs at 1 GFLOP/s are 1 ms.
    assert examine_floor(product, 0.7e6, "cpu", DEVICE).outcome == "failed"
    assert examine_floor(product, 0.9e6, "cpu", DEVICE).outcome == "passed"
    assert "1 ms" in examine_floor(product, 0.7e6, "cpu", DEVICE).detail


def test_the_higher_of_two_ceilings_counts(product: Evidence) -> None:
    sheet = msgspec.structs.replace(PEAK, value=1e10, source="datasheet")
    device = msgspec.structs.replace(DEVICE, ceilings=(PEAK, sheet))
    assert examine_floor(product, 0.2e6, "cpu", device).outcome == "passed"


def test_a_disturbed_or_exceeded_ceiling_makes_no_variant_invalid(product: Evidence) -> None:
    for marks in ({"disturbed": True}, {"exceeded": True}):
        low = msgspec.structs.replace(PEAK, **marks)
        device = msgspec.structs.replace(DEVICE, ceilings=(low, COPY))
        assert examine_floor(product, 1.0, "cpu", device).outcome == "not looked for"


def test_a_ceiling_that_a_variant_exceeds_is_measured_again(
    product: Evidence, monkeypatch: pytest.MonkeyPatch
) -> None:
    high = msgspec.structs.replace(PEAK, value=1e10)
    monkeypatch.setattr(guards, "cached", lambda device: DEVICE)
    asked: list[tuple[str, ...]] = []

    def measured(device: str, dtypes: list[str], budget_s: float) -> Device:
        asked.append(tuple(dtypes))
        return msgspec.structs.replace(DEVICE, ceilings=(high, COPY))

    monkeypatch.setattr(guards, "measure", measured)
    assert examine_floor(product, 0.2e6, "cpu").outcome == "passed"
    assert asked == [("float32",)]
    assert examine_floor(product, 0.01e6, "cpu").outcome == "failed"


def test_a_floor_that_the_baseline_breaks_too_does_not_judge_the_candidate() -> None:
    failed, passed = (Guard(name=guards.FLOOR_GUARD, outcome=o) for o in ("failed", "passed"))  # type: ignore[arg-type]
    excused = floor_of_candidate(failed, failed)
    assert excused is not None
    assert excused.outcome == "not looked for"
    assert floor_of_candidate(passed, failed) is failed


def test_memory_that_must_be_touched_takes_its_time() -> None:
    x = torch.ones(1_000_000)
    evidence = collect(workload(lambda: x * 2), seed=1, as_baseline=False)
    assert evidence.work is not None
    assert evidence.work.read_bytes == evidence.work.written_bytes == 4_000_000
    # 8 MB less a cache of 1 MiB at 10 GB/s are 0.7 ms, and half of that is let pass.
    device = msgspec.structs.replace(DEVICE, ceilings=(COPY,))
    assert examine_floor(evidence, 0.3e6, "cpu", device).outcome == "failed"
    assert examine_floor(evidence, 0.4e6, "cpu", device).outcome == "passed"


def test_what_fits_the_cache_has_no_floor() -> None:
    work = Work(read_bytes=2**19, written_bytes=2**19)
    assert floor_ns(work, DEVICE).traffic_ns == 0


def test_a_table_of_which_a_few_rows_are_read_counts_little() -> None:
    table, ids = nn.Embedding(100_000, 64), torch.arange(8)
    evidence = collect(workload(lambda: table(ids)), seed=1, as_baseline=False)
    assert evidence.work is not None
    assert evidence.work.read_bytes < 10_000


def test_convolutions_may_be_done_with_a_quarter_of_the_multiplications() -> None:
    plain = floor_ns(Work(flops={"float32": 10**9}), DEVICE)
    convolution = floor_ns(Work(convolution_flops={"float32": 10**9}), DEVICE)
    assert convolution.arithmetic_ns == plain.arithmetic_ns / 4


def test_without_a_ceiling_it_is_not_looked_for(product: Evidence) -> None:
    bare = msgspec.structs.replace(DEVICE, ceilings=(COPY,), cache_bytes=0)
    guard = examine_floor(product, 1.0, "cpu", bare)
    assert guard.outcome == "not looked for"
    assert "float32" in guard.detail


def test_work_that_was_not_counted_is_not_looked_for(product: Evidence) -> None:
    evidence = msgspec.structs.replace(product, work=None, work_fresh=None, work_why="it raised")
    assert examine_floor(evidence, 1.0, "cpu", DEVICE).detail == "it raised"
    hidden = msgspec.structs.replace(product, work=Work(unseen=("CUDA graphs",)), work_fresh=None)
    assert examine_floor(hidden, 1.0, "cpu", DEVICE).outcome == "not looked for"


def test_a_remembered_answer_is_measured_by_the_work_it_skipped() -> None:
    kept = {}

    def cheat() -> torch.Tensor:
        key = X.sum().item()
        if key not in kept:
            kept[key] = X @ W
        return kept[key]

    evidence = collect(workload(cheat), seed=1, as_baseline=False)
    assert examine_floor(evidence, 0.1e6, "cpu", DEVICE).outcome == "failed"


def test_a_training_steps_backward_counts_too() -> None:
    layer = nn.Linear(256, 256, bias=False)
    x = torch.randn(128, 256, requires_grad=True)
    evidence = collect(workload(lambda: layer(x).sum().backward()), seed=1, as_baseline=False)
    assert evidence.work is not None
    assert sum(evidence.work.flops.values()) == 3 * 2 * 128 * 256 * 256


def test_what_a_block_mask_leaves_out_is_not_held_against_anybody() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q = torch.randn(1, 1, 128, 16)
    near = create_block_mask(
        lambda b, h, i, j: (i - j).abs() < 16, None, None, 128, 128, device="cpu"
    )
    evidence = collect(
        workload(lambda: flex_attention(q, q, q, block_mask=near)), seed=1, as_baseline=False
    )
    assert evidence.work is not None
    assert "flex attention" in evidence.work.unseen
    assert examine_floor(evidence, 1.0, "cpu", DEVICE).outcome == "not looked for"
