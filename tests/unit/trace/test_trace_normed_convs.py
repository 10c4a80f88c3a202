from pathlib import Path
from typing import Any

import pytest

from ridgeline.records.sites import NormedConv
from ridgeline.trace.analyses.normed_convs import normed_convs
from ridgeline.trace.links import Links
from ridgeline.trace.study import study_one
from tests.unit.trace.traces_made import AUTOGRAD, Made

IMAGE, WEIGHT = [8, 16, 32, 32], [16, 16, 3, 3]


def convolution(bias: bool = True, between: str = "", norm: str = "True", shapes: bool = True
                ) -> Made:  # fmt: skip
    """One step: a convolution whose bias takes 40 µs, perhaps something, a norm; its backward with
    a sum of 20 µs."""
    made = Made()
    made.span("ProfilerStep#0", 0, 1000)

    def told(**args: Any) -> dict[str, Any]:
        return args if shapes else {}

    dims = [IMAGE, WEIGHT, [16] if bias else []]
    made.op("aten::conv2d", 10, 60, **told(**{"Input Dims": dims}))
    made.op("aten::_convolution", 15, 50, **{"Sequence number": 7})
    made.op("aten::cudnn_convolution", 20, 10).launch("conv", 22, 100, 100, 1)
    if bias:
        made.op("aten::add_", 40, 10).launch("add", 42, 200, 40, 2)
    if between:
        made.op(between, 75, 4, **told(**{"Input Dims": [IMAGE]}))
    made.op("aten::add_", 80, 4, **told(**{"Input Dims": [[], []]}))
    values = ["", "", "", "", "", norm]
    made.op("aten::batch_norm", 90, 20,
            **told(**{"Input Dims": [IMAGE, [16], [16], [16], [16], []],
                      "Concrete Inputs": values}))  # fmt: skip
    node = {"Sequence number": 7, "Fwd thread id": 1}
    made.op("ConvolutionBackward0", 300, 60, AUTOGRAD, **node)
    made.op("aten::convolution_backward", 305, 50, AUTOGRAD)
    made.op("aten::sum", 310, 10, AUTOGRAD)
    made.call("cudaLaunchKernel", 312, 5, 3, AUTOGRAD)
    made.kernel("reduce", 400, 20, 3)
    return made


def found(made: Made, folder: Path) -> tuple[NormedConv, ...]:
    trace = made.trace(folder)
    links = Links(trace)
    return normed_convs(trace, links, study_one(trace, links, "all").window)


def test_the_bias_and_its_gradient_are_measured(tmp_path: Path) -> None:
    (one,) = found(convolution(), tmp_path)
    assert (one.add_ns, one.gradient_ns) == (40_000, 20_000)
    assert one.calls == 1
    assert one.weight == tuple(WEIGHT)


def test_without_shapes_too(tmp_path: Path) -> None:
    (one,) = found(convolution(shapes=False), tmp_path)
    assert (one.add_ns, one.gradient_ns) == (40_000, 20_000)


@pytest.mark.parametrize("between", ["aten::relu", "aten::add_", "aten::max_pool2d"])
def test_what_lies_between_makes_the_bias_count(tmp_path: Path, between: str) -> None:
    assert found(convolution(between=between), tmp_path) == ()


def test_no_bias_and_a_frozen_norm_are_left_out(tmp_path: Path) -> None:
    assert found(convolution(bias=False), tmp_path) == ()
    assert found(convolution(norm="False"), tmp_path) == ()
