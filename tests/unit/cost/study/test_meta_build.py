"""Models whose constructor asks for values are built without weights all the same."""

import pytest
import torch
from torch import nn

from ridgeline.cost.study.target import build_on_meta


class DropRates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.3, 4)]
        self.layer = nn.Linear(8, 8)
        self.register_buffer("positions", torch.arange(8))


def test_a_constructor_that_reads_its_constants_is_built_on_meta() -> None:
    model = build_on_meta(DropRates)
    assert model.rates == pytest.approx([0, 0.1, 0.2, 0.3])
    assert all(t.is_meta for t in (*model.parameters(), *model.buffers()))


def test_a_plain_model_is_built_once() -> None:
    built: list[int] = []

    def make() -> nn.Module:
        built.append(1)
        return nn.Linear(4, 4)

    assert build_on_meta(make).weight.is_meta
    assert built == [1]


def test_errors_unrelated_to_meta_are_passed_on() -> None:
    def make() -> nn.Module:
        raise ValueError("no such width")

    with pytest.raises(ValueError, match="no such width"):
        build_on_meta(make)


def test_a_constructor_that_reads_its_weights_cannot_be_built_without_them() -> None:
    def make() -> nn.Module:
        layer = nn.Linear(4, 4)
        layer.scale = layer.weight.abs().max().item()
        return layer

    with pytest.raises((RuntimeError, NotImplementedError), match=r"(?i)meta"):
        build_on_meta(make)
