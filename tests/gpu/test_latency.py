"""Timing and memory on a real GPU. Ratios of two clocks in one run, never a speed."""

import gc

import pytest

torch = pytest.importorskip("torch")

from ridgeline.measure.generation import time_generation  # noqa: E402
from ridgeline.measure.peak import measure_peak  # noqa: E402
from ridgeline.measure.timing import time_calls  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

MIB = 1 << 20


def test_events_of_a_long_matmul_agree_with_the_wall_clock() -> None:
    a = torch.randn(8192, 8192, device="cuda")
    latency = time_calls(lambda: a @ a, "cuda", budget_s=1.0)
    assert latency.clock == "device events"
    assert latency.summary.median_ns == pytest.approx(latency.wall_median_ns, rel=0.2)
    assert latency.issue_median_ns is not None
    assert latency.issue_median_ns < 0.2 * latency.wall_median_ns
    assert latency.steady
    assert not any("another stream" in line for line in latency.warnings)


def test_a_chain_of_tiny_operators_takes_as_long_as_its_issue() -> None:
    x = torch.zeros(16, device="cuda")

    def chain() -> None:
        y = x
        for _ in range(200):
            y = y + 1

    latency = time_calls(chain, "cuda", budget_s=0.5)
    assert latency.issue_median_ns is not None
    assert latency.issue_median_ns > 0.7 * latency.wall_median_ns
    assert latency.block_calls == 1


def test_work_on_another_stream_is_warned_of() -> None:
    a = torch.randn(8192, 8192, device="cuda")
    side = torch.cuda.Stream()

    def hidden() -> None:
        with torch.cuda.stream(side):
            a @ a

    latency = time_calls(hidden, "cuda", budget_s=0.5)
    assert any("another stream" in line for line in latency.warnings)
    assert latency.summary.median_ns < 0.5 * latency.wall_median_ns


def test_a_tiny_operator_is_timed_in_blocks() -> None:
    x = torch.zeros(16, device="cuda")
    latency = time_calls(lambda: x + 1, "cuda", budget_s=0.2)
    assert latency.block_calls > 1


@pytest.fixture
def allocated() -> int:
    """Return the bytes in use on the device once garbage is collected.

    `measure_peak` collects garbage before it measures. A compiled model of an earlier test is part
    of a reference cycle and stays on the device until then: bytes read before a collection would
    count it, and the peak would not.
    """
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    return int(torch.cuda.memory_allocated())


def test_the_peak_is_that_of_a_hand_made_allocation(allocated: int) -> None:
    kept: list[object] = []

    def step() -> None:
        first = torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        del first
        kept.append(torch.empty(24 * MIB, dtype=torch.uint8, device="cuda"))

    peak = measure_peak(step, "cuda", allocated, "inference")
    assert peak.peak_bytes == allocated + 40 * MIB
    assert peak.reserved_bytes is not None
    assert peak.reserved_bytes >= peak.peak_bytes


def test_garbage_left_on_the_device_is_not_in_the_peak(allocated: int) -> None:
    cycle: list[object] = [torch.empty(16 * MIB, dtype=torch.uint8, device="cuda")]
    cycle.append(cycle)
    del cycle

    def step() -> None:
        torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")

    peak = measure_peak(step, "cuda", allocated, "inference")
    assert peak.peak_bytes == allocated + 40 * MIB
    assert "allocated before" not in peak.method


def test_foreign_memory_is_named() -> None:
    foreign = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
    peak = measure_peak(lambda: None, "cuda", 0, "inference")
    assert peak.peak_bytes >= foreign.numel()
    assert "MiB of it were allocated before" in peak.method


def test_a_hugging_face_model_generates_the_same_with_and_without_cache() -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=256,
    )
    model = transformers.LlamaForCausalLM(config).to("cuda")
    result = time_generation(model, torch.randint(512, (1, 64)), 32, "cuda", 4.0)
    assert result.tokens == 32
    assert result.same_tokens is True
    assert result.cached_token_ms is not None
    assert result.clock == "wall, device synchronised"
