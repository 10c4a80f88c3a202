"""Steps that launch the same kernels every time."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rule import with_tolerance
from ridgeline.diagnosis.rules._launch import fixed_sizes
from ridgeline.diagnosis.rules.small_launches import cuda_graph_candidate, small_kernels
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import Region
from tests.unit.diagnosis.rules.made_up_launch import captured, case, site

SOURCE = """import torch
def main():
    model = build()
    for x in data:
        loss = 1 + 1

        loss = model(x).sum()
"""


def kernels(calls: float = 1.0) -> list[OpSite]:
    return [
        site("mul", calls, 0.1, module=f"B_{i}", device_ms=calls * 0.004, dims=((64 + i, 8),))
        for i in range(400)
    ]


def test_the_same_sizes_every_step_make_a_graph() -> None:
    whole = case(kernels(), gpu=True, busy=0.3, source=SOURCE, capture=captured(fused="True"))
    (one,) = cuda_graph_candidate(whole)
    assert "waits 70 % of each step for Python to launch the same 400 kernels" in one.claim
    assert one.place == "train.py:7"
    assert one.share_pct == pytest.approx(70)
    assert "make_graphed_callables(model" in one.change
    assert not [*small_kernels(whole)]  # said once


def test_a_trace_alone_names_the_function_that_launches() -> None:
    (one,) = cuda_graph_candidate(case(kernels(), gpu=True, busy=0.2, kind="trace"))
    assert one.function == "main"
    assert one.share_pct == pytest.approx(60, abs=1)  # untraced it would wait less
    assert one.gain_bound == pytest.approx(with_tolerance(5.0), abs=0.01)  # 1 / busy of the trace
    assert "Python stacks slows the host" in one.doubt


def test_sizes_are_fixed_only_if_every_step_has_them() -> None:
    assert fixed_sizes(case(kernels(), gpu=True)) is True
    assert fixed_sizes(case(kernels(2 / 3), gpu=True)) is False
    assert fixed_sizes(case(kernels(), gpu=True, steps=1)) is None
    once = [*kernels(), site("mean", 1 / 3, 0.1, dims=((9, 9),))]  # a line logged now and then
    assert fixed_sizes(case(once, gpu=True)) is True


def test_graphs_that_are_there_are_silent() -> None:
    whole = case(kernels(), gpu=True, busy=0.3, source=SOURCE)
    assert whole.study is not None
    region = Region(kind="graph", name="g", count=3, host_ns=1, device_ns=1, operations=9)
    replayed = replace(whole, study=replace(whole.study, regions=(region,)))
    assert not [*cuda_graph_candidate(replayed)]
