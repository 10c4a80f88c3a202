"""many-workers: threads that take each other's processors."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rule import with_tolerance
from ridgeline.diagnosis.rules.loader_faults import few_workers, loader_starves
from ridgeline.diagnosis.rules.loader_faults import many_workers as look
from ridgeline.records.run import ProcessSample, Telemetry
from tests.unit.diagnosis.rules.made_up_input import FILE, LOADER, PARSE, THREADS, case, line, view


def crowd(
    threads: int, workers: int = 8, used: float = 1.0, pool: int = 16, share: float = 0.5
) -> Case:
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
        threads=pool, share=share,
    )  # fmt: skip


def test_workers_with_a_pool_each_are_named_where_it_is_set() -> None:
    told = crowd(threads=20)
    (finding,) = look(told)
    assert finding.claim == (
        "Training waits 50 % of each step while 8 workers × 16 threads share 16 processors"
    )
    assert finding.place == f"{FILE}:{THREADS}"
    assert finding.change == "torch.set_num_threads(1)"
    assert finding.confidence == "high"
    assert finding.gain_bound == pytest.approx(with_tolerance(2.0), abs=0.001)
    assert not [*few_workers(told)]
    assert not [*loader_starves(told)]


def short_of_processors(had: float, waits: float = 0.04, threads: int = 1) -> Case:
    """One thread trains beside eight workers with a pool each."""
    told = crowd(threads=20, share=waits)
    assert told.capture is not None
    flags = replace(told.capture.flags, threads=threads)
    return replace(
        told,
        capture=replace(told.capture, flags=flags),
        telemetered=replace(told.telemetered, program_cores=had),
    )


def test_training_that_lacks_a_processor_is_told_without_a_wait() -> None:
    (finding,) = look(short_of_processors(0.7))
    assert finding.claim == (
        "Training lacks a processor for 26 % of each step while 8 workers × 16 threads share 16 "
        "processors"
    )
    assert finding.place == f"{FILE}:{THREADS}"


def test_training_that_has_its_processor_is_left_alone() -> None:
    assert not [*look(short_of_processors(0.93))]
    assert not [*look(short_of_processors(0.7, threads=4))]  # they wait for each other too


def test_processors_that_are_not_full_are_not_crowded() -> None:
    assert not [*look(crowd(threads=20, used=0.3))]


def test_more_workers_than_processors_without_pools_is_an_afterthought() -> None:
    told = crowd(threads=3, workers=32, pool=1)
    (finding,) = look(told)
    assert finding.confidence == "low"
    assert "num_workers=15" in finding.change
    assert finding.line == LOADER
    assert [*loader_starves(told)]


def test_as_many_workers_as_processors_are_right() -> None:
    assert not [*look(case(workers=2, cores=2, used=0.5, worker_cores=1.5))]
