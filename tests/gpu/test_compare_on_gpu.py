"""Comparison on a real GPU: streams, graphs, caches and process-wide switches."""

import gc
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ridgeline
from ridgeline.comparison.host import Host
from ridgeline.harness.usercode.workload import Workload

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _nothing_left_on_the_device() -> Iterator[None]:
    """Each stream that multiplies keeps 32 MiB for cuBLAS: later tests measure memory."""
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def product(size: int = 2048) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    return tuple(torch.randn(size, size, device="cuda", generator=generator) for _ in range(2))  # type: ignore[return-value]


def test_work_on_another_stream_does_not_look_free() -> None:
    a, b = product()
    side = torch.cuda.Stream()

    def honest() -> torch.Tensor:
        return a @ b

    def hiding() -> torch.Tensor:
        with torch.cuda.stream(side):
            return a @ b

    found = ridgeline.compare({"honest": honest, "hiding": hiding}, budget_s=8)
    assert found.verdict != "FASTER", str(found)
    guards = {guard.name: guard.outcome for guard in found.candidates["hiding"].guards}
    assert guards["work on another stream"] == "warned"


def test_a_captured_graph_is_equal_and_valid() -> None:
    a, b = product(256)

    def eager() -> torch.Tensor:
        y = a
        for _ in range(20):
            y = torch.tanh(y @ b) + a
        return y

    def captured() -> object:
        out = []
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            eager()
        side.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out.append(eager())

        def replay() -> torch.Tensor:
            graph.replay()
            return out[0]

        return replay

    found = ridgeline.compare({"eager": lambda: eager, "graph": captured}, budget_s=8)
    assert found.verdict == "FASTER", str(found)
    assert found.results.ok


def test_an_emptied_cache_makes_a_small_copy_slower() -> None:
    x = torch.ones(4 * 2**20, device="cuda")  # 16 MiB: inside an H200's L2

    def median_ns(cold: bool) -> float:
        host = Host(cold=cold)
        host.adopt("baseline", Workload(name="add", function=lambda: x.add_(1.0)))
        host.warm_up("baseline", 1.0)
        blocks = [host.block("baseline") for _ in range(30)]
        times = sorted(block.reading.total_ns / block.calls for block in blocks)
        return times[len(times) // 2]

    assert median_ns(cold=True) > 1.2 * median_ns(cold=False)


def test_a_switch_for_the_whole_process_sends_the_variants_into_their_own(tmp_path: Path) -> None:
    body = (
        "import torch\n"
        "TOLERANCE = 2e-3\n"
        "def step():\n"
        "    torch.backends.cuda.matmul.allow_tf32 = {}\n"
        "    g = torch.Generator('cuda').manual_seed(0)\n"
        "    a = torch.randn(4096, 4096, device='cuda', generator=g)\n"
        "    return lambda: a @ a\n"
    )
    (tmp_path / "exact.py").write_text(body.format(False))
    (tmp_path / "tf32.py").write_text(body.format(True))
    done = subprocess.run(
        [sys.executable, "-m", "ridgeline", "compare", "exact.py:step", "tf32.py:step",
         "--budget", "2m", "--json"],
        cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["mode"] == "isolated processes"
    assert document["verdict"] == "FASTER"
    assert document["results"]["status"] == "within tolerance"
    assert any("own process" in note for note in document["notes"])


def test_a_benchmark_uses_the_devices_own_clock() -> None:
    a, b = product()
    timing = ridgeline.benchmark(torch.matmul, a, b, budget_s=0.5)
    assert timing.record.clock == "device events"
    assert timing.median_s > 0
