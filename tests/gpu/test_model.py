"""Model reports on a CUDA device: classes, counts and memory, each against what must hold there."""

import sys
from pathlib import Path

import pytest
import torch

from ridgeline.cost.counting import count
from ridgeline.cost.study.running import Options
from ridgeline.cost.study.study import study
from ridgeline.cost.study.target import parse_input
from ridgeline.records.model import ModelReport

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

EXAMPLES = Path(__file__).parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))

NETS = """
import torch
from torch import nn

def tiny():
    layers = [m for _ in range(20) for m in (nn.Linear(32, 32), nn.ReLU())]
    return nn.Sequential(*layers), (torch.randn(1, 32),)

def wide():
    return nn.Linear(8192, 8192, bias=False).to(torch.bfloat16), (
        torch.randn(16384, 8192, dtype=torch.bfloat16),)

class Chain(nn.Module):
    def forward(self, x):
        return ((x + 1).relu() * 2).sigmoid()

def elementwise():
    return Chain(), (torch.randn(2**28),)
"""


@pytest.fixture(scope="module")
def nets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("nets") / "gpu_nets.py"
    path.write_text(NETS)
    return path


def _study(target: str, **options: object) -> ModelReport:
    return study(target, Options(device="cuda", **options))  # type: ignore[arg-type]


def test_a_chain_of_tiny_layers_is_overhead_bound(nets: Path) -> None:
    assert _study(f"{nets}:tiny").placement.bottleneck == "overhead-bound"


def test_a_large_product_is_compute_bound_near_the_ceiling(nets: Path) -> None:
    place = _study(f"{nets}:wide").placement
    assert place.bottleneck == "compute-bound"
    assert place.percent_of_ceiling is not None
    assert 60 < place.percent_of_ceiling < 110


def test_elementwise_work_is_memory_bound(nets: Path) -> None:
    place = _study(f"{nets}:elementwise").placement
    assert place.bottleneck == "memory-bound"
    assert place.bytes_per_second is not None
    assert 0.6 < place.bytes_per_second / place.ceiling_bytes < 1.15


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("example", "shape"), [("resnet.py", "32x3x224x224"), ("gpt2.py", "4x1024:int64")]
)
def test_memory_is_predicted_but_for_the_libraries_workspaces(
    example: str, shape: str, training: bool
) -> None:
    """cuBLAS keeps 32 MiB on Hopper and cuDNN takes its own beside it: nothing a model shows."""
    report = _study(
        f"{EXAMPLES / example}:build",
        inputs=(parse_input(shape),),
        training=training,
        measure_memory=True,
    )
    assert report.measured_peak is not None
    gap = report.measured_peak.peak_bytes - report.memory.peak_bytes
    assert -0.02 * report.memory.peak_bytes < gap < 0.05 * report.memory.peak_bytes + 128 * 2**20


@pytest.mark.parametrize("backend", ["auto", "real", "meta"])
def test_attention_recurrence_and_convolution_cost_the_same_as_on_a_cpu(backend: str) -> None:
    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = torch.nn.Conv1d(16, 64, 3, padding=1)
            self.lstm = torch.nn.LSTM(64, 64, 2, batch_first=True)
            self.attention = torch.nn.MultiheadAttention(64, 4, batch_first=True)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.conv(x).transpose(1, 2)
            x = self.lstm(x)[0]
            return self.attention(x, x, x, need_weights=False)[0]

    net, x = Net(), torch.randn(4, 16, 32)
    here = count(net, (x,), training=True).cost
    net, x = net.cuda(), x.cuda()
    there = count(net, (x,), training=True, backend=backend).cost  # type: ignore[arg-type]
    assert there.phases["forward"].macs == here.phases["forward"].macs
    if backend != "meta":  # decomposed there, and the first state's gradient is not needed
        assert there.phases["backward"].macs == here.phases["backward"].macs
    assert there.coverage_percent == 100
