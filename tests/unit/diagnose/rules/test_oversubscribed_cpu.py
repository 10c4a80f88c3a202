import pytest
from msgspec.structs import replace

from ridgeline.diagnose.rules.oversubscribed_cpu import look
from tests.unit.diagnose import made_up_verdict as made
from tests.unit.diagnose.rules.made_up_machine import case, looks, only, run_file

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
        (2, 16, 60.0),  # idle cores: nobody waits
    ],
)
def test_silent_where_every_thread_can_run(cores: int, threads: int, host: float) -> None:
    assert not [*look(case(looks(host=host), cores=cores, threads=threads))]


def test_silent_on_a_gpu_whose_program_computes_little_on_the_host() -> None:
    assert not [*look(case(looks(host=100.0), cores=2, threads=16, gpu=True))]
