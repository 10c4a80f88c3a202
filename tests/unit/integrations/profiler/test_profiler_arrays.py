"""Where the course's profiler is wrong on NumPy objects, ours is right."""

import subprocess
import sys

import numpy as np
import pytest
from course_like import (
    Conv2d,
    CrossAttention,
    HandWritten,
    Linear,
    ReLU,
    Sequential,
    Tensor,
    TiedModel,
    TransformerBlock,
)

from ridgeline.integrations.profiler import Profiler, subject


@pytest.fixture
def profiler() -> Profiler:
    return Profiler()


@pytest.mark.parametrize(
    ("layer", "shape", "expected"),
    [
        (Conv2d(3, 16, (3, 3), padding=1), (4, 3, 32, 32), 2 * 32 * 32 * 9 * 3 * 16),
        (Conv2d(3, 16, 3), (1, 3, 32, 32), 2 * 30 * 30 * 9 * 3 * 16),
        (Conv2d(4, 8, (1, 5), padding=(0, 2)), (1, 4, 10, 12), 2 * 10 * 12 * 5 * 4 * 8),
        (Conv2d(4, 8, 3, padding=2, dilation=2), (1, 4, 16, 16), 2 * 16 * 16 * 9 * 4 * 8),
        (Conv2d(8, 8, 3, padding=1, groups=8), (2, 8, 16, 16), 2 * 16 * 16 * 9 * 8),
        (Conv2d(3, 8, 3, padding="same"), (1, 3, 9, 9), 2 * 9 * 9 * 9 * 3 * 8),
        (Conv2d(3, 8, 3, padding=1), (3, 32, 32), 2 * 32 * 32 * 9 * 3 * 8),
    ],
)
def test_convolutions_of_every_setting(
    profiler: Profiler, layer: Conv2d, shape: tuple[int, ...], expected: int
) -> None:
    assert profiler.count_flops(layer, shape) == expected


def test_no_layer_depends_on_the_batch(profiler: Profiler) -> None:
    assert profiler.count_flops(ReLU(), (1, 64)) == profiler.count_flops(ReLU(), (8, 64)) == 64
    model = Sequential(Linear(8, 16), ReLU(), Linear(16, 4))
    assert profiler.count_flops(model, (1, 8)) == profiler.count_flops(model, (5, 8)) == 400


def test_every_token_of_a_sequence_counts(profiler: Profiler) -> None:
    assert profiler.count_flops(Linear(64, 32), (2, 10, 64)) == 10 * 2 * 64 * 32


def test_a_transformer_block_counts_projections_attention_and_feed_forward(
    profiler: Profiler,
) -> None:
    block = TransformerBlock(64, 4)
    projections, feed_forward = 4 * 2 * 10 * 64 * 64, 2 * 2 * 10 * 64 * 256
    products = 2 * 2 * 10 * 10 * 64
    assert profiler.count_flops(block, (3, 10, 64)) == projections + products + feed_forward
    assert profiler.operation_counts["attention"] == products


def test_cross_attention_takes_its_keys_from_the_context(profiler: Profiler) -> None:
    profiler.count_flops(CrossAttention(16), (1, 5, 16))
    assert profiler.operation_counts["attention"] == 2 * 2 * 5 * 15 * 16


def test_bare_matrices_are_found_and_kept_inputs_are_not(profiler: Profiler) -> None:
    model = HandWritten()
    model.forward(np.zeros((3, 8)))
    assert profiler.count_flops(model, (3, 8)) == 2 * (8 * 32 + 32 * 4)


def test_watching_leaves_the_layers_as_they_were(profiler: Profiler) -> None:
    block = TransformerBlock(16, 2)
    profiler.count_flops(block, (1, 3, 16))
    assert type(block.attention) is type(TransformerBlock(16, 2).attention)
    assert "forward" not in vars(block.attention)


def test_shared_weights_count_once(profiler: Profiler) -> None:
    assert profiler.count_parameters(TiedModel()) == 36


def test_rates_are_of_the_whole_batch(profiler: Profiler) -> None:
    profile = profiler.profile_forward_pass(Linear(64, 64), Tensor(np.zeros((32, 64))))
    assert profile["flops"] == 2 * 64 * 64
    assert profile["batch_flops"] == 32 * profile["flops"]
    expected = profile["batch_flops"] / 1e9 / (profile["latency_ms"] / 1e3)
    assert profile["gflops_per_second"] == pytest.approx(expected)


@pytest.mark.parametrize(("width", "expected"), [(64, "memory"), (2048, "compute")])
def test_flops_per_byte_decide_the_bottleneck_at_any_speed(width: int, expected: str) -> None:
    flops, moved_mb = 2 * 32 * width**2, (width**2 + 2 * 32 * width) * 4 / 2**20
    for latency_ms in (0.1, 100.0):
        pace = subject.rates(flops, latency_ms, moved_mb, subject.COURSE_ROOF)
        found = Profiler()._analyze_bottleneck(
            pace["gflops_per_second"], pace["memory_bandwidth_mbs"]
        )
        assert found["bottleneck"] == expected


def test_a_pass_far_from_both_ceilings_is_overhead_bound() -> None:
    far = subject.roofline(0.5, 100.0, subject.COURSE_ROOF)
    near = subject.roofline(80.0, 100.0, subject.COURSE_ROOF)
    assert (far["roofline_bottleneck"], near["roofline_bottleneck"]) == ("overhead", "compute")


def test_memory_is_in_the_real_dtype(profiler: Profiler) -> None:
    model = HandWritten()
    weights = (8 * 32 + 32 * 4) * 8
    model.parameters = lambda: [model.W1, model.W2]  # type: ignore[attr-defined]
    assert profiler._calculate_parameter_memory(model) == weights / 2**20


def test_activations_are_the_input_and_each_layers_output(profiler: Profiler) -> None:
    model = Sequential(Linear(8, 16), ReLU(), Linear(16, 4))
    memory = profiler.measure_memory(model, (10, 8))
    assert memory["activation_memory_mb"] * 2**20 == 10 * (8 + 16 + 16 + 4) * 4


def test_the_peak_of_a_forward_pass_is_measured(profiler: Profiler) -> None:
    class Wasteful:
        def forward(self, x: Tensor) -> Tensor:
            scratch = np.ones((1024, 1024), dtype=np.float32)
            return Tensor(x.data + scratch[0, 0])

    memory = profiler.measure_memory(Wasteful(), (2, 2))
    assert memory["peak_memory_mb"] == pytest.approx(4.0, abs=0.1)
    assert memory["memory_efficiency"] < 0.01


def test_backward_is_timed_through_the_graph_and_leaves_no_gradient(profiler: Profiler) -> None:
    model = Sequential(Linear(8, 16), Linear(16, 4))
    profile = profiler.profile_backward_pass(model, Tensor(np.ones((4, 8))))
    assert profile["backward_source"] == "measured"
    assert profile["backward_latency_ms"] > 0
    assert model.layers[0].weight.grad is None
    assert model.layers[0].weight.requires_grad is False


def test_the_loss_function_is_used(profiler: Profiler) -> None:
    calls = []

    def loss(output: Tensor) -> Tensor:
        calls.append(output.shape)
        return output.mean()

    profile = profiler.profile_backward_pass(Linear(8, 4), Tensor(np.ones((2, 8))), loss)
    assert profile["backward_source"] == "measured"
    assert set(calls) == {(2, 4)}


def test_without_a_graph_backward_is_twice_forward_and_says_so(profiler: Profiler) -> None:
    profile = profiler.profile_backward_pass(HandWritten(), np.ones((3, 8)))
    assert profile["backward_source"] == "estimated"
    assert profile["backward_latency_ms"] == 2 * profile["forward_latency_ms"]


def test_an_object_that_cannot_be_run_raises_a_readable_error(profiler: Profiler) -> None:
    with pytest.raises(TypeError, match=r"Tensor has no forward\(\)"):
        profiler.measure_memory(Tensor(np.zeros(3)), (3,))


def test_numpy_alone_is_enough() -> None:
    code = (
        "import sys, numpy as np\n"
        "from ridgeline import Profiler\n"
        "class Double:\n"
        "    def forward(self, x): return x + x\n"
        "Profiler().profile_backward_pass(Double(), np.ones((2, 3)))\n"
        "print('torch' in sys.modules, 'msgspec' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
