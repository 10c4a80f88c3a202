import pytest

from ridgeline.diagnose.rules.exposed_collectives import look
from ridgeline.records.trust import Trust
from tests.unit.diagnose.rules.made_up_machine import only
from tests.unit.diagnose.rules.made_up_ranks import MIB, case, ranks, site

SOURCE = """def scored(outputs):
    parts = [torch.empty_like(outputs) for _ in range(2)]
    dist.all_gather(parts, outputs)
    return parts


def main():
    model = DistributedDataParallel(net)
"""


def test_a_collective_the_program_waits_for_at_once() -> None:
    held = site(25, size=16 * MIB, name="all_gather", phase="other", function="scored")
    found = only(look(case(held, source=SOURCE)))
    assert "the step waits 25 ms in all_gather for 16 MiB" in found.claim
    assert found.place == "train.py:3"
    assert found.share_pct == pytest.approx(25)
    assert found.confidence == "high"
    assert "dist.all_gather(parts, outputs, async_op=True)" in found.change


def test_gradients_that_no_backward_hides() -> None:
    held = site(30, size=100 * MIB, exposed=20)
    found = only(look(case(held, source=SOURCE, across=ranks([0, 0], waits=(0, 0)))))
    assert found.place == "train.py:8"
    assert found.share_pct == pytest.approx(20)
    assert found.confidence == "medium"
    assert "gradient_as_bucket_view=True" in found.change


def test_what_the_rank_waited_for_others_is_not_sending() -> None:
    held = site(30, size=100 * MIB)
    found = only(look(case(held, across=ranks([0, 0], waits=(30, 0)))))
    assert found.share_pct == pytest.approx(15)
    doubtful = ranks([0, 0], trust=Trust(confidence="unreliable", why="clocks"))
    assert only(look(case(held, across=doubtful))).confidence == "low"


def test_from_one_trace_the_shortest_call_tells_what_sending_takes() -> None:
    held = site(30, calls=2, size=100 * MIB, least=5)
    found = only(look(case(held, run=False)))
    assert found.share_pct == pytest.approx(10)
    assert "late rank" in found.doubt


def test_a_few_bytes_that_take_long_are_waiting() -> None:
    assert not [*look(case(site(30, size=64 * 1024)))]


def test_on_a_cpu_the_exchange_takes_cores_too() -> None:
    held = site(25, size=16 * MIB, name="all_gather", phase="other", function="scored", exposed=10)
    found = only(look(case(held, source=SOURCE, gpu=False)))
    assert found.share_pct == pytest.approx(25)


@pytest.mark.parametrize("exposed", [0.0, 2.0])
def test_silent_where_compute_hides_it(exposed: float) -> None:
    assert not [*look(case(site(30, size=100 * MIB, exposed=exposed)))]


def test_many_small_ones_are_another_rules() -> None:
    held = site(20, calls=100, size=4096, phase="forward", function="scored")
    assert not [*look(case(held, source=SOURCE))]
