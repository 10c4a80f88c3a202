"""`ridgeline.compare` and `ridgeline.benchmark`, called as a notebook would."""

import json
import random
import time
from typing import Any

import numpy as np
import pytest
import torch

import ridgeline
from ridgeline.errors import TargetError, UsageError

ONES = torch.arange(64.0).reshape(8, 8)


def slow() -> torch.Tensor:
    time.sleep(0.010)
    return ONES @ ONES


def fast() -> torch.Tensor:
    time.sleep(0.001)
    return ONES @ ONES


def test_a_comparison_prints_and_tells_all_it_knows() -> None:
    found = ridgeline.compare({"slow": slow, "fast": fast}, budget=1.0)
    assert found.verdict == "FASTER"
    assert 3 < found.ci[0] < found.ratio < found.ci[1]
    assert found.results.ok
    assert str(found).lstrip().startswith("FASTER")
    assert json.loads(found.to_json())["verdict"] == "FASTER"
    assert "<svg" in found.to_html()
    assert "FASTER" in found.to_markdown()
    assert "ridgeline compare" not in str(found)  # no command line leads to functions in memory


def test_several_candidates_are_asked_for_by_name() -> None:
    found = ridgeline.compare({"slow": slow, "fast": fast, "again": fast}, budget=1.0)
    assert set(found.candidates) == {"fast", "again"}
    with pytest.raises(UsageError, match="several"):
        _ = found.verdict


def test_inputs_are_handed_to_every_variant() -> None:
    found = ridgeline.compare(
        {"a": lambda x, y: x @ y, "b": lambda x, y: torch.mm(x, y)}, inputs=(ONES, ONES), budget=1
    )
    assert found.results.status == "bit-identical"


def test_the_callers_model_optimizer_buffers_and_random_numbers_are_as_before() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.BatchNorm1d(8))
    optimizer = torch.optim.AdamW(model.parameters())
    x, buffer = torch.randn(16, 8), torch.zeros(4)

    def step() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        buffer.add_(1)
        return loss

    state = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    ridgeline.compare({"one": step, "two": lambda: step()}, budget=0.5)
    assert all(torch.equal(state[name], value) for name, value in model.state_dict().items())
    assert torch.equal(buffer, torch.zeros(4))
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not optimizer.state
    assert torch.equal(drawn[0], torch.get_rng_state())
    assert drawn[1:] == (random.getstate(), np.random.get_state()[1].tolist())


def test_a_benchmark_prints_and_leaves_the_random_numbers() -> None:
    before = torch.get_rng_state()
    timing = ridgeline.benchmark(torch.rand, 100, budget="50ms")
    assert torch.equal(before, torch.get_rng_state())
    assert timing.median_s > 0
    assert timing.ci_s[0] <= timing.median_s <= timing.ci_s[1]
    assert "rand" in str(timing)
    assert json.loads(timing.to_json())["name"] == "rand"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"variants": [slow, fast]}, "dict of functions"),
        ({"variants": {"slow": slow}}, "two variants"),
        ({"variants": {"slow": slow, "fast": 3}}, "cannot be called"),
        ({"goal": "fun"}, "goal is 'fun'"),
        ({"tolerance": -1}, "tolerance is -1"),
        ({"budget": "soon"}, "budget 'soon' is not a time"),
        ({"budget": -1}, "budget -1 is not a time"),
        ({"threshold": 0}, "threshold is 0"),
    ],
)
def test_nonsense_is_refused_in_a_sentence(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        ridgeline.compare(**{"variants": {"slow": slow, "fast": fast}, **arguments})


def test_the_old_name_of_the_budget_works_and_warns() -> None:
    with pytest.warns(DeprecationWarning, match="budget") as warned:
        found = ridgeline.compare({"slow": slow, "fast": fast}, budget_s=0.5)
    assert found.record.budget_s == 0.5
    assert warned[0].filename == __file__
    with pytest.warns(DeprecationWarning, match="budget"):
        ridgeline.benchmark(fast, budget_s=0.05)


def test_a_check_that_rejects_everything_is_an_error() -> None:
    with pytest.raises(TargetError, match="beside itself"):
        ridgeline.compare({"slow": slow, "fast": fast}, check=lambda a, b: False, budget=0.5)


def test_variants_that_change_the_process_are_refused_and_the_process_is_as_before() -> None:
    threads = torch.get_num_threads()

    def other() -> torch.Tensor:
        torch.set_num_threads(threads + 1)
        return fast()

    with pytest.raises(UsageError, match="threads"):
        ridgeline.compare({"slow": slow, "other": other}, budget=0.5)
    assert torch.get_num_threads() == threads
