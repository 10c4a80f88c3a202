"""Tensors are found wherever a function can get at them, under the name its code uses."""

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from verdict_on import workload

from ridgeline.equality.calls.held_state import reach, reachable

GLOBAL = torch.ones(3)
UNNAMED = torch.ones(3)
TABLE = {"a": torch.ones(2), "deep": [torch.zeros(1)]}


def names(function: Any, *args: Any, **kwargs: Any) -> set[str]:
    return {name for name, _ in reachable(workload(function, *args, **kwargs))}


def helper() -> Tensor:
    return GLOBAL * 2


def test_globals_that_the_code_names_and_no_others() -> None:
    assert names(lambda: GLOBAL + 1) == {"GLOBAL"}
    assert names(lambda: [TABLE["a"] for _ in range(2)]) == {"TABLE['a']", "TABLE['deep'][0]"}


def test_what_a_helper_names() -> None:
    assert names(lambda: helper() + 1) == {"GLOBAL"}


def test_closures_defaults_partials_and_methods() -> None:
    x, y = torch.ones(2), torch.ones(3)

    def closing(a: Tensor = y, *, b: Tensor = y[:1]) -> Tensor:
        return x + a.sum() + b

    class Holder:
        def __init__(self) -> None:
            self.weight = torch.ones(2)

        def call(self) -> Tensor:
            return self.weight

    class Callable(Holder):
        def __call__(self) -> Tensor:
            return self.weight + GLOBAL

    assert names(closing) == {"x", "a", "b"}
    assert names(functools.partial(torch.add, x, other=y)) == {"args[0]", "other"}
    assert names(Holder().call) == {"self.weight"}
    assert names(Callable()) == {"weight", "GLOBAL"}


def test_declared_inputs_come_first() -> None:
    x = torch.ones(2)
    found = reach(workload(lambda x, y: x + GLOBAL, x, y={"z": torch.ones(1)}))
    assert [(h.name, h.role) for h in found.held] == [
        ("input 0", "declared"),
        ("input 'y'['z']", "declared"),
        ("GLOBAL", "captured"),
    ]


def test_modules_optimizers_and_gradients() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    model.extra = torch.ones(1)  # type: ignore[assignment]
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 2)).sum().backward()
    optimizer.step()

    def step() -> None:
        optimizer.step()
        model.train()

    found = reach(workload(step))
    roles = {h.name: h.role for h in found.held}
    assert len([r for r in roles.values() if r == "parameter"]) == 4
    assert roles["model.1.running_mean"] == "buffer"
    assert roles["model.extra"] == "captured"
    assert roles["optimizer.state[0].exp_avg"] == "optimizer"
    assert any(name.endswith(".grad") for name in names(step))


def test_a_compiled_function_and_module() -> None:
    x, model = torch.ones(2), nn.Linear(2, 2)
    compiled = torch.compile(lambda: x + 1)
    whole = torch.compile(model)
    assert names(compiled) == {"x"}
    assert names(lambda: whole(x)) == {"x", "whole.weight", "whole.bias"}


def test_decorated_functions() -> None:
    x = torch.ones(2)

    @functools.lru_cache
    def cached() -> Tensor:
        return x + 1

    @torch.no_grad()
    def without() -> Tensor:
        return x + 1

    assert names(cached) == {"x"}
    assert names(without) == {"x"}


def test_arrays_are_tensors_that_share_their_memory() -> None:
    array, fixed = np.ones(3), np.ones(3)
    fixed.flags.writeable = False
    found = reach(workload(lambda: array + fixed))
    assert [h.name for h in found.held] == ["array"]
    assert found.unread == ["fixed"]
    found.held[0].tensor.zero_()
    assert array.sum() == 0


def test_a_data_set_is_left_alone() -> None:
    data = torch.utils.data.TensorDataset(torch.ones(4, 2))
    loader = torch.utils.data.DataLoader(data)
    assert names(lambda: (list(loader), data[0])) == set()


def test_what_holds_itself_ends() -> None:
    ring: list[Any] = [torch.ones(1)]
    ring.append(ring)
    assert names(lambda: ring) == {"ring[0]"}
