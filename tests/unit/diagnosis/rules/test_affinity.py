import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rules.shared_machine import affinity as look
from ridgeline.diagnosis.shares import Shares
from ridgeline.records.run_summary import Telemetered
from tests.unit.diagnosis.rules.made_up_machine import case, looks, only, run_file

PINNED = """import os


def main():
    os.sched_setaffinity(0, {0})
    train()
"""


def seen(program: float, workers: float = 0.0, count: int = 0, others: float = 0.1) -> Telemetered:
    return Telemetered(
        program_cores=program, worker_cores=workers, workers=count, other_cores=others, cores=8
    )


def test_threads_held_to_one_core_by_the_program_itself() -> None:
    found = only(look(case(seen=seen(0.99), source=PINNED)))
    assert "8 threads share 1 core" in found.claim
    assert found.place == "train.py:5"
    assert found.confidence == "high"
    assert found.share_pct == pytest.approx(87.3, abs=0.5)
    assert "os.sched_setaffinity(0, range(os.cpu_count()))" in found.change


def test_cores_the_system_names_need_no_line_in_the_source() -> None:
    held = case(seen=seen(0.8), processors=8)
    assert held.capture is not None
    flags = replace(held.capture.flags, allowed_cores=1)
    found = only(look(replace(held, capture=replace(held.capture, flags=flags))))
    assert "8 threads share 1 core" in found.claim
    assert found.confidence == "medium"
    every = replace(held.capture.flags, allowed_cores=8)
    assert not [*look(replace(held, capture=replace(held.capture, flags=every)))]


def test_workers_that_share_two_cores() -> None:
    rest = dict.fromkeys(("transfer", "overhead", "communication", "memory"), 0.0)
    waits = Shares(of={**rest, "input": 0.4, "compute": 0.6})
    found = only(look(case(seen=seen(0.4, 1.58, 6), threads=1, shares=waits)))
    assert "6 workers share 2 cores" in found.claim
    assert found.confidence == "low"
    assert found.file == ""


def test_a_variable_that_binds() -> None:
    held = run_file(8, GOMP_CPU_AFFINITY="0")
    found = only(look(case(seen=seen(1.0), run=held)))
    assert found.confidence == "medium"
    assert "GOMP_CPU_AFFINITY=0" in [one.text for one in found.evidence]


def test_held_from_outside() -> None:
    told = Telemetered(program_cores=0.5, worker_cores=1.5, workers=6)
    held = case(looks(host=25.0), seen=told, cores=2, threads=2, processors=8)
    found = only(look(held))
    assert found.confidence == "low"
    assert "2 of 8 cores" in found.evidence[-1].text


@pytest.mark.parametrize(
    "told",
    [
        seen(1.0),  # one busy thread, and nothing that binds it
        seen(7.8),  # all cores in use
        seen(3.5),  # no whole number
    ],
)
def test_silent_where_nothing_binds(told: Telemetered) -> None:
    assert not [*look(case(seen=told))]


@pytest.mark.parametrize(
    ("given", "level"),
    [
        ("{3}", "high"),
        ("cores[:1]", "high"),
        ("range(1)", "high"),
        ("mine", "medium"),
        ("{worker % 4}", "medium"),
        ("range(os.cpu_count())", ""),
        ("set(range(os.cpu_count()))", ""),
        ("{0, 1, 2, 3}", ""),
    ],
)
def test_what_the_source_gives(given: str, level: str) -> None:
    found = [*look(case(seen=seen(1.0), source=PINNED.replace("{0}", given)))]
    assert [one.confidence for one in found] == ([level] if level else [])


def test_silent_where_no_core_is_idle() -> None:
    assert not [*look(case(seen=seen(1.0, others=6.9), source=PINNED))]


def test_silent_where_one_thread_is_all_there_is() -> None:
    assert not [*look(case(seen=seen(1.0), threads=1, source=PINNED))]
