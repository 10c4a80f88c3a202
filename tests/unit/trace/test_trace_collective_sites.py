from pathlib import Path

import pytest

from ridgeline.records.trace import Window
from ridgeline.trace.analyses.collective_sites import exchange
from ridgeline.trace.links import Links
from ridgeline.trace.ranks.own_time import own_functions
from ridgeline.trace.window import window_of
from tests.unit.trace.traces_made import WORKER, Made

FLOATS = {"Input Dims": [[[65536]], []], "Input type": ["TensorList", ""]}


def gloo(slow: float = 0.0) -> Made:
    """A step of 10 ms: 4 of compute, `slow` in watch(), a backward with an exchange of 3 ms of
    which 1 is hidden, and one of 1 ms asked for by scored()."""
    made = Made()
    made.span("ProfilerStep#0", 0, 10_000 + slow)
    made.frame("train.py(10): main", 0, 10_000 + slow)
    if slow:
        made.frame("train.py(3): watch", 0, slow)
    at = slow
    made.span("DistributedDataParallel.forward", at, 4_000)
    made.op("aten::mm", at, 4_000)
    made.frame("torch/autograd/__init__.py(200): backward", at + 4_000, 4_000)
    made.op("autograd::engine::evaluate_function: MmBackward0", at + 4_000, 2_000)
    made.op("c10d::allreduce_", at + 4_100, 10, **FLOATS)
    made.op("aten::mm", at + 5_000, 1_000)
    made.span("gloo:all_reduce", at + 5_000, 3_000, tid=WORKER)
    made.frame("train.py(5): scored", at + 8_000, 1_500)
    made.op("c10d::allgather_", at + 8_050, 10, **FLOATS)
    made.span("gloo:all_gather", at + 8_100, 1_000, tid=WORKER)
    made.span("Optimizer.step#SGD.step", at + 9_600, 300)
    return made


def test_collectives_by_what_they_are_and_who_asks(tmp_path: Path) -> None:
    trace = gloo().trace(tmp_path)
    found = exchange(trace, Links(trace), window_of(trace, "all"))
    reduced, gathered = found.sites
    assert (reduced.name, reduced.phase, reduced.calls) == ("all_reduce", "backward", 1)
    assert (reduced.bytes, reduced.estimated) == (4 * 65536, True)
    assert reduced.ns == pytest.approx(3e6)
    assert reduced.exposed_ns == pytest.approx(2e6)
    assert reduced.place is not None
    assert reduced.place.function == "main"
    assert gathered.name == "all_gather"
    assert gathered.place is not None
    assert gathered.place.function == "scored"
    assert (found.forwards, found.backwards) == (1, 1)
    assert found.ns == pytest.approx(4e6)
    assert found.exposed_ns == pytest.approx(3e6)


def test_kernels_tell_their_bytes_themselves(tmp_path: Path) -> None:
    told = {
        "Collective name": "allreduce", "In msg nelems": 1000, "Out msg nelems": 1000,
        "dtype": "BFloat16", "Group size": 8,
    }  # fmt: skip
    made = Made()
    made.span("ProfilerStep#0", 0, 1_000)
    made.op("c10d::allreduce_", 10, 20)
    made.op("record_param_comms", 12, 15, **told)
    made.launch("ncclDevKernel_AllReduce_Sum", 15, 100, 400, 1, stream=9)
    made.op("aten::mm", 40, 20)
    made.launch("gemm", 45, 300, 500, 2)
    trace = made.trace(tmp_path)
    (site,) = exchange(trace, Links(trace), window_of(trace, "all")).sites
    assert (site.bytes, site.estimated) == (2000, False)
    assert site.ns == pytest.approx(4e5)
    assert site.exposed_ns == pytest.approx(2e5)


def test_without_collectives_there_is_nothing(tmp_path: Path) -> None:
    trace = Made().op("aten::mm", 0, 10).trace(tmp_path)
    found = exchange(trace, Links(trace), window_of(trace))
    assert found.sites == ()
    assert exchange(trace, Links(trace), Window(start_ns=0, end_ns=0, basis="")).sites == ()


def test_without_operators_nothing_tells_what_is_exposed(tmp_path: Path) -> None:
    trace = Made().span("ProfilerStep#0", 0, 100).span("gloo:all_reduce", 10, 50).trace(tmp_path)
    assert exchange(trace, Links(trace), window_of(trace)).sites == ()


def test_a_function_only_one_rank_is_in(tmp_path: Path) -> None:
    traces = [gloo(5_000.0).trace(tmp_path, "a.json"), gloo().trace(tmp_path, "b.json")]
    links = [Links(trace) for trace in traces]
    windows = [window_of(trace, "all") for trace in traces]
    first = own_functions(traces, links, windows, [0, 1])[0]
    assert (first.rank, first.place.function) == (0, "watch")
    assert first.ns == pytest.approx(5e6, rel=0.02)
    assert first.others_ns == 0


def test_one_rank_alone_has_nothing_to_compare(tmp_path: Path) -> None:
    trace = gloo().trace(tmp_path)
    assert own_functions([trace], [Links(trace)], [window_of(trace)], [0]) == ()


def sharded(mark: str) -> Made:
    """A block's parameters gathered in the forward; its gradients, asked for under another name
    than gloo's, reduced in the backward."""
    made = Made()
    made.span("ProfilerStep#0", 0, 10_000)
    made.op("aten::mm", 0, 1_000)
    made.span(f"{mark}pre_forward", 1_000, 1_000)
    made.op("c10d::_allgather_base_", 1_100, 10, **FLOATS)
    made.span("gloo:all_gather", 1_150, 800, tid=WORKER)
    made.frame("torch/autograd/__init__.py(200): backward", 4_000, 4_000)
    made.op("autograd::engine::evaluate_function: MmBackward0", 4_000, 2_000)
    made.op("c10d::_reduce_scatter_base_", 4_500, 10, **FLOATS)
    made.span("gloo:all_reduce", 5_000, 2_500, tid=WORKER)
    return made


@pytest.mark.parametrize(
    ("mark", "sharding"), [("FSDP::", "fsdp2"), ("FullyShardedDataParallel.", "fsdp1")]
)
def test_collectives_of_a_sharding_wrapper_are_attributed_to_it(
    mark: str, sharding: str, tmp_path: Path
) -> None:
    trace = sharded(mark).trace(tmp_path)
    found = exchange(trace, Links(trace), window_of(trace, "all")).sites
    assert {site.name: site.sharding for site in found} == {
        "all_gather": sharding, "all_reduce": sharding,
    }  # fmt: skip


def test_collectives_of_buckets_are_not_attributed_to_a_sharding_wrapper(tmp_path: Path) -> None:
    trace = gloo().trace(tmp_path)
    assert not any(s.sharding for s in exchange(trace, Links(trace), window_of(trace, "all")).sites)


def test_a_number_that_is_reduced_has_the_size_of_one_element(tmp_path: Path) -> None:
    made = Made()
    made.span("ProfilerStep#0", 0, 10_000)
    made.op("aten::mm", 0, 1_000)
    number = {"Input Dims": [[[]], [], []], "Input type": ["TensorList", "", ""]}
    made.op("c10d::allreduce_", 1_000, 10, **number)
    made.span("gloo:all_reduce", 1_050, 3_000, tid=WORKER)
    trace = made.trace(tmp_path)
    (site,) = exchange(trace, Links(trace), window_of(trace, "all")).sites
    assert (site.bytes, site.estimated) == (4, True)
