"""A training step is judged by what it leaves behind, and begins anew from where it stood."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from verdict_on import built, judged, verdict_on

Step = Callable[[], Any]


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10))


def training(
    *,
    fused: bool = False,
    returns: bool = True,
    take_every: int = 1,
    lr: float = 1e-3,
    scale: float = 1.0,
    zero_last: bool = False,
    mixed: bool = False,
    turned_round: bool = False,
    optimizer: type[torch.optim.Optimizer] = torch.optim.AdamW,
) -> Callable[[], Step]:
    def factory() -> Step:
        net, x, y = model(), torch.randn(64, 32), torch.randint(0, 10, (64,))
        if turned_round:
            x, y = x.flip(0), y.flip(0)
        options: dict[str, Any] = {"fused": True} if fused else {}
        stepper = optimizer(net.parameters(), lr=lr, **options)
        count = 0

        def step() -> float | None:
            nonlocal count
            count += 1
            if not zero_last:
                stepper.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                loss = F.cross_entropy(net(x), y)
            (loss * scale).backward()
            if count % take_every == 0:
                stepper.step()
            if zero_last:
                stepper.zero_grad(set_to_none=False)
            return loss.item() if returns else None

        return step

    return factory


@pytest.mark.parametrize("returns", [True, False])
@pytest.mark.parametrize(
    "variant", [{}, {"fused": True}, {"zero_last": True}], ids=["same", "fused", "zero last"]
)
def test_an_honest_step_is_equal_and_the_check_strong(variant: Any, returns: bool) -> None:
    verdict = judged(built(training(returns=returns)), built(training(returns=returns, **variant)))
    assert verdict.results.ok, verdict.results
    assert verdict.results.strength == "strong", verdict.results
    assert not verdict.failed, verdict.guards


@pytest.mark.parametrize(
    ("variant", "words"),
    [
        ({"take_every": 10}, "the candidate changes none"),  # fp16 overflow skips steps like this
        ({"take_every": 2}, "after the calls: off by"),
        ({"lr": 1.02e-3}, "after the calls: off by"),
    ],
)
def test_a_step_not_taken_or_too_long_is_different(variant: Any, words: str) -> None:
    verdict = judged(built(training(returns=False)), built(training(returns=False, **variant)))
    assert verdict.results.status == "different", verdict.results
    assert words in verdict.results.detail


def test_a_bias_that_follows_rounding_alone_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a batch norm a bias has no gradient but rounding, and Adam takes full steps by it."""
    monkeypatch.setattr("ridgeline.equality.calls.reference.MAX_FLOAT_BYTES", 0)
    verdict = judged(built(training()), built(training(turned_round=True)))
    assert verdict.results.method == "tolerances of float32"
    assert verdict.results.status == "equal", verdict.results
    assert verdict.results.strength == "strong"
    assert "net.0.bias after the calls follows rounding alone" in verdict.results.detail


def test_mixed_precision_passes_with_a_declared_tolerance_and_a_step_not_taken_does_not() -> None:
    plain = built(training())
    assert judged(plain, built(training(mixed=True))).results.status == "different"
    verdict = judged(plain, built(training(mixed=True)), rtol=2e-2)
    assert verdict.results.status == "within tolerance", verdict.results
    lazy = judged(plain, built(training(mixed=True, take_every=10)), rtol=2e-2)
    assert lazy.results.status == "different"


def test_a_tiny_step_counts_by_its_own_size() -> None:
    small = {"lr": 1e-5, "optimizer": torch.optim.SGD}
    assert judged(built(training(**small)), built(training(**small))).results.ok
    verdict = judged(built(training(**small)), built(training(**small, scale=1.5)))
    assert verdict.results.status == "different", verdict.results


def test_gradients_are_the_result_where_nothing_else_is() -> None:
    def factory(scale: float = 1.0) -> Callable[[], Step]:
        def build() -> Step:
            net, x = nn.Linear(32, 32), torch.randn(64, 32)
            return lambda: (net(x).square().mean() * scale).backward()

        return build

    verdict = judged(built(factory()), built(factory()))
    assert verdict.results.ok
    assert verdict.results.strength == "strong"
    assert judged(built(factory()), built(factory(1.01))).results.status == "different"


def test_sparse_gradients_are_a_result_too() -> None:
    table, ids = nn.Embedding(50, 8, sparse=True), torch.tensor([1, 2, 2, 7])

    def backward(scale: float) -> Step:
        def step() -> None:
            table.weight.grad = None
            (table(ids).square().sum() * scale).backward()

        return step

    verdict = verdict_on(backward(1.0), backward(1.0))
    assert verdict.results.status == "bit-identical"
    assert verdict.results.strength == "strong"
    assert verdict_on(backward(1.0), backward(1.1)).results.status == "different"


def test_an_output_written_in_place_is_the_result_where_nothing_is_returned() -> None:
    a, b, out = torch.randn(32, 32), torch.randn(32, 32), torch.zeros(32, 32)

    def into(scale: float) -> Callable[[], None]:
        def write() -> None:
            torch.mm(a, b * scale, out=out)

        return write

    assert verdict_on(into(1.0), into(1.0)).results.ok
    assert verdict_on(into(1.0), into(1.1)).results.status == "different"


def test_variants_that_share_a_model_both_start_from_where_it_stood() -> None:
    torch.manual_seed(0)
    net, x = model(), torch.randn(64, 32)
    stepper = torch.optim.Adam(net.parameters(), lr=0.01)

    def step() -> Tensor:
        stepper.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        stepper.step()
        return loss.detach()

    verdict = verdict_on(step, lambda: step())
    assert verdict.results.status == "bit-identical", verdict.results


def test_stale_state_is_different() -> None:
    def factory(kept: bool) -> Callable[[], Step]:
        def build() -> Step:
            total, x = torch.zeros(16), torch.randn(16)

            def add() -> Tensor:
                nonlocal total
                if kept:
                    total += x
                else:
                    total = x.clone()
                return total.clone()

            return add

        return build

    assert judged(built(factory(True)), built(factory(True))).results.ok
    verdict = judged(built(factory(True)), built(factory(False)))
    assert verdict.results.status == "different"
    assert verdict.results.detail.startswith("call 2")


def test_nothing_returned_and_nothing_changed_is_not_compared() -> None:
    verdict = verdict_on(lambda: None, lambda: None)
    assert verdict.results.status == "not compared"
    assert verdict.results.strength == "none"


def dropping_step(*, right: bool) -> Callable[[], Callable[[], Tensor]]:
    def factory() -> Callable[[], Tensor]:
        torch.manual_seed(3)
        layer = nn.Linear(32, 32)
        x, parameters = torch.randn(16, 32), list(layer.parameters())

        def step() -> Tensor:
            loss = F.dropout(layer(x), 0.1).square().mean()
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter.sub_(gradient, alpha=0.1 if right else 0.101)
            return loss.detach()

        return step

    return factory


def test_random_numbers_are_no_excuse_where_both_draw_the_same() -> None:
    assert judged(built(dropping_step(right=True)), built(dropping_step(right=True))).results.ok
    wrong = judged(built(dropping_step(right=True)), built(dropping_step(right=False)))
    assert wrong.results.status == "different", wrong.results


def forgetful(*, everything: bool) -> Callable[[], Callable[[], Tensor]]:
    def factory() -> Callable[[], Tensor]:
        torch.manual_seed(3)
        layer = nn.Linear(8, 8)
        x = torch.randn(4, 8)

        def step() -> Tensor:
            if everything:
                torch.rand(1)  # other numbers are drawn: the loss proves nothing
            loss = F.dropout(layer(x), 0.5).square().mean()
            ours = list(layer.parameters()) if everything else [layer.weight]
            with torch.no_grad():
                for parameter, gradient in zip(ours, torch.autograd.grad(loss, ours), strict=True):
                    parameter.sub_(gradient)
            return loss.detach()

        return step

    return factory


def test_a_parameter_left_as_it_is_shows_whatever_was_drawn() -> None:
    wrong = judged(built(forgetful(everything=True)), built(forgetful(everything=False)))
    assert wrong.results.status == "different", wrong.results
    assert "bias" in wrong.results.detail
