"""many-workers: threads that take each other's processors."""

from ridgeline.diagnose.case import Case
from ridgeline.diagnose.rules import few_workers, loader_starves
from ridgeline.diagnose.rules.many_workers import look
from ridgeline.records.telemetry import ProcessSample, Telemetry
from tests.unit.diagnose.rules.made_up_input import FILE, LOADER, PARSE, THREADS, case, line, view


def crowd(threads: int, workers: int = 8, used: float = 1.0, pool: int = 16) -> Case:
    looks = tuple(
        Telemetry(
            at_ns=i * 10**8,
            processes=tuple(ProcessSample(pid=p, worker=True, threads=threads) for p in range(8)),
        )
        for i in range(5)
    )
    seen = view(line(PARSE, "parse", 0.9), workers=workers)
    return case(
        workers=workers, used=used, worker_cores=15.0 * used, telemetry=looks, python=seen,
        threads=pool,
    )  # fmt: skip


def test_workers_with_a_pool_each_are_named_where_it_is_set() -> None:
    told = crowd(threads=20)
    (finding,) = look(told)
    assert finding.claim == (
        "training waits 50 % of each step while 8 workers × 16 threads share 16 processors"
    )
    assert finding.place == f"{FILE}:{THREADS}"
    assert finding.change == "torch.set_num_threads(1)"
    assert finding.confidence == "high"
    assert finding.gain_bound == 2.0
    assert not [*few_workers.look(told)]
    assert not [*loader_starves.look(told)]


def test_processors_that_are_not_full_are_not_crowded() -> None:
    assert not [*look(crowd(threads=20, used=0.3))]


def test_more_workers_than_processors_without_pools_is_an_afterthought() -> None:
    told = crowd(threads=3, workers=32, pool=1)
    (finding,) = look(told)
    assert finding.confidence == "low"
    assert "num_workers=15" in finding.change
    assert finding.line == LOADER
    assert [*loader_starves.look(told)]


def test_as_many_workers_as_processors_are_right() -> None:
    assert not [*look(case(workers=2, cores=2, used=0.5, worker_cores=1.5))]
