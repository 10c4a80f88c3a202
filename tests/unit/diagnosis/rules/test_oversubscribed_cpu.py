import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rules.shared_machine import oversubscribed_cpu as look
from ridgeline.records.finding import Finding
from ridgeline.records.run_summary import Telemetered
from tests.unit.diagnosis import made_up_verdict as made
from tests.unit.diagnosis.rules.made_up_machine import case, looks, only, run_file

SOURCE = """import torch


def main():
    torch.set_num_threads(8)
    train()
"""


def test_ranks_that_each_take_every_core() -> None:
    ranks = run_file(8, LOCAL_WORLD_SIZE="2")
    work = replace(made.work(0.8, gpu=False), attained=0.1, communication_share=0.1)
    found = only(look(case(looks(host=99.0), run=ranks, work=work, source=SOURCE)))
    assert found.claim.startswith("2 ranks with 8 threads each share 8 cores")
    assert found.place == "train.py:5"
    assert found.share_pct == pytest.approx(81)
    assert found.confidence == "high"
    assert "torch.set_num_threads(4)" in found.change


def test_more_threads_than_cores_in_one_process() -> None:
    found = only(look(case(looks(host=100.0), cores=2, threads=16, work=None)))
    assert "16 threads share 2 cores" in found.claim
    assert found.share_pct == pytest.approx(87.5)
    assert found.confidence == "medium"
    assert "OMP_NUM_THREADS=2" in found.change


@pytest.mark.parametrize(
    ("cores", "threads", "host"),
    [
        (8, 8, 100.0),  # a thread for each core
        (8, 10, 100.0),  # a little more
        (2, 16, 60.0),  # idle cores, and operators that reach 60 % of their ceilings
    ],
)
def test_silent_where_every_thread_can_run(cores: int, threads: int, host: float) -> None:
    assert not [*look(case(looks(host=host), cores=cores, threads=threads))]


def test_silent_on_a_gpu_whose_program_computes_little_on_the_host() -> None:
    assert not [*look(case(looks(host=100.0), cores=2, threads=16, gpu=True))]


def asleep(attained: float | None, program: float = 1.43, host: float = 66.0) -> list[Finding]:
    """24 threads on 2 cores, which are idle a third of the time."""
    work = replace(made.work(0.89, gpu=False), attained=attained, operator_ms=94.0)
    seen = Telemetered(program_cores=program, worker_cores=0.0)
    made_up = case(looks(host=host), cores=2, threads=24, work=work, seen=seen, source=SOURCE)
    return [*look(made_up)]


def test_threads_that_sleep_while_they_wait_leave_cores_idle() -> None:
    found = only(asleep(attained=0.12))
    assert "24 threads share 2 cores" in found.claim
    assert found.confidence == "medium"
    assert "idle part of the time" in found.doubt
    assert found.share_pct == pytest.approx(100 * 0.89 * 0.88)
    # operators are 94 of the untraced step's 100 ms, though 89 % of the traced one
    assert found.gain_bound >= 1 / (1 - 0.94 * 0.88)


def test_idle_cores_need_operators_far_below_the_ceilings_on_several_threads() -> None:
    assert not asleep(attained=0.43)
    assert not asleep(attained=None)
    assert not asleep(attained=0.02, program=1.0)  # small operators run on one thread


def test_operators_that_reach_the_ceilings_lose_nothing_to_threads() -> None:
    assert not asleep(attained=0.74, program=1.98, host=100.0)
    assert only(asleep(attained=0.43, program=1.98, host=100.0)).confidence == "high"
