"""A step function optimized on a real GPU: a whole step captured computes what it computed, and is
faster where launches are what it waits for."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import ridgeline
from ridgeline.measure.clock import Deadline
from ridgeline.optimization.function_bench import FunctionBench
from ridgeline.optimization.function_program import StepSubject
from ridgeline.optimization.function_state import SavedState
from ridgeline.optimization.measure import typical_ms
from ridgeline.records.trial import Asked, Trial
from ridgeline.report.reasons import explain

pytestmark = pytest.mark.gpu
GRAPH = (Asked(fix="whole-step-graph"),)
FUSED = (Asked(fix="fused-optimizer"), *GRAPH)


@pytest.fixture(autouse=True)
def _nothing_left_on_the_device() -> Iterator[None]:
    yield
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()


class Mlp(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(24)])
        self.norm = nn.BatchNorm1d(64)
        self.drop = nn.Dropout(dropout)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> Any:
        for layer in self.layers:
            x = x + layer(x).relu() * 0.1
        return self.head(self.drop(self.norm(x)))


class Training:
    """Launch-bound: some 500 kernels of a few microseconds a step."""

    def __init__(self, *, dropout: float = 0.0, rows: int = 2048, optimizer: str = "AdamW") -> None:
        torch.manual_seed(0)
        self.model = Mlp(dropout).cuda()
        kind = getattr(torch.optim, optimizer)
        momentum = {"momentum": 0.9} if optimizer == "SGD" else {}
        self.optimizer = kind(self.model.parameters(), lr=1e-3, **momentum)
        data = torch.utils.data.TensorDataset(torch.randn(rows, 64), torch.randint(10, (rows,)))
        self.loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
        self.reads = False
        self.waits = False
        self.late = False
        self.counts = 0
        self.counting = False

    def step(self, model: Any, optimizer: Any, batch: Any) -> torch.Tensor:
        x, y = (one.cuda(non_blocking=True) for one in batch)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if self.reads:
            loss.item()
        if self.waits:
            torch.cuda.synchronize()
        if self.late and torch.cuda.is_current_stream_capturing():
            loss.item()
        if self.counting:
            self.counts += 1
        return loss

    def bench(self, home: Path, steps: int = 60) -> FunctionBench:
        kept = SavedState(torch, (self.model, self.optimizer), self.step, self.loader)
        subject = StepSubject(torch, self.step, self.model, self.optimizer, self.loader)
        return FunctionBench(
            torch, subject, home, deadline=Deadline(300), steps=steps, watch=8, state=kept
        )

    def state(self) -> list[torch.Tensor]:
        moments = [v for one in self.optimizer.state.values() for v in one.values()]
        held = [*self.model.state_dict().values(), *(m for m in moments if torch.is_tensor(m))]
        return [*(one.clone() for one in held), torch.cuda.get_rng_state(), torch.get_rng_state()]


def computed(found: Any) -> Trial:
    assert found.trial is not None, found.failure
    trial: Trial = found.trial
    return trial


def agree(one: Trial, other: Trial, rel: float = 1e-4) -> None:
    for name in ("loss", "gradient_norm", "batch_sum"):
        ours = [getattr(step, name) for step in one.watched]
        theirs = [getattr(step, name) for step in other.watched]
        assert None not in theirs, name
        assert theirs == pytest.approx(ours, rel=rel), name
    for name in ("samples", "forwards", "backwards", "gradients"):
        assert [getattr(s, name) for s in one.watched] == [getattr(s, name) for s in other.watched]
    assert [t.norm for t in other.tensors] == pytest.approx([t.norm for t in one.tensors], rel=rel)
    assert other.evaluation == pytest.approx(one.evaluation, rel=10 * rel, abs=1e-4)


@pytest.mark.parametrize("optimizer", ["AdamW", "SGD", "RMSprop"])
def test_a_captured_step_computes_what_it_did(tmp_path: Path, optimizer: str) -> None:
    bench = Training(optimizer=optimizer).bench(tmp_path)
    plain, graph = computed(bench.trial(())), computed(bench.trial(GRAPH))
    assert [one.fix for one in graph.applied] == ["whole-step-graph"]
    agree(plain, graph)


def test_dropout_drops_the_same_in_a_graph(tmp_path: Path) -> None:
    bench = Training(dropout=0.3).bench(tmp_path)
    agree(computed(bench.trial(())), computed(bench.trial(GRAPH)))


def test_a_captured_step_is_faster_where_launches_are_the_limit(tmp_path: Path) -> None:
    bench = Training().bench(tmp_path, steps=120)
    plain = [computed(bench.trial(())) for _ in range(3)]
    graph = [computed(bench.trial(FUSED)) for _ in range(3)]
    assert {one.fix for one in graph[0].applied} == {"fused-optimizer", "whole-step-graph"}
    assert typical_ms(tuple(plain)) > 2 * typical_ms(tuple(graph))
    assert graph[0].samples[-1] == 32


def test_a_last_batch_of_another_size_runs_as_it_is(tmp_path: Path) -> None:
    bench = Training(rows=32 * 5 + 7).bench(tmp_path)  # every sixth batch has 7 rows
    plain, graph = computed(bench.trial(())), computed(bench.trial(GRAPH))
    assert [step.samples for step in graph.watched] == [32, 32, 32, 32, 32, 7, 32, 32]
    agree(plain, graph)


def test_pinned_memory_and_workers_go_with_a_graph(tmp_path: Path) -> None:
    bench = Training().bench(tmp_path)
    more = (Asked(fix="pin-memory"), Asked(fix="loader-workers", options={"workers": "2"}))
    plain, graph = computed(bench.trial(())), computed(bench.trial((*more, *GRAPH)))
    assert len(graph.applied) == 3
    agree(plain, graph)


def test_autocast_and_channels_last_go_with_a_graph(tmp_path: Path) -> None:
    bench = Training().bench(tmp_path)
    cast = (Asked(fix="autocast"),)
    agree(computed(bench.trial(cast)), computed(bench.trial((*cast, *GRAPH))), rel=2e-2)


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("reads", ".item()"),
        ("waits", "synchronize"),
        ("counting", "Training.counts"),
        ("late", "cannot be captured"),  # seen only when it is too late
    ],
)
def test_what_a_graph_cannot_do_is_refused_and_the_device_goes_on(
    tmp_path: Path, flag: str, why: str
) -> None:
    training = Training(dropout=0.1)
    setattr(training, flag, True)
    bench = training.bench(tmp_path)
    before = training.state()
    plain = computed(bench.trial(()))
    found = bench.trial(GRAPH)
    assert found.trial is None
    assert why in explain(found.failure)
    assert torch.cuda.get_sync_debug_mode() == 0
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    assert torch.ones(3, device="cuda").sum().item() == 3  # nothing drawn: dropout goes on from it
    again = computed(bench.trial(()))
    assert [step.loss for step in again.watched] == [step.loss for step in plain.watched]
    assert all(map(torch.equal, before, training.state()))


def test_everything_is_as_it_was_after_graphs(tmp_path: Path) -> None:
    training = Training(dropout=0.1)
    for batch in list(training.loader)[:2]:
        training.step(training.model, training.optimizer, batch)
    before, grads = training.state(), [p.grad for p in training.model.parameters()]
    told = [dict(g) for g in training.optimizer.param_groups]
    bench = training.bench(tmp_path)
    for fixes in (GRAPH, FUSED, (Asked(fix="tf32"),), (Asked(fix="cudnn-autotune"),)):
        bench.trial(fixes)
        assert all(map(torch.equal, before, training.state()))
        assert all(p.grad is g for p, g in zip(training.model.parameters(), grads, strict=True))
        now = training.optimizer.param_groups
        assert all(one["fused"] == was["fused"] for one, was in zip(now, told, strict=True))
        assert not any(group["capturable"] for group in now)
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.benchmark
    training.step(training.model, training.optimizer, next(iter(training.loader)))


def test_memory_of_a_graph_is_given_back(tmp_path: Path) -> None:
    training = Training()
    bench = training.bench(tmp_path)
    computed(bench.trial(GRAPH))  # which leaves cuBLAS its workspace, for good
    held = torch.cuda.memory_allocated()
    for _ in range(3):
        computed(bench.trial(GRAPH))
    assert torch.cuda.memory_allocated() <= held + 2**20


def test_the_search_keeps_the_graph() -> None:
    training = Training()
    before = training.state()
    found = ridgeline.optimize(
        training.step, model=training.model, optimizer=training.optimizer,
        loader=training.loader, budget="3m",
    )  # fmt: skip
    print(found)
    rungs = {rung.fix: rung for rung in found.rungs}
    assert rungs["whole-step-graph"].status in ("kept", "dropped"), rungs["whole-step-graph"].reason
    assert found.total is not None
    assert found.total.ratio.ci_low > 1.5
    assert all(map(torch.equal, before, training.state()))
