"""The exact figures that TinyTorch's own tests ask for, on objects of ours."""

import pytest
from course_like import Linear, ReLU, Sequential, Tensor
from numpy import zeros

from ridgeline.integrations.profiler import (
    BYTES_PER_FLOAT32,
    KB_TO_BYTES,
    MB_TO_BYTES,
    Profiler,
    analyze_weight_distribution,
    quick_profile,
)


class Holder:
    """A description of a layer: attributes and nothing to run."""

    def __init__(self, **attributes: object) -> None:
        self.__dict__.update(attributes)


def named(name: str, **attributes: object) -> object:
    return type(name, (Holder,), {})(**attributes)


@pytest.fixture
def profiler() -> Profiler:
    return Profiler()


def test_constants() -> None:
    assert (BYTES_PER_FLOAT32, KB_TO_BYTES, MB_TO_BYTES) == (4, 1024, 1024 * 1024)


def test_parameters_of_weight_and_bias(profiler: Profiler) -> None:
    weight, bias = Tensor(zeros((10, 5))), Tensor(zeros(5))
    assert profiler._count_layer_parameters(Holder(weight=weight, bias=bias)) == 55
    assert profiler._count_layer_parameters(Holder(weight=Tensor(zeros((8, 4))))) == 32
    assert profiler._count_layer_parameters(Holder()) == 0
    assert profiler.count_parameters(Holder(weight=weight, bias=bias)) == 55
    assert profiler.count_parameters(Tensor(zeros((2, 3)))) == 0


def test_linear_is_two_per_multiply_add_at_any_batch(profiler: Profiler) -> None:
    layer = named("Linear", weight=Tensor(zeros((128, 64))))
    assert profiler.count_flops(layer, (1, 128)) == 16_384
    assert profiler.count_flops(layer, (32, 128)) == 16_384
    square = named("Linear", weight=Tensor(zeros((256, 256))))
    assert profiler._count_linear_flops(square, (1, 256)) == 131_072


@pytest.mark.parametrize(
    ("inputs", "outputs", "kernel", "stride", "size", "expected"),
    [
        (3, 16, 3, 1, 32, 32 * 32 * 9 * 3 * 16 * 2),
        (3, 64, 7, 2, 224, 112 * 112 * 49 * 3 * 64 * 2),
    ],
)
def test_convolution_that_names_no_padding_keeps_its_size(
    profiler: Profiler,
    inputs: int,
    outputs: int,
    kernel: int,
    stride: int,
    size: int,
    expected: int,
) -> None:
    layer = named(
        "Conv2d", in_channels=inputs, out_channels=outputs, kernel_size=kernel, stride=stride
    )
    assert profiler._count_conv_flops(layer, (1, inputs, size, size)) == expected
    assert profiler.count_flops(layer, (8, inputs, size, size)) == expected


def test_an_object_without_convolution_attributes_counts_zero(profiler: Profiler) -> None:
    assert profiler._count_conv_flops(Holder(), (1, 3, 32, 32)) == 0


def test_stack_of_descriptions_is_summed(profiler: Profiler) -> None:
    first = named("Linear", weight=Tensor(zeros((128, 64))))
    second = named("Linear", weight=Tensor(zeros((64, 10))))
    stack = Holder(layers=[first, second])
    assert profiler._count_sequential_flops(stack, (1, 128)) == 2 * 128 * 64 + 2 * 64 * 10
    assert profiler.count_flops(stack, (7, 128)) == 2 * 128 * 64 + 2 * 64 * 10


def test_an_object_that_is_no_layer_counts_its_elements(profiler: Profiler) -> None:
    assert profiler.count_flops(Tensor(zeros((4, 8))), (4, 8)) == 32


def test_parameter_memory_is_in_mebibytes(profiler: Profiler) -> None:
    assert profiler._calculate_parameter_memory(Holder(weight=Tensor(zeros((1024, 1024))))) == 4.0
    assert profiler._calculate_parameter_memory(Holder()) == 0.0


@pytest.mark.parametrize(
    ("useful", "peak", "expected"), [(10, 10, 1.0), (5, 10, 0.5), (20, 10, 1.0), (5, 0, 1.0)]
)
def test_memory_efficiency(profiler: Profiler, useful: float, peak: float, expected: float) -> None:
    assert profiler._calculate_memory_efficiency(useful, peak) == expected


def test_derived_metrics(profiler: Profiler) -> None:
    found = profiler._compute_derived_metrics(
        flops=1_000_000_000, latency_ms=1000.0, peak_memory_mb=100.0
    )
    assert found == {
        "gflops_per_second": 1.0,
        "memory_bandwidth_mbs": 100.0,
        "computational_efficiency": 0.01,
    }


def test_bottleneck_flags_are_bools_and_exclude_each_other(profiler: Profiler) -> None:
    memory = profiler._analyze_bottleneck(gflops_per_second=1.0, memory_bandwidth_mbs=10_000.0)
    assert memory["is_memory_bound"] is True
    assert memory["bottleneck"] == "memory"
    compute = profiler._analyze_bottleneck(gflops_per_second=50.0, memory_bandwidth_mbs=100.0)
    assert compute["is_compute_bound"] is True
    assert compute["is_memory_bound"] is False


def test_rules_of_thumb(profiler: Profiler) -> None:
    costs = profiler._estimate_backward_costs(forward_flops=1000, forward_latency_ms=5.0)
    assert costs == {"backward_flops": 2000, "backward_latency_ms": 10.0}
    state = profiler._estimate_optimizer_memory(gradient_memory_mb=100.0)
    assert state == {"sgd": 0, "adam": 200.0, "adamw": 200.0}


FORWARD = {
    "parameters", "flops", "latency_ms", "parameter_memory_mb", "activation_memory_mb",
    "peak_memory_mb", "memory_efficiency", "gflops_per_second", "memory_bandwidth_mbs",
    "computational_efficiency", "is_memory_bound", "is_compute_bound", "bottleneck",
}  # fmt: skip
BACKWARD = {
    "forward_flops", "forward_latency_ms", "forward_memory_mb", "backward_flops",
    "backward_latency_ms", "gradient_memory_mb", "total_flops", "total_latency_ms",
    "total_memory_mb", "total_gflops_per_second", "optimizer_memory_estimates",
    "memory_efficiency", "bottleneck",
}  # fmt: skip
LAYER = {
    "layer_type", "parameters", "flops", "latency_ms", "gflops_per_second",
    "parameter_memory_mb", "activation_memory_mb", "peak_memory_mb", "memory_efficiency",
}  # fmt: skip


def test_profiles_have_every_key(profiler: Profiler) -> None:
    model = Sequential(Linear(8, 16), ReLU(), Linear(16, 4))
    x = Tensor(zeros((4, 8)))
    forward = profiler.profile_forward_pass(model, x)
    backward = profiler.profile_backward_pass(model, x)
    assert set(forward) >= FORWARD
    assert set(backward) >= BACKWARD
    assert set(profiler.profile_layer(Linear(8, 4), (2, 8))) == LAYER
    assert set(profiler.measure_memory(model, (4, 8))) == LAYER & FORWARD - {
        "parameters", "flops", "latency_ms", "gflops_per_second",
    }  # fmt: skip
    assert forward["bottleneck"] in {"memory", "compute"}
    assert 0 <= forward["computational_efficiency"] <= 1
    assert backward["total_flops"] == backward["forward_flops"] + backward["backward_flops"]


def test_quick_profile_prints_six_lines(capsys: pytest.CaptureFixture[str]) -> None:
    quick_profile(Linear(8, 4), Tensor(zeros((2, 8))))
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "Parameters", "FLOPs", "Latency", "Memory", "Bottleneck", "Efficiency",
    ]  # fmt: skip


def test_weight_distribution_is_of_magnitudes() -> None:
    weight = Tensor([[-0.5, 0.0005], [0.05, 0.005]])
    found = analyze_weight_distribution(Holder(weight=weight, bias=Tensor(zeros(2))))
    assert found["total_weights"] == 4
    assert found["max"] == pytest.approx(0.5)
    assert found["below_threshold_0001"] == 25.0
    assert found["below_threshold_001"] == 50.0
    assert found["below_threshold_01"] == 75.0
    assert {f"percentile_{p}" for p in (10, 25, 50, 75, 90)} <= set(found)
    assert "error" in analyze_weight_distribution(Holder())
