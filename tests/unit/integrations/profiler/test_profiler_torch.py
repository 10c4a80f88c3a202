"""The same profiler on torch modules."""

import pytest
import torch
from torch import nn

from ridgeline.errors import UsageError
from ridgeline.integrations.profiler import Profiler, analyze_weight_distribution, torch_subject
from ridgeline.integrations.profiler.subject import Roof


@pytest.fixture(autouse=True)
def _roof(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ceilings are measured in seconds and kept on disk: not here."""
    fixed = Roof(100e9, 10e9, "test", "overhead")
    monkeypatch.setattr(torch_subject, "machine_roof", lambda device, cost: fixed)


@pytest.fixture
def profiler() -> Profiler:
    return Profiler()


def encoder(batch_first: bool) -> nn.Module:
    return nn.TransformerEncoderLayer(64, 4, 256, batch_first=batch_first)


BLOCK = 4 * 2 * 10 * 64 * 64 + 2 * 2 * 10 * 10 * 64 + 2 * 2 * 10 * 64 * 256


@pytest.mark.parametrize(
    ("module", "shape", "expected"),
    [
        (nn.Linear(128, 64), (1, 128), 16_384),
        (nn.Linear(128, 64), (32, 128), 16_384),
        (nn.Linear(64, 32), (2, 10, 64), 10 * 2 * 64 * 32),
        (nn.ReLU(), (8, 64), 64),
        (nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)), (5, 8), 384),
        (nn.Conv2d(3, 16, 3, padding=1), (4, 3, 32, 32), 2 * 32 * 32 * 9 * 3 * 16),
        (nn.Conv2d(3, 16, 3, padding=1), (3, 32, 32), 2 * 32 * 32 * 9 * 3 * 16),
        (nn.Conv2d(4, 8, (3, 5), 2, (1, 2), groups=2), (7, 4, 16, 16), 2 * 8 * 8 * 15 * 2 * 8),
        (encoder(batch_first=True), (3, 10, 64), BLOCK),
        (encoder(batch_first=False), (10, 3, 64), BLOCK),
        (nn.Sequential(nn.Embedding(50, 16), nn.Linear(16, 50)), (3, 7), 2 * 7 * 16 * 50),
    ],
)
def test_flops_of_one_sample(
    profiler: Profiler, module: nn.Module, shape: tuple[int, ...], expected: int
) -> None:
    assert profiler.count_flops(module, shape) == expected


def test_an_input_that_does_not_fit_raises_and_logs_nothing(
    profiler: Profiler, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(RuntimeError, match=r"2x9 and 8x4"):
        profiler.count_flops(nn.Linear(8, 4), (2, 9))
    assert not caplog.records
    assert capfd.readouterr().err == ""


def test_operators_are_named_with_their_flops(profiler: Profiler) -> None:
    profiler.count_flops(nn.Linear(8, 4), (5, 8))
    assert dict(profiler.operation_counts) == {"aten::addmm": 2 * 8 * 4}


def test_course_helpers_take_modules_too(profiler: Profiler) -> None:
    stack = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 4))
    assert profiler._count_linear_flops(nn.Linear(128, 64), (1, 128)) == 16_384
    assert profiler._count_sequential_flops(stack, (3, 8)) == 2 * 8 * 16 + 2 * 16 * 4
    assert profiler._count_layer_parameters(nn.Linear(10, 5)) == 55


def test_tied_parameters_count_once(profiler: Profiler) -> None:
    model = nn.Sequential(nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False))
    model[1].weight = model[0].weight
    assert profiler.count_parameters(model) == 36


def test_memory_follows_the_dtype(profiler: Profiler) -> None:
    full = profiler.measure_memory(nn.Linear(256, 128), (4, 256))
    half = profiler.measure_memory(nn.Linear(256, 128).bfloat16(), (4, 256))
    assert half["parameter_memory_mb"] == full["parameter_memory_mb"] / 2
    assert full["activation_memory_mb"] * 2**20 == 4 * (256 + 128) * 4


def test_peak_is_measured_where_tracemalloc_is_blind(profiler: Profiler) -> None:
    class Wasteful(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.ones(1024, 1024).sum()

    memory = profiler.measure_memory(Wasteful(), (2, 2))
    assert memory["peak_memory_mb"] == pytest.approx(4.0, abs=0.01)
    assert profiler.memory_tracker is not None
    assert profiler.memory_tracker.source == "measured"


def test_backward_is_counted_and_timed(profiler: Profiler) -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    profile = profiler.profile_backward_pass(model, torch.randn(5, 8), nn.MSELoss())
    # The first layer needs no gradient for its input: less than the rule of two.
    assert profile["backward_flops"] == 2 * 8 * 16 + 2 * 2 * 16 * 4
    assert profile["backward_source"] == "measured"
    assert profile["backward_latency_ms"] > 0


def test_frozen_modules_have_no_backward_and_no_gradients(profiler: Profiler) -> None:
    model = nn.Linear(8, 4).requires_grad_(False)
    profile = profiler.profile_backward_pass(model, torch.randn(2, 8))
    assert profile["backward_source"] == "estimated"
    assert profile["gradient_memory_mb"] == 0


def test_the_module_is_left_as_it_was(profiler: Profiler) -> None:
    first = nn.Conv2d(3, 4, 3)
    model = nn.Sequential(first, nn.BatchNorm2d(4), nn.Dropout(0.5))
    model[2].eval()
    first.weight.grad = torch.ones_like(first.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    x, state = torch.randn(2, 3, 8, 8), torch.get_rng_state()
    profiler.profile_backward_pass(model, x)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert [m.training for m in model] == [True, True, False]
    assert torch.equal(first.weight.grad, torch.ones_like(first.weight))


def test_inference_is_timed_without_dropout_or_gradients(profiler: Profiler) -> None:
    seen = []

    class Watching(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen.append((self.training, torch.is_grad_enabled()))
            return x

    profiler.measure_latency(Watching(), torch.ones(1), warmup=1, iterations=2)
    assert seen == [(False, False)] * 3


def test_several_arguments_come_as_a_tuple_or_a_mapping(profiler: Profiler) -> None:
    model = nn.Bilinear(4, 5, 6)
    pair = torch.randn(2, 4), torch.randn(2, 5)
    assert profiler.profile_forward_pass(model, pair)["batch_size"] == 2
    named = {"input1": pair[0], "input2": pair[1]}
    assert profiler.measure_latency(model, named, iterations=1) > 0


def test_the_roofline_can_be_overhead_which_the_course_does_not_know(
    profiler: Profiler,
) -> None:
    profile = profiler.profile_forward_pass(nn.Linear(8, 4), torch.randn(2, 8))
    assert profile["roofline_bottleneck"] == "overhead"
    assert profile["bottleneck"] in {"memory", "compute"}


def test_weights_in_bfloat16_are_read() -> None:
    found = analyze_weight_distribution(nn.Linear(8, 4).bfloat16())
    assert found["total_weights"] == 36


@pytest.mark.gpu
def test_on_a_gpu_the_device_is_waited_for_and_its_allocator_read(profiler: Profiler) -> None:
    model = nn.Linear(4096, 4096, device="cuda")
    x = torch.randn(4096, 4096, device="cuda")
    profile = profiler.profile_backward_pass(model, x)
    # 137 GFLOP: 0.1 ms would be 1.4 PFLOP/s, while a launch alone returns in microseconds.
    assert profile["forward_latency_ms"] > 0.1
    assert profile["forward_memory_mb"] >= 3 * 64
    assert profile["backward_source"] == "measured"


def test_a_tensor_stands_for_its_shape_and_what_is_no_shape_is_refused() -> None:
    profiler, model = Profiler(), nn.Linear(8, 4)
    given = torch.zeros(2, 8)
    assert profiler.count_flops(model, given) == profiler.count_flops(model, (2, 8))
    for wrong in (8, "two by eight", None):
        with pytest.raises(UsageError):
            profiler.measure_memory(model, wrong)
