"""What stands around a model's call in a source stands outside of what is compiled of it: Dynamo
sees the graph it would see in the copy, whatever was put on first."""

import copy
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ridgeline.fixes import compiling
from ridgeline.fixes.catalog import autocast, channels_last, inference_mode
from ridgeline.fixes.program import Program


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, bias=False)
        self.narrow = nn.Conv2d(8, 8, 1)
        self.head = nn.Linear(8, 2)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.narrow(self.conv(images)).mean((2, 3)))


class Seen:
    """In place of a compiler: the graphs it was given, run as they are."""

    def __init__(self) -> None:
        self.graphs: list[list[str]] = []
        self.shapes: list[tuple[list[list[int]], list[tuple[int, ...]]]] = []
        """Of each, what every node takes, by number, and the strides of the inputs."""

    def __call__(self, graph: Any, example: Any) -> Any:
        numbers = {node: at for at, node in enumerate(graph.graph.nodes)}
        takes = [[numbers[one] for one in node.all_input_nodes] for node in numbers]
        self.shapes.append((takes, [one.stride() for one in example]))
        nodes = [node for node in graph.graph.nodes if node.op.startswith("call")]
        self.graphs.append([str(getattr(node.target, "__name__", node.target)) for node in nodes])
        return graph.forward


@pytest.fixture
def seen() -> Any:
    torch.compiler.reset()
    yield Seen()
    torch.compiler.reset()


def apply(model: nn.Module, images: Tensor, names: tuple[str, ...], seen: Seen) -> None:
    program = Program(torch)
    for name in names:
        if name == "compile":
            compiling.compile_whole(program, name, {"backend": seen})  # type: ignore[dict-item]
        else:
            {"autocast": autocast, "channels-last": channels_last, "inference": inference_mode}[
                name
            ].apply(program, {})
    program.call_begins(model, (images,), {})
    applied, left = program.outcome()
    assert len(applied) == len(names), left


@pytest.mark.parametrize("names", permutations(("autocast", "channels-last", "compile")))
def test_the_graph_is_that_of_the_model_alone(names: tuple[str, ...], seen: Seen) -> None:
    torch.manual_seed(0)
    model, images = Net(), torch.randn(2, 3, 8, 8)
    plain = copy.deepcopy(model)
    apply(model, images, names, seen)
    found = model(images)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        wanted = plain(images).float()
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted)
    assert len(seen.graphs) == 1
    assert not [name for name in seen.graphs[0] if "autocast" in name or "contiguous" in name]
    found.sum().backward()
    assert model.conv.weight.grad is not None


@pytest.mark.parametrize("names", permutations(("autocast", "channels-last", "compile")))
def test_the_graph_is_that_of_the_source(names: tuple[str, ...], seen: Seen) -> None:
    """Input for input and stride for stride: else what a trial compiled is compiled again."""
    model, images = Net(), torch.randn(2, 3, 8, 8)
    source = copy.deepcopy(model)
    apply(model, images, names, seen)
    model(images)
    torch.compiler.reset()
    source.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    source.compile(backend=seen)
    images = images.to(memory_format=torch.channels_last)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        source(images)
    for found in (seen.graphs, seen.shapes):
        assert found[0] == found[1]


def test_a_copy_of_the_model_computes_with_it_too(seen: Seen) -> None:
    model, images = Net(), torch.randn(2, 3, 8, 8)
    apply(model, images, ("compile", "autocast"), seen)
    other = copy.deepcopy(model)
    torch.testing.assert_close(other(images), model(images))
    assert len(seen.graphs) == 1, "a copy is not compiled"


def test_inference_mode_is_outside_too(seen: Seen) -> None:
    model, images = Net().eval(), torch.randn(2, 3, 8, 8)
    apply(model, images, ("inference", "compile"), seen)
    assert model(images).is_inference()
    assert not [name for name in seen.graphs[0] if "inference" in name]


def test_what_the_program_compiled_itself_is_left_whole(seen: Seen) -> None:
    model, images = Net(), torch.randn(2, 3, 8, 8)
    model.compile(backend=seen)
    apply(model, images, ("autocast",), seen)
    assert model(images).dtype == torch.float32
    assert not [name for name in seen.graphs[0] if "autocast" in name]
