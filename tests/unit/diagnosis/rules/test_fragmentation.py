"""Memory the allocator holds and cannot use."""

from typing import Any

from msgspec.structs import replace

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.peak_memory import fragmentation as look
from ridgeline.records.run_summary import MemoryUse
from ridgeline.records.step_work import SegmentCalls
from ridgeline.records.trace import Place
from tests.unit.diagnosis.made_up_verdict import study, work
from tests.unit.diagnosis.rules.made_up_memory import FILE, GIB, KEEPS_NONE, case, growing

AT = Place(file=FILE, line=3, function="main")


def pieces(peak: int, reserved: int, calls: float = 0.0, **changed: Any) -> Case:
    made = case(**changed)
    assert made.traced_memory is not None
    return replace(
        made,
        memory=replace(made.memory, device_peak_bytes=peak * GIB,
                       device_reserved_bytes=reserved * GIB),
        traced_memory=replace(
            made.traced_memory, segments=SegmentCalls(calls=calls, host_ns=calls * 1e6, place=AT)
        ),
    )  # fmt: skip


def test_most_of_what_is_reserved_is_never_used() -> None:
    (finding,) = look(pieces(10, 130, calls=8.0))
    assert finding.rule == "fragmentation"
    assert finding.confidence == "high"
    assert "92.3 % of the 130 GiB torch holds is never used" in finding.claim
    assert finding.memory_pct == 92.31
    assert finding.place == f"{FILE}:6"  # the model's call in main
    assert "expandable_segments:True" in finding.change


def test_calls_of_the_driver_cost_what_the_gpu_idles_for_them() -> None:
    made = replace(
        pieces(10, 11, calls=8.0), work=work(0.6), study=study({"allocator": 0.3, "input": 0.1})
    )
    (finding,) = look(made)
    assert "asked for memory 8 times a step" in finding.claim
    assert 29 < finding.share_pct < 31
    assert finding.memory_pct == 0
    assert "the longest batch" in finding.change  # growing segments are asked for just as often


def test_retries_with_memory_unused() -> None:
    made = pieces(10, 30)
    (finding,) = look(replace(made, memory=replace(made.memory, retries=3)))
    assert finding.memory_pct > 60


def test_silent_on_what_every_program_has() -> None:
    assert not list(look(pieces(10, 12)))
    assert not list(look(pieces(10, 30)))  # unused, but the device is nearly empty
    assert not list(look(pieces(100, 130)))
    assert not list(look(pieces(10, 12, calls=0.3)))


def test_silent_where_the_programs_own_memory_grows() -> None:
    made = growing(KEEPS_NONE)
    grown = pieces(10, 130, calls=8.0)
    assert not list(look(replace(made, memory=replace(grown.memory, growth_bytes_per_step=1e6))))


def test_a_trace_alone_is_enough() -> None:
    made = pieces(10, 11, calls=8.0)
    assert made.traced_memory is not None
    made = replace(
        made, kind="trace", capture=None, run=None, memory=MemoryUse(), work=work(0.6),
        study=study({"allocator": 0.4}),
        traced_memory=replace(made.traced_memory, reserved_bytes=40 * GIB),
    )  # fmt: skip
    (finding,) = look(made)
    assert finding.share_pct > 30
    assert "75 % of the 40 GiB" in finding.claim
