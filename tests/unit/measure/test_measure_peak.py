"""The peak of memory, against allocations made by hand."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.measure.peak import highest, measure_peak

MB = 1_000_000


def floats(megabytes: int) -> torch.Tensor:
    return torch.empty(megabytes * MB // 4)


def test_the_peak_is_the_largest_total_at_one_time() -> None:
    kept: list[torch.Tensor] = []

    def step() -> None:
        first = floats(40)
        del first
        kept.append(floats(24))

    peak = measure_peak(step, "cpu", 0, "inference")
    assert peak.peak_bytes == 40 * MB
    assert peak.mode == "inference"
    assert peak.reserved_bytes is None


def test_allocations_add_to_the_static_bytes() -> None:
    def step() -> torch.Tensor:
        first, second = floats(8), floats(4)
        return first[:1] + second[:1]

    peak = measure_peak(step, "cpu", 7 * MB, "training")
    assert 0 <= peak.peak_bytes - 19 * MB <= 64  # the sum of two numbers
    assert peak.static_bytes == 7 * MB


def test_freed_static_bytes_lower_the_peak() -> None:
    held: list[torch.Tensor] = []

    def step() -> None:
        held.clear()
        held.append(floats(16))

    peak = measure_peak(step, "cpu", 16 * MB, "inference", prepare=step)
    assert peak.peak_bytes == 16 * MB


def test_a_training_step_that_drops_its_gradients_counts_them_once() -> None:
    layer = torch.nn.Linear(500, 1000, bias=False)
    inputs = torch.randn(8, 500)

    def step() -> None:
        layer.zero_grad()
        layer(inputs).sum().backward()

    gradient, output = 500 * 1000 * 4, 8 * 1000 * 4
    step()
    peak = measure_peak(step, "cpu", 2 * gradient, "training", prepare=step)
    assert 2 * gradient <= peak.peak_bytes <= 2 * gradient + 3 * output


def test_allocations_of_prepare_are_not_in_the_peak() -> None:
    peak = measure_peak(lambda: floats(3), "cpu", 0, "inference", prepare=lambda: floats(50))
    assert peak.peak_bytes == 3 * MB


def test_a_backward_is_seen() -> None:
    layer = torch.nn.Linear(500, 1000, bias=False)
    inputs = torch.randn(8, 500)
    peak = measure_peak(lambda: layer(inputs).sum().backward(), "cpu", 0, "training")
    gradient, output = 500 * 1000 * 4, 8 * 1000 * 4
    assert gradient <= peak.peak_bytes <= gradient + 3 * output


def test_an_error_of_the_step_is_passed_on_and_the_profiler_is_off() -> None:
    def step() -> None:
        raise ValueError("the user's own")

    with pytest.raises(ValueError, match="the user's own"):
        measure_peak(step, "cpu", 0, "inference")
    assert measure_peak(lambda: floats(1), "cpu", 0, "inference").peak_bytes == MB


def test_another_running_profiler_is_an_error() -> None:
    with (
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        pytest.raises(RidgelineError, match="already running"),
    ):
        measure_peak(lambda: None, "cpu", 0, "inference")


@pytest.mark.parametrize(
    ("device", "mode", "word"), [("cpu", "neither", "'neither'"), ("tpu", "inference", "'tpu'")]
)
def test_invalid_arguments_are_errors(device: str, mode: str, word: str) -> None:
    with pytest.raises(UsageError, match=word):
        measure_peak(lambda: None, device, 0, mode)


def test_only_the_users_own_output_reaches_stderr(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import os, torch\n"
        "from ridgeline.measure.peak import measure_peak\n"
        "measure_peak(lambda: os.write(2, b'mine\\n'), 'cpu', 0, 'inference')\n"
    )
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stderr == "mine\n"


@pytest.mark.parametrize(
    ("deltas", "peak"), [([], 0), ([-5, 3], 0), ([4, -4, 3], 4), ([1, 2, -1, 5, -7], 7)]
)
def test_highest_point_of_a_running_sum(deltas: list[int], peak: int) -> None:
    assert highest(deltas) == peak


def test_importing_the_packages_costs_neither_torch_nor_numpy() -> None:
    code = (
        "import sys, ridgeline.measure, ridgeline.statistics, ridgeline.records.latency;"
        "assert not {'torch', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
