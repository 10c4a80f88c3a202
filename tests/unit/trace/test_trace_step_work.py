"""What a traced step did: recorded just now on the CPU against the account of the same model, and
made traces of a GPU against numbers worked out by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.checkpoint import checkpoint
from traces_made import HOST, WORKER, Made

from ridgeline.cost.counting.account import count
from ridgeline.records.machine import Ceiling, Device
from ridgeline.records.step_work import StepWork
from ridgeline.trace.analyses.collective_sites import exchange
from ridgeline.trace.analyses.step_work import INSIDE, NOTHING, OWNS, owning, step_work
from ridgeline.trace.links import Links
from ridgeline.trace.reading.reader import parse
from ridgeline.trace.trace import Trace
from ridgeline.trace.window import window_of

STEPS = 3
Step = Callable[[], object]


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.LSTM(32, 64, 2, batch_first=True)
        self.head = nn.Linear(64, 8)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.layers(x)[0][:, -1])


class Causal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv = nn.Embedding(100, 64), nn.Linear(64, 192)
        self.head = nn.Linear(64, 100)

    def forward(self, tokens: torch.Tensor) -> Any:
        x = self.table(tokens)
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(mixed.transpose(1, 2).flatten(2))


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, x: torch.Tensor) -> Any:
        return x + checkpoint(self.part, x, use_reentrant=False)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 32))


def convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2, groups=2), nn.ConvTranspose2d(32, 8, 2, stride=2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10),
    )  # fmt: skip


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return nn.TransformerEncoder(layer, 1)


PROGRAMS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor]]] = {
    "perceptron": (perceptron, lambda: torch.randn(16, 64)),
    "convolutional": (convolutional, lambda: torch.randn(4, 3, 32, 32)),
    "encoder": (encoder, lambda: torch.randn(2, 32, 64)),
    "recurrent": (Recurrent, lambda: torch.randn(4, 12, 32)),
    "causal": (Causal, lambda: torch.randint(0, 100, (2, 32))),
}


def training(model: nn.Module, x: torch.Tensor, autocast: bool = False) -> Step:
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = model(x)
        out.float().sum().backward()
        optimizer.step()

    return step


def recorded(step: Step, path: Path) -> Trace:
    step()  # the optimizer's state is made outside
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=STEPS),
        record_shapes=True,
        with_stack=True,
        profile_memory=True,
        on_trace_ready=lambda prof: prof.export_chrome_trace(str(path)),
    ) as prof:
        for _ in range(STEPS + 1):
            step()
            prof.step()
    return parse(path)


def work_of(trace: Trace, device: Device | None = None) -> StepWork:
    return step_work(trace, Links(trace), window_of(trace, "all"), device)


def a_device(flops_s: float, bytes_s: float) -> Device:
    peaks = [
        Ceiling(quantity="matmul", value=flops_s, unit="FLOP/s", source="measured", dtype=dtype)
        for dtype in ("float32", "tf32")
    ]
    copy = Ceiling(quantity="copy", value=bytes_s, unit="B/s", source="measured")
    return Device(kind="cpu", index=0, name="made", memory_bytes=1, ceilings=(*peaks, copy))


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    folder = tmp_path_factory.mktemp("steps")
    return {
        name: recorded(training(make(), inputs()), folder / f"{name}.json.gz")
        for name, (make, inputs) in PROGRAMS.items()
    }


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_step_has_the_flops_the_account_counts(name: str, traces: dict[str, Trace]) -> None:
    make, inputs = PROGRAMS[name]
    phases = count(make(), (inputs(),), training=True, optimizer="adamw").cost.phases
    found = work_of(traces[name])
    expected = phases["forward"] + phases["backward"] + phases["optimizer"]
    assert found.device == "cpu"
    assert found.steps == STEPS
    assert found.flops == pytest.approx(expected.flops, rel=1e-3)
    assert found.skipped_flops == expected.skipped_flops
    assert found.all_flops == pytest.approx(expected.all_flops, rel=0.05)
    assert found.bytes == pytest.approx(expected.bytes, rel=0.15)
    assert found.flops_by_dtype == {"float32": found.flops}
    assert found.recomputed_flops == 0


@pytest.mark.parametrize("name", PROGRAMS)
def test_operators_of_common_models_are_all_covered(name: str, traces: dict[str, Trace]) -> None:
    found = work_of(traces[name])
    assert found.uncounted == ()
    assert found.coverage == 1
    assert found.trust.confidence == "good"


def test_shares_of_the_step_add_up(traces: dict[str, Trace]) -> None:
    found = work_of(traces["encoder"])
    parts = found.op_share + found.input_share + found.communication_share + found.overhead_share
    assert parts == pytest.approx(1)
    assert 0 < found.op_share < 1
    assert found.operator_ms == pytest.approx(found.op_share * found.step_ms)


def test_what_binds_follows_the_ridge(traces: dict[str, Trace]) -> None:
    trace = traces["perceptron"]
    slow_memory = work_of(trace, a_device(1e15, 1e6))
    slow_arithmetic = work_of(trace, a_device(1e6, 1e15))
    assert slow_memory.compute_share == 0
    assert slow_memory.memory_share
    assert slow_arithmetic.compute_share
    assert work_of(trace).compute_share is None


def test_autocast_is_counted_in_the_type_it_computes_in(tmp_path: Path) -> None:
    make, inputs = PROGRAMS["perceptron"]
    found = work_of(recorded(training(make(), inputs(), autocast=True), tmp_path / "t.json.gz"))
    assert found.dtype == "bfloat16"
    assert set(found.flops_by_dtype) == {"bfloat16"}
    assert found.flops == 917_504  # 2 x 16 x (2 x 64 x 128 + 3 x 128 x 32): x has no gradient


def test_a_second_forward_is_counted_and_named(tmp_path: Path) -> None:
    x = torch.randn(8, 64, requires_grad=True)
    found = work_of(recorded(training(Checkpointed(), x), tmp_path / "t.json.gz"))
    linear = 2 * 8 * 64 * 128
    # the second forward stops before its last product
    assert found.recomputed_flops == linear
    assert found.flops == 6 * linear + linear


@pytest.mark.parametrize("how", ["foreach", "fused"])
def test_optimizers_over_lists_are_covered(how: str, tmp_path: Path) -> None:
    weight = nn.Parameter(torch.ones(32, 32))
    weight.grad = torch.ones(32, 32)
    optimizer = torch.optim.AdamW([weight], **{how: True})  # type: ignore[arg-type]
    found = work_of(recorded(optimizer.step, tmp_path / "t.json.gz"))
    assert found.uncounted == ()
    assert found.flops == 0
    assert found.all_flops >= 12 * 32 * 32
    # parameters and two moments read and written, gradients read, four bytes each
    assert found.bytes >= 7 * 4 * 32 * 32


def test_an_operator_without_a_formula_is_named(tmp_path: Path) -> None:
    a = torch.randn(96, 96)
    found = work_of(recorded(lambda: torch.linalg.svd(a @ a), tmp_path / "t.json.gz"))
    assert found.flops == 2 * 96**3
    assert found.coverage < 1
    assert [(one.op, one.calls) for one in found.uncounted] == [("aten::_linalg_svd", 1)]


def test_products_of_a_dataset_are_input(tmp_path: Path) -> None:
    class Products(torch.utils.data.Dataset[torch.Tensor]):
        def __len__(self) -> int:
            return 100

        def __getitem__(self, index: int) -> torch.Tensor:
            return (torch.ones(64, 64) @ torch.ones(64, 64))[0]

    batches = iter(torch.utils.data.DataLoader(Products(), batch_size=4))
    model = nn.Linear(64, 2)
    found = work_of(recorded(lambda: model(next(batches)), tmp_path / "t.json.gz"))
    assert found.flops == 2 * 4 * 64 * 2
    assert found.input_share > 0


def test_the_inner_of_two_equal_products_answers_and_the_outer_of_a_larger() -> None:
    # linear -> addmm -> copy_; convolution_backward -> sum; conv2d (unknown) -> convolution
    parent = np.array([-1, 0, 1, -1, 3, -1, 5], np.int64)
    known = np.array([True, True, True, True, True, False, True])
    flops = np.array([8.0, 8.0, 0.0, 9.0, 0.0, 0.0, 7.0])
    assert owning(parent, known, flops).tolist() == [
        NOTHING, OWNS, INSIDE, OWNS, INSIDE, NOTHING, OWNS,
    ]  # fmt: skip


def shaped(*dims: list[int]) -> dict[str, Any]:
    return {"Input Dims": list(dims), "Input type": ["float"] * len(dims)}


PRODUCT: dict[str, Any] = {"Input Dims": [[64, 64], [64, 64]], "Input type": ["float", "float"]}


def a_gpu_step(kernel: str = "sgemm_128") -> Made:
    """A step of 1000 µs: a batch for 200, a copy to the device, a product, a collective."""
    made = Made().span("ProfilerStep#0", 0, 1000).frame("train.py(1): main", 0, 1000)
    made.span("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, 200)
    made.op("aten::copy_", 210, 40, **shaped([64, 64], [64, 64]))
    made.call("cudaMemcpyAsync", 215, 30, 1)
    made.kernel("Memcpy HtoD (Pageable -> Device)", 220, 50, 1, cat="gpu_memcpy")
    made.op("aten::mm", 300, 40, **PRODUCT).launch(kernel, 310, 320, 100, 2)
    made.op("aten::mm", 350, 5, **PRODUCT)  # on the host: nothing launched
    made.op("c10d::allreduce_", 400, 20).launch("ncclDevKernel_AllReduce", 405, 400, 80, 3)
    made.op("aten::add_", 500, 20, **shaped([64, 64], [64, 64]))
    return made.launch("vectorized_elementwise", 505, 510, 490, 4)


def test_a_gpu_step_is_split_by_the_devices_clock(tmp_path: Path) -> None:
    found = work_of(a_gpu_step().trace(tmp_path))
    assert found.device == "cuda"
    assert found.step_ms == 1
    assert found.op_share == pytest.approx((50 + 160 + 490) / 1000)
    assert found.input_share == pytest.approx(200 / 1000)
    assert found.copy_share == pytest.approx(50 / 1000)
    assert found.communication_share == pytest.approx(60 / 1000)  # 20 of 80 beside the product
    assert found.overhead_share == pytest.approx(100 / 1000)
    assert found.coverage == 1
    assert found.operators == 4


def test_attained_shares_are_weighted_by_time(tmp_path: Path) -> None:
    found = work_of(a_gpu_step().trace(tmp_path), a_device(1e10, 1e9))
    # 10.7 FLOPs a byte are above the ridge of 10: 524,288 FLOPs in 100 µs; the sum's 3 x 16 KiB
    # in 490 µs are bound by memory
    assert found.compute_share == pytest.approx(100 / 590)
    assert found.memory_share == pytest.approx(490 / 590)
    assert found.compute_attained == pytest.approx(0.524288)
    assert found.memory_attained == pytest.approx(49_152 / 490e-6 / 1e9)
    assert found.attained == pytest.approx((52.4288 + 49.152) / 590)
    # no operator counts for more than its ceiling
    assert work_of(a_gpu_step().trace(tmp_path), a_device(1e6, 1e5)).attained == 1


@pytest.mark.parametrize(("kernel", "dtype"), [("sgemm_128", "float32"), ("s1688gemm", "tf32")])
def test_products_count_where_the_device_ran_them(kernel: str, dtype: str, tmp_path: Path) -> None:
    found = work_of(a_gpu_step(kernel).trace(tmp_path))
    assert found.flops_by_dtype == {dtype: 2 * 64**3}


def test_kernels_without_a_formula_are_named_with_calls(tmp_path: Path) -> None:
    made = a_gpu_step().op("triton_poi_fused_0", 560, 20)
    made.launch("triton_poi_fused_0", 565, 1000, 590, 5)
    found = work_of(made.trace(tmp_path))
    assert found.coverage == pytest.approx(590 / 1180)
    assert [(one.op, one.calls) for one in found.uncounted] == [("triton_poi_fused_0", 1)]
    assert any("torch.compile" in note for note in found.notes)


def test_on_a_cpu_only_what_no_operator_hides_is_communication(tmp_path: Path) -> None:
    """gloo exchanges on a thread of its own for 300 µs, 200 of them beside a product; 30 µs of a
    copy are the collective's own."""
    made = Made().span("ProfilerStep#0", 0, 1000)
    made.op("aten::mm", 100, 400).op("c10d::allreduce_", 600, 50).op("aten::copy_", 610, 30)
    made.span("gloo:all_reduce", 300, 300, tid=WORKER)
    trace = made.trace(tmp_path)
    found = step_work(trace, Links(trace), window_of(trace, "all"), None)
    assert found.op_share == pytest.approx(400 / 1000)
    assert found.communication_share == pytest.approx(150 / 1000)
    assert found.overhead_share == pytest.approx(450 / 1000)


def test_a_job_of_one_rank_does_not_communicate(tmp_path: Path) -> None:
    made = Made(distributedInfo={"rank": 0, "backend": "gloo", "world_size": 1})
    made.span("ProfilerStep#0", 0, 1000).op("aten::mm", 100, 400).op("c10d::allreduce_", 600, 50)
    made.span("gloo:all_reduce", 600, 300, tid=WORKER)
    trace = made.trace(tmp_path)
    links, window = Links(trace), window_of(trace, "all")
    found = step_work(trace, links, window, None)
    assert found.communication_share == 0
    assert found.overhead_share == pytest.approx(600 / 1000)
    assert not exchange(trace, links, window).sites


def test_compiled_kernels_of_a_cpu_are_time_without_a_formula(tmp_path: Path) -> None:
    made = Made().span("ProfilerStep#0", 0, 100)
    made.span("## Call CompiledFxGraph abc ##", 10, 80)
    made.frame("/tmp/torchinductor_me/ab/cd.py(82): call", 11, 78)
    made.op("aten::mm", 20, 30, **PRODUCT).frame("<built-in function kernel>", 60, 10)
    found = work_of(made.trace(tmp_path))
    assert found.op_share == pytest.approx(0.4)
    assert found.coverage == pytest.approx(0.75)
    assert found.uncounted[0].op == "compiled code"


def test_without_shapes_the_flops_are_not_to_be_believed(tmp_path: Path) -> None:
    made = Made().span("ProfilerStep#0", 0, 100).op("aten::mm", 10, 50, HOST)
    found = work_of(made.trace(tmp_path))
    assert found.flops == 0
    assert found.trust.confidence == "unreliable"
