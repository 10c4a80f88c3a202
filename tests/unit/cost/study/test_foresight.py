"""The weight of a model before it is built, told by a copy of this process."""

import os
import time

import psutil
import pytest
import torch
from torch import nn

from ridgeline.cost.study import target
from ridgeline.cost.study.target import weight_bytes

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def test_the_weight_bytes_are_those_of_parameters_and_buffers() -> None:
    assert weight_bytes(lambda: nn.Linear(10, 20)) == 4 * 220
    norm_bytes = 4 * (3 + 3 + 3 + 3) + 8  # weight, bias, mean, variance; an int64 count
    assert weight_bytes(lambda: nn.BatchNorm1d(3)) == norm_bytes


def test_inputs_do_not_count_as_weight_bytes() -> None:
    assert weight_bytes(lambda: (nn.Linear(1, 1), torch.ones(1000))) == 8


def test_weight_bytes_of_a_model_beyond_all_memory_are_found_without_building_it() -> None:
    assert weight_bytes(lambda: nn.Linear(2**21, 2**21, bias=False)) == 2**44


def test_a_builder_that_raises_has_no_weight_bytes() -> None:
    def make() -> nn.Module:
        raise ValueError("no")

    assert weight_bytes(make) is None


def test_a_builder_that_exits_has_no_weight_bytes() -> None:
    assert weight_bytes(lambda: os._exit(3)) is None  # type: ignore[arg-type]


def test_a_builder_that_returns_no_module_has_no_weight_bytes() -> None:
    assert weight_bytes(lambda: "model") is None


def test_a_builder_that_hangs_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(target, "WEIGHING_TIMEOUT_S", 0.2)
    before = {child.pid for child in psutil.Process().children()}
    begun = time.monotonic()
    assert weight_bytes(lambda: time.sleep(60)) is None
    assert time.monotonic() - begun < 30
    assert {child.pid for child in psutil.Process().children()} == before


def test_side_effects_of_building_stay_in_the_forked_process(
    capfd: pytest.CaptureFixture[str],
) -> None:
    seen: list[int] = []

    def make() -> nn.Module:
        seen.append(1)
        os.write(1, b"building")
        os.write(2, b"warning")
        return nn.Linear(1, 1)

    state = torch.random.get_rng_state()
    assert weight_bytes(make) == 8
    assert seen == []
    assert torch.equal(torch.random.get_rng_state(), state)
    captured = capfd.readouterr()
    assert (captured.out, captured.err) == ("", "")
