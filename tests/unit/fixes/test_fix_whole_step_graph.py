"""When a step is captured, what is refused before, and what runs as it is; on a device made up of
nothing but the order of calls. What a real graph computes is in tests/gpu."""

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ridgeline.fixes.catalog import whole_step_graph
from ridgeline.fixes.fix import EditByHand
from ridgeline.fixes.program import Made, Program
from ridgeline.fixes.step_graph import Refused, StepGraph, signature
from ridgeline.records.facts import because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Skip
from ridgeline.records.run import Flags, OptimizerSeen
from tests.unit.fixes.seams_here import applied, code, codes, why


class Device:
    """torch, with a `cuda` that only notes what it is asked."""

    def __init__(self, said: list[str]) -> None:
        self.said = said
        self.Tensor, self.no_grad = torch.Tensor, torch.no_grad
        self.capturing = False
        stream = SimpleNamespace(wait_stream=lambda other: None)
        graph = SimpleNamespace(replay=lambda: said.append("replay"))
        self.cuda = SimpleNamespace(
            Stream=type("Stream", (), {"__new__": lambda *given: stream, "synchronize": None}),
            Event=type("Event", (), {"synchronize": None}),
            current_stream=lambda device: stream,
            stream=lambda stream: contextlib.nullcontext(),
            synchronize=lambda *given: None,
            set_stream=lambda stream: said.append("stream put back"),
            CUDAGraph=lambda: graph,
            graph=self.graph,
            get_sync_debug_mode=lambda: 0,
            set_sync_debug_mode=lambda mode: None,
        )

    @contextlib.contextmanager
    def graph(self, graph: Any, **given: Any) -> Iterator[None]:
        assert given["stream"] is not None
        self.said.append("capture")
        yield


class Step:
    def __init__(self, said: list[str]) -> None:
        self.said = said
        self.model = torch.nn.Linear(2, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.fixes: tuple[str, ...] = ()
        self.names: dict[str, Any] = {"counter": 0}
        self.seen: list[Any] = []
        self.also: Any = lambda: None

    def run(self, batch: Any) -> Any:
        self.said.append("run")
        self.seen.append(batch)
        self.also()
        return batch[0].sum()

    @contextlib.contextmanager
    def recorded(self) -> Iterator[None]:
        self.said.append("recorded")
        yield

    def replayed(self) -> None:
        self.said.append("read")

    def bindings(self) -> dict[str, Any]:
        return dict(self.names)


def captured() -> tuple[StepGraph, Step, list[str], list[str]]:
    said: list[str] = []
    did: list[str] = []
    step = Step(said)
    return StepGraph(Device(said), step, did.append), step, said, did


def batch(rows: int = 4, value: float = 1.0) -> tuple[torch.Tensor, str]:
    return torch.full((rows, 2), value), "train"


def test_two_steps_run_one_is_looked_at_then_one_is_captured_and_replayed() -> None:
    graph, step, said, did = captured()
    for number in range(5):
        graph(batch(value=float(number)))
    assert said == [
        "run", "run", "recorded", "run", "read", "recorded", "capture", "run", "replay", "read",
        "replay", "read",
    ]  # fmt: skip
    assert did == [2]
    assert step.seen[3][0] is step.seen[2][0]  # the same place, which each batch is copied into
    assert step.seen[3][0].mean() == 4.0


def test_another_shape_runs_as_it_is() -> None:
    graph, step, said, _ = captured()
    for _ in range(4):
        graph(batch())
    said.clear()
    odd = batch(rows=3)
    graph(odd)
    assert said == ["run"]
    assert step.seen[-1] is odd
    graph((torch.ones(4, 2), "evaluate"))
    assert said == ["run", "run"]
    graph(batch())
    assert said[-2:] == ["replay", "read"]


def test_a_name_that_the_step_sets_is_refused() -> None:
    graph, step, said, did = captured()
    step.also = lambda: step.names.update(counter=step.names["counter"] + 1)
    graph(batch())
    graph(batch())
    with pytest.raises(Refused, match="sets counter in Python"):
        graph(batch())
    assert "capture" not in said
    assert did == []


def test_a_schedule_is_refused() -> None:
    graph, step, said, _ = captured()
    step.also = lambda: step.optimizer.param_groups[0].update(lr=len(said) * 0.1)
    graph(batch())
    graph(batch())
    with pytest.raises(Refused, match="setting of the optimizer"):
        graph(batch())


def test_a_wait_for_the_device_is_refused() -> None:
    graph, step, said, _ = captured()
    device = graph._torch

    def item() -> None:
        if said.count("run") == 3:
            raise RuntimeError("called a synchronizing CUDA operation")

    step.also = item
    graph(batch())
    graph(batch())
    with pytest.raises(Refused, match=r"\.item\(\)"):
        graph(batch())
    step.also = lambda: device.cuda.synchronize()
    other = StepGraph(device, step, said.append)
    other(batch())
    other(batch())
    with pytest.raises(Refused, match="synchronize"):
        other(batch())
    assert device.cuda.synchronize() is None  # as it was


def test_a_capture_that_fails_names_the_step_s_own_error() -> None:
    graph, step, said, did = captured()

    def late() -> None:
        if "capture" in said:
            raise ValueError("only now\nand more")

    step.also = late
    for _ in range(3):
        graph(batch())
    with pytest.raises(Refused, match=r"cannot be captured: only now$"):
        graph(batch())
    assert said[-2:] == ["stream put back", "capture"]
    assert did == []


def test_batches_without_fixed_places_are_refused() -> None:
    graph, *_ = captured()
    other = (torch.ones(2, 2), SimpleNamespace(x=torch.ones(2)))
    graph(other)
    graph(other)
    with pytest.raises(Refused, match="SimpleNamespace"):
        graph(other)


def test_a_signature_is_of_shapes_types_layouts_and_plain_values() -> None:
    one = {"x": torch.ones(2, 3), "n": 4}
    assert signature(torch, one) == signature(torch, {"x": torch.zeros(2, 3), "n": 4})
    for other in (
        {"x": torch.ones(2, 4), "n": 4}, {"x": torch.ones(2, 3), "n": 5},
        {"x": torch.ones(2, 3).double(), "n": 4}, {"x": torch.ones(3, 2).T, "n": 4},
        [torch.ones(2, 3), 4],
    ):  # fmt: skip
        assert signature(torch, one) != signature(torch, other)


def test_an_optimizer_is_made_capturable_where_it_counts_steps() -> None:
    made = Made("AdamW", {"lr": 0.1, "fused": True}, "")
    assert whole_step_graph.make_capturable(torch, made) is None
    assert made.arguments["capturable"] is True
    plain = Made("SGD", {"lr": 0.1}, "")
    assert whole_step_graph.make_capturable(torch, plain) is None
    assert "capturable" not in plain.arguments
    refused = because(Skip.NOT_CAPTURABLE, optimizer="Adagrad")
    assert whole_step_graph.make_capturable(torch, Made("Adagrad", {}, "")) == refused


def test_a_script_has_no_step_to_capture() -> None:
    gpu = Ground(device="cuda", optimizers=(OptimizerSeen(name="AdamW"),))
    assert code(whole_step_graph.reason_to_skip(gpu)) == Skip.LOOP_NOT_A_FUNCTION
    assert code(whole_step_graph.reason_to_skip(Ground())) == Skip.NO_GPU
    program = Program(torch)
    whole_step_graph.apply(program, {})
    assert codes(why(program.outcome()[1])) == [Skip.LOOP_NOT_A_FUNCTION]
    with pytest.raises(EditByHand) as raised:
        whole_step_graph.source_edits(applied("whole-step-graph"), lambda file: None)
    assert raised.value.reason == because(ByHand.STEP_GRAPH)


def test_a_function_has_one_unless_it_cannot_be_captured() -> None:
    gpu = {"device": "cuda", "optimizers": (OptimizerSeen(name="AdamW"),)}
    reason_to_skip = whole_step_graph.reason_to_skip_function
    assert reason_to_skip(Ground(**gpu)) is None  # type: ignore[arg-type]
    changing = Ground(**gpu, shapes_change=True)  # type: ignore[arg-type]
    assert code(reason_to_skip(changing)) == Skip.SHAPES_CHANGE
    scaled = Ground(**gpu, flags=Flags(gradient_scaler=True))  # type: ignore[arg-type]
    assert code(reason_to_skip(scaled)) == Skip.SCALER_ASKS_EVERY_STEP
    assert code(reason_to_skip(Ground(device="cuda"))) == Skip.NO_KNOWN_OPTIMIZER
    assert code(reason_to_skip(Ground())) == Skip.NO_GPU
    assert whole_step_graph.bound(Ground(busy=0.2)) == pytest.approx(5.0)
