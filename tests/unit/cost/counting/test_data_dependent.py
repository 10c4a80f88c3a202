"""Models whose work depends on values: counted on a real run with a note, refused on meta."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor, nn

from ridgeline.cost.counting import count
from ridgeline.errors import DataDependentError
from tests.models.blocks import MixtureOfExperts

TOKENS, WIDTH, HIDDEN, EXPERTS, TOP = 12, 8, 16, 4, 2
MOE_MACS = TOKENS * WIDTH * EXPERTS + TOP * TOKENS * 2 * WIDTH * HIDDEN


def experts() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return MixtureOfExperts(WIDTH, HIDDEN, EXPERTS, TOP), torch.randn(TOKENS, WIDTH)


class Until(nn.Module):
    """Repeats a layer as often as the data says."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(int(x.sum().item())):
            x = self.layer(x)
        return x


@pytest.mark.parametrize("training", [True, False])
def test_routing_by_value_falls_back_to_a_real_run_and_says_so(training: bool) -> None:
    model, x = experts()
    cost = count(model, (x,), training=training).cost
    assert cost.backend == "real"
    assert cost.phases["forward"].macs == MOE_MACS
    assert any(note.startswith("counted on a real run: ") for note in cost.notes)


def test_a_model_without_such_routing_stays_fake_and_needs_no_note() -> None:
    cost = count(nn.Linear(4, 4), (torch.ones(1, 4),)).cost
    assert cost.backend == "fake"
    assert cost.notes == ()


@pytest.mark.parametrize("backend", ["fake", "meta"])
def test_without_values_routing_is_refused_in_a_sentence(backend: str) -> None:
    model, x = experts()
    with pytest.raises(DataDependentError, match=f"values that {backend} tensors do not carry"):
        count(model, (x,), backend=backend)  # type: ignore[arg-type]


def test_a_model_on_meta_has_no_real_run_to_fall_back_to() -> None:
    model, x = experts()
    with pytest.raises(DataDependentError):
        count(model.to("meta"), (x.to("meta"),))


def test_a_loop_whose_length_is_a_value_is_counted_as_it_ran() -> None:
    cost = count(Until(), (torch.full((1, 4), 0.75),)).cost
    assert cost.backend == "real"
    assert cost.phases["forward"].macs == 3 * 16


def test_a_loop_whose_length_is_a_value_is_refused_on_meta() -> None:
    with pytest.raises(DataDependentError):
        count(Until(), (torch.ones(1, 4),), backend="meta")


class Guarded(nn.Module):
    """Skips masking where the mask is full, as attention code often does."""

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        if mask.all():
            return x * 2
        return x.masked_fill(~mask, 0) * 2


@pytest.mark.parametrize("backend", ["fake", "meta"])
def test_the_usual_result_of_a_check_is_assumed_with_a_note(backend: str) -> None:
    x, mask = torch.ones(5), torch.ones(5, dtype=torch.bool)
    cost = count(Guarded(), (x, mask), backend=backend).cost  # type: ignore[arg-type]
    assert cost.backend == backend
    assert "all() of a tensor without data was taken to be True" in cost.notes
    assert "aten::masked_fill" not in {o.op for o in cost.ops}


def test_the_models_own_error_comes_out_of_the_real_run() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        count(nn.Linear(4, 4), (torch.ones(1, 5),))


class Parallel(nn.Module):
    """Does half of its work in a thread of its own, where no dispatch mode looks."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as pool:
            there = pool.submit(self.layer, torch.ones(1, 4))
        return self.layer(x) + torch.full((1, 4), float(there.result().shape[0]))


def test_work_in_other_threads_is_not_counted_with_a_note() -> None:
    cost = count(Parallel(), (torch.ones(1, 4),), backend="real").cost
    assert cost.phases["forward"].macs == 16
    assert "work on the Python threads that the model starts is not counted" in cost.notes
