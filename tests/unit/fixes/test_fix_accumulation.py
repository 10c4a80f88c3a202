"""The batch in micro-batches: the same outputs and gradients, or left whole."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from ridgeline.fixes.catalog import gradient_accumulation
from ridgeline.fixes.fix import EditByHand
from ridgeline.fixes.program import Program
from ridgeline.fixes.rehearsal import rehearse
from ridgeline.fixes.torch_functions import in_parts, joined
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Obstacle, Skip
from ridgeline.records.run import LoaderSeen
from ridgeline.source.editing.patching import patched
from tests.unit.fixes.seams_here import applied, code, codes, done, why


class Net(nn.Module):
    """With a middle that tests set."""

    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 12), nn.Linear(12, 3)
        self.middle = middle or nn.GELU()
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> Any:
        self.seen.append(len(x))
        return self.b(self.middle(self.a(x))) * scale


class Meets(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean(0)


class Loss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 2)

    def forward(self, x: torch.Tensor) -> Any:
        return self.a(x), self.a(x).square().mean()


def begun(model: nn.Module, *args: Any, parts: int = 4) -> tuple[list[Reason], list[str]]:
    program = Program(torch)
    gradient_accumulation.apply(program, {"parts": str(parts)})
    program.call_begins(model, args, {})
    fixed, left = program.outcome()
    return done(fixed), codes(why(left))


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    model.zero_grad()
    model(x).square().mean().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def test_gradients_are_those_of_the_whole_batch() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(10, 6)
    before, whole = gradients(model, x), model(x)
    assert begun(model, x)[0] == [because(Done.CALLED_IN_PARTS, model="Net", parts=4)]
    model.seen.clear()
    assert torch.allclose(model(x), whole, atol=1e-6)
    assert model.seen == [3, 3, 3, 1]
    after = gradients(model, x)
    assert len(after) == len(before) == 4
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(after, before, strict=True))


def test_a_part_keeps_nothing_between_its_forward_and_its_backward() -> None:
    model, x = Net(), torch.randn(64, 6)
    saved: list[int] = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor.numel())
        return tensor

    def held() -> int:
        saved.clear()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
            model(x)
        return sum(saved)

    assert held() > 64 * 12  # what GELU and the second layer keep
    begun(model, x)
    assert held() < 64 * 12


def test_evaluation_is_left_whole() -> None:
    model, x = Net(), torch.randn(8, 6)
    begun(model, x)
    model.eval().seen.clear()  # type: ignore[operator]
    model(x)
    assert model.seen == [8]


@pytest.mark.parametrize(
    ("middle", "skip"),
    [
        (nn.BatchNorm1d(12), Skip.BATCH_NORM_IN_PARTS),
        (nn.Dropout(0.5), Skip.DRAWS_RANDOM_NUMBERS),
        (Meets(), Skip.SAMPLES_MEET),
    ],
)
def test_what_mixes_samples_or_draws_is_left_as_it_was(middle: nn.Module, skip: Skip) -> None:
    model, x = Net(middle), torch.randn(8, 6)
    state, random = torch.get_rng_state(), [one.clone() for one in model.buffers()]
    assert begun(model, x) == ([], [skip])
    assert "forward" not in vars(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), random, strict=True))


def test_a_loss_inside_the_model_is_refused() -> None:
    assert begun(Loss(), torch.randn(8, 6))[1] == [Skip.FAILED_TO_APPLY]
    assert begun(Net(), torch.randn(2, 6))[1] == [Skip.TOO_FEW_ROWS]


def test_a_call_of_ours_leaves_no_trace() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.drop = nn.BatchNorm1d(6), nn.Dropout(0.5)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.drop(self.norm(x.add_(1)))

    model, x = Writes(), torch.randn(8, 6)
    before, given, state = copy.deepcopy(model.state_dict()), x.clone(), torch.get_rng_state()
    found = rehearse(torch, model, (x,), {})
    assert found.writes
    assert found.draws
    assert not found.returned.requires_grad
    assert torch.equal(x, given)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(one, before[name]) for name, one in model.state_dict().items())
    assert torch.equal(rehearse(torch, model, (x,), {}).returned, found.returned)


def test_parts_are_joined_as_they_were_returned() -> None:
    one = {"a": (torch.ones(2, 1), None), "b": [torch.zeros(2)]}
    found = joined([one, one])
    assert found["a"][0].shape == (4, 1)
    assert found["a"][1] is None
    assert found["b"][0].shape == (4,)
    with pytest.raises(TypeError, match="no row"):
        joined([torch.tensor(1.0)] * 2)


def test_what_has_no_row_a_sample_goes_to_every_part_whole() -> None:
    mask = torch.ones(3)
    found = in_parts(lambda x, m, k: x * m.sum() * k, torch.ones(8, 2), mask, parts=4, k=2)
    assert torch.equal(found, torch.full((8, 2), 6.0))


def test_able_and_choices_go_by_the_batch() -> None:
    assert code(gradient_accumulation.reason_to_skip(Ground(trains=False))) == Skip.DOES_NOT_TRAIN
    small = Ground(loaders=(LoaderSeen(batch_size=1),))
    assert code(gradient_accumulation.reason_to_skip(small)) == Skip.BATCH_OF_ONE
    six = Ground(loaders=(LoaderSeen(batch_size=6),))
    assert gradient_accumulation.choices(six) == ({"parts": "2"}, {"parts": "4"})


def test_it_is_written_at_the_models_call_and_runs() -> None:
    source = (
        "import torch\nfrom torch import nn\n\nnet = nn.Linear(2, 2)\nx = torch.ones(8, 2)\n"
        "for step in range(1):\n    y = net(x)\n    y.sum().backward()\n"
    )
    parts = because(Done.CALLED_IN_PARTS, model="Linear", parts=4)
    divided = applied("gradient-accumulation", parts, places=["train.py:7"])
    edits = gradient_accumulation.source_edits(divided, lambda file: source)
    done = patched("train.py", source.encode(), edits)
    assert not done.refused
    assert "y = in_parts(net, x, parts=4)" in done.text
    names: dict[str, Any] = {}
    exec(done.text, names)
    assert torch.equal(names["net"].bias.grad, torch.full((2,), 8.0))


def test_a_call_that_cannot_be_found_is_said_in_words() -> None:
    parts = because(Done.CALLED_IN_PARTS, model="Net", parts=4)
    divided = applied("gradient-accumulation", parts, places=["train.py:1"])
    with pytest.raises(EditByHand) as raised:
        gradient_accumulation.source_edits(divided, lambda file: "x = 1\n")
    reason = raised.value.reason
    assert (reason.code, reason.facts) == (ByHand.CALL_IN_PARTS, {"parts": 4})
    assert code(reason.cause) == Obstacle.NO_NAMED_CALL
