import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rules.communication import small_collectives as look
from tests.unit.diagnosis.rules.made_up_machine import only
from tests.unit.diagnosis.rules.made_up_ranks import MIB, case, site

SOURCE = """def average(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(2)


def main():
    model = DistributedDataParallel(net, bucket_cap_mb=1)
"""


def test_gradients_reduced_one_by_one() -> None:
    held = site(20, calls=100, size=4096, phase="forward", function="average")
    found = only(look(case(held, source=SOURCE)))
    assert found.claim == "100 small all_reduces a step of 4 KiB each, where one would do"
    assert found.place == "train.py:3"
    assert found.share_pct == pytest.approx(19.8)
    assert found.confidence == "high"
    assert "torch.cat" in found.change


def test_the_fix_is_of_the_collective_that_was_seen() -> None:
    held = site(20, calls=100, size=4096, name="broadcast", phase="forward", function="")
    found = only(look(case(held)))
    assert "one broadcast of flat" in found.change
    assert "all_reduce" not in found.change


def test_sizes_of_one_function_are_taken_together() -> None:
    held = [site(5, calls=5, size=n * 1024, phase="forward", function="average") for n in (1, 64)]
    found = only(look(case(*held, source=SOURCE)))
    assert "10 small" in found.claim


def test_buckets_that_are_too_small() -> None:
    found = only(look(case(site(15, calls=30, size=MIB // 4, line=7), source=SOURCE)))
    assert found.place == "train.py:8"
    assert "bucket_cap_mb" in found.change


def test_without_sizes_short_calls_count() -> None:
    found = only(look(case(site(5, calls=100, size=None, function=""), run=False)))
    assert found.confidence == "low"
    assert found.file == ""


@pytest.mark.parametrize(
    ("ms", "calls", "size"),
    [
        (20, 100, 25 * MIB),  # many, and large
        (20, 4, 4096),  # small, and few
        (1, 100, 4096),  # small and many, and hidden or quick
        (20, 100, None),  # nothing tells their size, and they are long
    ],
)
def test_silent(ms: float, calls: int, size: int | None) -> None:
    assert not [*look(case(site(ms, calls=calls, size=size), source=SOURCE))]


def test_silent_where_compute_hides_them() -> None:
    held = site(20, calls=100, size=4096, exposed=0.5)
    assert not [*look(case(held, source=SOURCE))]


def test_silent_without_collectives() -> None:
    assert not [*look(case())]


def test_a_model_sharded_in_small_pieces_is_to_be_sharded_in_larger_ones() -> None:
    held = site(20, calls=24, size=4096, name="all_gather", phase="forward")
    found = only(look(case(replace(held, sharding="fsdp2"), source=SOURCE)))
    assert "fully_shard" in found.change
    assert "bucket" not in found.change
    assert "torch.cat" not in found.change
