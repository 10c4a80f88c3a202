"""Rooflines from recorded inputs: the work by formula, the ceiling that binds, what is left out."""

from pathlib import Path
from typing import Any

import pytest

from ridgeline.records.machine import Ceiling, Device
from ridgeline.records.trace import Roofline, RooflineRow, Window
from ridgeline.trace.analyses.recorded_calls import op_work
from ridgeline.trace.analyses.roofline import roofline
from ridgeline.trace.links import Links
from ridgeline.trace.trace import Shape
from tests.unit.trace.traces_made import Made

ALL = Window(start_ns=0, end_ns=10**12, basis="test")


def _device() -> Device:
    peaks = {"float32": 10e12, "tf32": 80e12, "bfloat16": 100e12}
    return Device(
        kind="cuda",
        index=0,
        name="made",
        memory_bytes=1,
        ceilings=(
            *(
                Ceiling(quantity="matmul", value=v, unit="FLOP/s", source="datasheet", dtype=d)
                for d, v in peaks.items()
            ),
            Ceiling(quantity="copy", value=1e12, unit="B/s", source="measured"),
        ),
    )


def _inputs(
    dims: list[Any], types: list[str] | str = "float", concrete: list[str] | None = None
) -> dict[str, Any]:
    kinds = [types] * len(dims) if isinstance(types, str) else types
    told = {} if concrete is None else {"Concrete Inputs": concrete}
    return {"Input Dims": dims, "Input type": kinds, **told}


def _study(made: Made, folder: Path, device: Device | None = None) -> Roofline:
    trace = made.trace(folder)
    return roofline(trace, Links(trace), ALL, device)


def _only(study: Roofline) -> RooflineRow:
    (row,) = study.rows
    return row


def test_a_matrix_product_is_counted_and_bound_by_arithmetic(tmp_path: Path) -> None:
    made = Made()
    for i in range(2):
        inputs = _inputs([[1024, 512], [512, 2048]])
        made.op("aten::mm", 40 * i, 20, **inputs).launch(
            "sgemm", 40 * i + 5, 500 + 400 * i, 250, i + 1
        )
    row = _only(_study(made, tmp_path, _device()))
    assert (row.count, row.device_ns) == (2, 500_000)
    assert row.flops == 2 * 1024 * 512 * 2048
    assert row.bytes == 4 * (1024 * 512 + 512 * 2048 + 1024 * 2048)
    assert row.flops_s == pytest.approx(row.flops * 2 / 500e-6)
    assert (row.bound, row.ceiling, row.source) == ("compute", 10e12, "datasheet")
    assert row.attained == pytest.approx(row.flops_s / 10e12)
    assert row.share == 1.0


def test_elementwise_work_is_bound_by_memory(tmp_path: Path) -> None:
    inputs = _inputs([[1000, 1000], [1000, 1000], []], ["float", "float", "Scalar"], ["", "", "1"])
    made = Made().op("aten::add", 0, 20, **inputs).launch("vectorized_elementwise", 5, 50, 24, 1)
    row = _only(_study(made, tmp_path, _device()))
    assert (row.bytes, row.flops) == (12_000_000, 1_000_000)
    assert (row.bound, row.source) == ("memory", "measured")
    assert row.attained == pytest.approx(0.5)
    assert row.note == ""


def test_more_than_the_ceiling_is_flagged(tmp_path: Path) -> None:
    made = Made().op("aten::relu", 0, 20, **_inputs([[1000, 1000]])).launch("k", 5, 50, 4, 1)
    row = _only(_study(made, tmp_path, _device()))
    assert row.over_ceiling
    assert row.attained is None, "twice the ceiling is no share of it"
    assert row.note.startswith("over the ceiling")


def test_tensor_core_kernels_measure_float32_against_tf32(tmp_path: Path) -> None:
    inputs = _inputs([[4096, 4096], [4096, 4096]])
    kernel = "cutlass_80_tensorop_s1688gemm_128x128"
    row = _only(
        _study(
            Made().op("aten::mm", 0, 9, **inputs).launch(kernel, 1, 50, 4000, 1),
            tmp_path,
            _device(),
        )
    )
    assert (row.dtype, row.ceiling) == ("tf32", 80e12)


def test_without_a_device_rates_are_given_and_no_share(tmp_path: Path) -> None:
    made = Made().op("aten::mm", 0, 9, **_inputs([[64, 64], [64, 64]])).launch("k", 1, 50, 4, 1)
    row = _only(_study(made, tmp_path))
    assert row.flops_s > 0
    assert row.bytes_s > 0
    assert (row.attained, row.ceiling, row.bound) == (None, None, "")
    assert row.source == "the device is not known"


def test_the_nearest_operator_with_a_formula_answers(tmp_path: Path) -> None:
    made = Made()
    made.op("aten::linear", 0, 90, **_inputs([[8, 16], [32, 16], [32]]))
    made.op("my::wrapper", 10, 60, **_inputs([[8, 16]])).launch("gemm", 20, 200, 10, 1)
    row = _only(_study(made, tmp_path))
    assert (row.op, row.flops) == ("aten::linear", 2 * 8 * 16 * 32)


def test_an_operator_answers_for_the_work_of_its_callees_too(tmp_path: Path) -> None:
    made = Made()
    concrete = ["", "", "", "[8]", "[1, 1]", "[0, 0]", "[1, 1]", "False", "[0, 0]", "1",
                "[True, True, True]"]  # fmt: skip
    dims: list[Any] = [[2, 8, 4, 4], [2, 3, 4, 4], [8, 3, 1, 1], [], [], [], [], [], [], [], []]
    types = ["float"] * 3 + ["ScalarList"] * 4 + ["Scalar", "ScalarList", "Scalar", "ScalarList"]
    made.op("aten::convolution_backward", 0, 90, **_inputs(dims, types, concrete))
    made.launch("dgrad", 5, 200, 10, 1).launch("wgrad", 15, 220, 10, 2)
    made.op("aten::sum", 40, 30, **_inputs([[2, 8, 4, 4]])).launch("reduce_kernel", 45, 240, 5, 3)
    study = _study(made, tmp_path)
    row = _only(study)
    assert (row.op, row.device_ns) == ("aten::convolution_backward", 25_000)
    assert row.flops == 2 * 2 * (2 * 4 * 4 * 8 * 3) + 2 * 8 * 4 * 4
    assert study.covered == 1.0


def test_a_share_of_an_operators_work_is_not_rated(tmp_path: Path) -> None:
    """Of the two kernels one lies outside the window: half the time is no time to divide by."""
    made = Made().op("aten::mm", 0, 30, **_inputs([[64, 64], [64, 64]]))
    made.launch("a", 1, 50, 10, 1).launch("b", 11, 90, 10, 2)
    trace = made.trace(tmp_path)
    study = roofline(trace, Links(trace), Window(start_ns=0, end_ns=80_000, basis="t"), _device())
    assert study.rows == ()
    assert study.uncovered == (("aten::mm", 10_000),)


def test_what_has_no_formula_or_no_operator_is_named(tmp_path: Path) -> None:
    made = Made()
    made.op("aten::mm", 0, 9, **_inputs([[64, 64], [64, 64]])).launch("k", 1, 50, 4, 1)
    made.op("my::op", 10, 9, **_inputs([[64, 64]])).launch("mine", 11, 60, 3, 2)
    made.kernel("orphan", 70, 2, 77)
    made.op("aten::copy_", 30, 9, **_inputs([[64], [64]])).call("cudaMemcpyAsync", 31, 2, 3)
    made.kernel("Memcpy HtoD (Pinned -> Device)", 80, 1, 3, cat="gpu_memcpy")
    study = _study(made, tmp_path, _device())
    assert study.covered == pytest.approx(0.4)
    assert study.uncovered == (
        ("my::op", 3_000),
        ("orphan", 2_000),
        ("Memcpy HtoD (Pinned -> Device)", 1_000),
    )
    assert study.trust.confidence == "doubtful"


def test_convolutions_of_old_traces_take_their_result_from_the_backward(tmp_path: Path) -> None:
    made = Made()
    lists = ["GenericList"] * 3
    forward: list[Any] = [[2, 3, 8, 8], [4, 3, 3, 3], [], [], []]
    made.op("aten::cudnn_convolution", 0, 20, **_inputs(forward, ["float", "float", *lists]))
    made.launch("conv", 5, 100, 10, 1)
    dims: list[Any] = [[2, 3, 8, 8], [2, 4, 3, 3], [4, 3, 3, 3], [], [], []]
    made.op("aten::cudnn_convolution_backward", 30, 50, **_inputs(dims, ["float"] * 3 + lists))
    grad: list[Any] = [[], [2, 4, 3, 3], [4, 3, 3, 3]]
    made.op("aten::cudnn_convolution_backward_input", 32, 15,
            **_inputs(grad, ["GenericList", "float", "float"]))  # fmt: skip
    made.launch("dgrad", 35, 120, 10, 2)
    weight: list[Any] = [[], [2, 4, 3, 3], [2, 3, 8, 8]]
    made.op("aten::cudnn_convolution_backward_weight", 50, 15,
            **_inputs(weight, ["GenericList", "float", "float"]))  # fmt: skip
    made.launch("wgrad", 55, 140, 10, 3)
    study = _study(made, tmp_path)
    assert study.covered == 1.0
    assert {row.op: row.flops for row in study.rows} == dict.fromkeys(
        ("aten::cudnn_convolution", "aten::cudnn_convolution_backward",
         "aten::cudnn_convolution_backward_input"), 2.0 * 2 * 4 * 9 * 27
    )  # fmt: skip


def test_a_stride_that_was_not_recorded_is_not_guessed(tmp_path: Path) -> None:
    made = Made()
    types = ["float", "float", "GenericList", "GenericList", "GenericList"]
    dims: list[Any] = [[2, 3, 8, 8], [4, 3, 3, 3], [], [], []]
    made.op("aten::cudnn_convolution", 0, 20, **_inputs(dims, types)).launch("conv", 5, 100, 10, 1)
    study = _study(made, tmp_path)
    assert study.rows == ()
    assert study.uncovered == (("aten::cudnn_convolution", 10_000),)


@pytest.mark.parametrize(
    ("op", "dims", "types", "concrete", "flops", "nbytes"),
    [
        # a stride of 2: the result is [1, 4, 4, 4]
        ("aten::cudnn_convolution", [[1, 3, 8, 8], [4, 3, 1, 1], [], [], []],
         ["float", "float", "ScalarList", "ScalarList", "ScalarList"],
         ["", "", "[0, 0]", "[2, 2]", "[1, 1]"], 2 * 64 * 3, 4 * (192 + 12 + 64)),
        # out= is written, not read
        ("aten::mm", [[8, 4], [4, 2], [8, 2]], ["c10::BFloat16"] * 3, ["", "", ""], 128,
         2 * (32 + 8 + 16)),
        # a copy reads the second and writes the first
        ("aten::copy_", [[10], [10], []], ["float", "c10::Half", "Scalar"], ["", "", "False"], 0,
         60),
        ("aten::fill_", [[10], []], ["float", "Scalar"], ["", "0"], 0, 40),
        # rows picked, not the table
        ("aten::embedding", [[1000, 8], [5]], ["float", "long int"], ["", ""], 0, 40 + 160 + 160),
        ("aten::embedding_dense_backward", [[5, 8], [5], []], ["float", "long int", "Scalar"],
         ["", "", "1000"], 40, 160 + 40 + 32000),
        ("aten::gt", [[10], []], ["double", "Scalar"], ["", "0"], 10, 80 + 10),
    ],
)  # fmt: skip
def test_work_of_single_calls(
    op: str, dims: list[Any], types: list[str], concrete: list[str], flops: int, nbytes: int
) -> None:
    work = op_work(op, Shape(dims=tuple(dims), types=tuple(types), concrete=tuple(concrete)))
    assert work is not None
    assert (work.flops, work.bytes) == (flops, nbytes)


def test_causal_attention_counts_half_the_square_and_needs_to_know() -> None:
    dims: tuple[Any, ...] = ([2, 64, 4, 16],) * 3 + ([],) * 6
    types = ("c10::Half",) * 3 + ("",) * 2 + ("Scalar",) * 4
    told = ("",) * 5 + ("64", "64", "0.")

    def flops(causal: str) -> int:
        work = op_work("aten::_flash_attention_forward",
                       Shape(dims=dims, types=types, concrete=(*told, causal)))  # fmt: skip
        assert work is not None
        return work.flops

    scores = 2 * 4 * 64 * 64
    assert flops("False") == 2 * scores * 32 + 5 * scores
    assert flops("False") - flops("True") == 2 * 2 * 4 * (64 * 63 // 2) * 32
    assert op_work("aten::_flash_attention_forward", Shape(dims=dims, types=types)) is None


def test_lists_need_a_type_from_the_kernel_and_expanded_inputs_are_read_once(
    tmp_path: Path,
) -> None:
    inputs = _inputs([[[16, 8], [16, 8]], []], ["TensorList", "Scalar"], ["", "0"])
    made = Made().op("aten::cat", 0, 9, **inputs)
    made.launch("CatArrayBatchedCopy<OpaqueType<2u>, unsigned int>", 1, 50, 4, 1)
    expanded = {**_inputs([[16, 8]]), "Input Strides": [[0, 1]]}
    made.op("aten::neg", 20, 9, **expanded).launch("neg_kernel", 21, 60, 4, 2)
    rows = {row.op: row for row in _study(made, tmp_path, _device()).rows}
    assert (rows["aten::cat"].bytes, rows["aten::cat"].dtype) == (2 * 2 * 16 * 8 * 2, "16-bit")
    assert rows["aten::neg"].bytes == 8 * 4 + 16 * 8 * 4
    shape = Shape(dims=([[16, 8]], []), types=("TensorList", "Scalar"), concrete=("", "0"))
    assert op_work("aten::cat", shape) is None


@pytest.mark.parametrize(
    "shape",
    [
        Shape(dims=([1, 2], [3, 4]), types=("float", "float")),
        Shape(dims=([-1, 2], [2, 4]), types=("float", "float")),
        Shape(dims=("x", None), types=("float", 7)),
        Shape(dims=([2],), types=()),
        Shape(dims=([2, "2"], [2, 2]), types=("float", "float")),
        Shape(),
    ],
)
def test_inputs_that_make_no_sense_have_no_work(shape: Shape) -> None:
    assert op_work("aten::mm", shape) is None


def test_traces_without_shapes_or_work_say_so(tmp_path: Path) -> None:
    bare = _study(Made().op("aten::mm", 0, 9).launch("k", 1, 50, 4, 1), tmp_path, _device())
    assert (bare.rows, bare.covered) == ((), 0.0)
    assert "record_shapes" in bare.trust.why
    empty = _study(Made(), tmp_path, None)
    assert empty.rows == ()
    assert empty.trust.confidence == "unreliable"
