"""Graph launches, compiled regions and compilation."""

from pathlib import Path

import pytest
from traces_made import Made

from ridgeline.records.trace import Region, Window
from ridgeline.trace.analyses.regions import regions
from ridgeline.trace.links import Links


def regions_of(made: Made, folder: Path, start: int = 0) -> list[Region]:
    trace = made.trace(folder)
    window = Window(start_ns=start * 1000, end_ns=1_000_000, basis="test")
    return list(regions(trace, Links(trace), window))


@pytest.mark.parametrize("call", ["cudaGraphLaunch", "hipGraphLaunch", "cuGraphLaunch"])
def test_a_graph_holds_the_kernels_of_its_launch(tmp_path: Path, call: str) -> None:
    made = Made().call(call, 10, 7, 1).kernel("k1", 20, 5, 1).kernel("k2", 30, 6, 1)
    made.launch("plain", 50, 60, 5, 2)
    (row,) = regions_of(made, tmp_path)
    assert (row.kind, row.name, row.count) == ("graph", call, 1)
    assert (row.host_ns, row.device_ns, row.operations) == (7_000, 11_000, 2)
    assert "2 of 2 device operations have no launching operator" in row.note


def test_graphs_are_told_apart_by_id_also_without_a_launch(tmp_path: Path) -> None:
    made = Made().op("aten::replay", 0, 30).call("cudaGraphLaunch", 10, 7, 1)
    made.kernel("k1", 40, 5, 1, **{"graph id": 3, "graph node id": 1})
    made.kernel("k2", 60, 9, 0, **{"graph id": 8, "graph node id": 1})
    lost, held = regions_of(made, tmp_path)
    assert (lost.name, lost.count, lost.operations) == ("graph 8", 0, 1)
    assert "no launching call" in lost.note
    assert (held.name, held.count, held.note) == ("graph 3", 1, "")


def test_a_graph_whose_kernels_are_hidden_is_told(tmp_path: Path) -> None:
    (row,) = regions_of(Made().call("cudaGraphLaunch", 10, 7, 1), tmp_path)
    assert (row.count, row.operations) == (1, 0)
    assert "not in sight" in row.note


def test_compiled_regions_hold_what_is_launched_inside(tmp_path: Path) -> None:
    made = Made().op("Torch-Compiled Region: 0/0", 0, 100).op("CompiledFunction", 10, 80)
    made.span("## Call CompiledFxGraph fabc ##", 20, 40).launch(
        "triton_poi_fused_add_0", 30, 70, 9, 1
    )
    made.launch("late", 95, 120, 4, 2).launch("outside", 150, 160, 50, 3)
    found = {row.name: row for row in regions_of(made, tmp_path)}
    region = found["Torch-Compiled Region: 0/0"]
    assert (region.host_ns, region.device_ns, region.operations) == (100_000, 13_000, 2)
    assert found["CompiledFunction"].device_ns == 9_000
    assert found["## Call CompiledFxGraph fabc ##"].operations == 1
    assert found["generated Triton kernels"].device_ns == 9_000


def test_a_region_that_ended_before_its_kernel_opened_the_window_counts(tmp_path: Path) -> None:
    made = Made().op("CompiledFunction", 0, 50).launch("k", 10, 200, 9, 1)
    (row,) = regions_of(made, tmp_path, start=200)
    assert (row.count, row.operations) == (1, 1)


def test_a_region_within_itself_counts_once(tmp_path: Path) -> None:
    made = Made().op("CompiledFunction", 0, 100).op("CompiledFunction", 10, 20)
    (row,) = regions_of(made, tmp_path)
    assert (row.count, row.host_ns) == (1, 100_000)


def test_compilation_is_the_time_inside_the_compiler(tmp_path: Path) -> None:
    made = Made().span("_compile.compile_inner (dynamo_timed)", 100, 300)
    made.frame("torch/_inductor/compile_fx.py(800): compile_fx_inner", 150, 100)
    made.frame("torch/_dynamo/convert_frame.py(900): __call__", 90, 320)
    (row,) = regions_of(made, tmp_path)
    assert (row.kind, row.count, row.host_ns) == ("compilation", 1, 320_000)


def test_running_a_compiled_function_is_not_compiling(tmp_path: Path) -> None:
    made = Made().frame("torch/_dynamo/eval_frame.py(838): compile_wrapper", 0, 500)
    made.frame("torch/_inductor/output_code.py(600): __call__", 10, 400)
    made.frame("torch/_inductor/compile_fx.py(1500): run", 20, 300)
    assert regions_of(made, tmp_path) == []


def test_an_empty_trace_has_no_regions(tmp_path: Path) -> None:
    assert regions_of(Made(), tmp_path) == []
