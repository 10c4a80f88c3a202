"""Linear layers in 8 bits: what they compute, what is said of it, and what is left."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from ridgeline.fixes.catalog import fp8_linear, int8_dynamic
from ridgeline.fixes.cross_entropy import MIN_CLASSES
from ridgeline.fixes.fix import EditByHand
from ridgeline.fixes.program import Program
from ridgeline.fixes.rehearsal import Evidence
from ridgeline.fixes.torch_functions import float8_linear
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.run import ModuleSeen
from tests.unit.fixes.seams_here import applied, code, codes, done, no_source, why


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 128), nn.Linear(128, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.b(self.a(x).relu()).relu())


def begun(fix: Any, model: nn.Module, *args: Any, **options: str) -> Program:
    program = Program(torch)
    fix.apply(program, options)
    program.call_begins(model, args, {})
    return program


def outcome(program: Program) -> tuple[list[Reason], list[str]]:
    fixed, left = program.outcome()
    return done(fixed), codes(why(left))


def test_int8_outputs_are_near_and_how_near_is_outcome() -> None:
    torch.manual_seed(0)
    model, x = Net().eval(), torch.randn(32, 64)
    with torch.no_grad():
        exact = model(x)
    program = begun(int8_dynamic, model, x)
    (weights, compared), _ = outcome(program)
    assert weights == because(Done.INT8_WEIGHTS, model="Net", layers=2)
    assert (compared.facts["batches"], compared.facts["rows"]) == (1, 32)
    with torch.no_grad():
        found = model(x)
        error = float((found - exact).norm() / exact.norm())
        assert 0 < error < 0.05
        for _ in range(4):
            model(torch.randn(32, 64))
    assert outcome(program)[0][-1].facts["batches"] == 4
    assert not model._forward_pre_hooks


def test_int8_weights_are_packed_again_when_they_change() -> None:
    model, x = Net().eval(), torch.randn(4, 64)
    begun(int8_dynamic, model, x)
    with torch.no_grad():
        model.b.weight.zero_()
        model.b.bias.zero_()
        assert torch.equal(model(x), model.head.bias.expand(4, 10))


def test_int8_is_left_where_the_model_trains_or_is_small() -> None:
    x = torch.randn(4, 64)
    assert outcome(begun(int8_dynamic, Net(), x))[1] == [Skip.TRAINING_MODE]
    small = begun(int8_dynamic, nn.Linear(4, 4).eval(), x[:, :4])
    assert outcome(small)[1] == [Skip.NO_LARGE_LINEAR]
    assert outcome(begun(int8_dynamic, Counts().eval(), x))[1] == [Skip.WRITES_BUFFERS]


class Counts(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)


class Cancels(nn.Module):
    """A small difference of two large numbers, which 8 bits do not keep."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)
        self.b.load_state_dict(self.a.state_dict())
        with torch.no_grad():
            self.b.weight.add_(1e-4 * torch.randn(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) - self.b(x)


@pytest.mark.parametrize("fix", [int8_dynamic, fp8_linear])
def test_a_model_that_eight_bits_ruin_is_left_exact(fix: Any) -> None:
    torch.manual_seed(0)
    model, x = Cancels().eval(), torch.randn(16, 64)
    with torch.no_grad():
        exact = model(x)
    found = outcome(begun(fix, model, x, device="cpu", least="16"))
    assert found == ([], [Skip.OUTPUTS_TOO_FAR_OFF])
    with torch.no_grad():
        assert torch.equal(model(x), exact)


class OneSensitive(nn.Module):
    """Tolerant layers, and one that subtracts nearly equal columns, which 8 bits do not keep."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(3))
        self.cancels = nn.Linear(64, 64)
        with torch.no_grad():
            half = 100 * torch.randn(64, 32)
            self.cancels.weight.copy_(torch.cat([half, -half], 1) + torch.randn(64, 64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).relu()
        pair = x[:, :32]
        return self.cancels(torch.cat([pair, pair], 1))


def test_only_the_layers_that_tolerate_int8_compute_in_it() -> None:
    torch.manual_seed(0)
    model, x = OneSensitive().eval(), torch.randn(16, 64)
    with torch.no_grad():
        exact = model(x)
    program = begun(int8_dynamic, model, x)
    (weights, compared), _ = outcome(program)
    assert weights.code == Done.INT8_SOME_WEIGHTS
    assert (weights.facts["layers"], weights.facts["exact"]) == (3, 1)
    assert weights.facts["most_sensitive"] == "cancels"
    assert weights.facts["error_share"] > int8_dynamic.MAX_ERROR_SHARE  # type: ignore[operator]
    with torch.no_grad():
        found = model(x)
    error_share = float((found - exact).norm() / exact.norm())
    assert 0 < error_share <= int8_dynamic.MAX_ERROR_SHARE
    assert compared.facts["error_share"] == pytest.approx(error_share, rel=1e-3)


def test_int8_needs_inference_on_a_cpu() -> None:
    inference = Ground(trains=False)
    assert int8_dynamic.reason_to_skip(inference) is None
    assert code(int8_dynamic.reason_to_skip(Ground())) == Skip.TRAINS
    assert (
        code(int8_dynamic.reason_to_skip(Ground(trains=False, device="cuda"))) == Skip.NO_CPU_WORK
    )
    halves = Ground(trains=False, modules=(ModuleSeen(name="Net", dtypes=("bfloat16",)),))
    assert code(int8_dynamic.reason_to_skip(halves)) == Skip.NO_FLOAT32
    assert int8_dynamic.bound(Ground(products_share=0.8)) == pytest.approx(5)
    assert int8_dynamic.bound(Ground()) is None


def test_eight_bits_are_written_by_hand_with_the_evidence() -> None:
    evidence = because(Done.OUTPUTS_COMPARED, batches=1, error_share=0.009)
    for fix, by_hand in ((int8_dynamic, ByHand.INT8_LAYERS), (fp8_linear, ByHand.FLOAT8_LAYERS)):
        with pytest.raises(EditByHand) as raised:
            fix.source_edits(applied(fix.FIX.id, evidence), no_source)
        assert raised.value.reason == because(by_hand, cause=evidence)


def test_evidence_counts_rows_whose_largest_is_the_same() -> None:
    evidence = Evidence(torch)
    exact = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    evidence.add({"logits": exact}, {"logits": torch.tensor([[3.0, 0.0], [5.0, 4.0]])})
    assert evidence.error_share == pytest.approx(1)
    assert (evidence.same_rows, evidence.rows) == (1, 2)
    assert evidence.result.code == Done.TOP_CLASS_COMPARED
    assert evidence.result.facts["same_rows"] == 1
    evidence.add(exact, torch.full((2, 2), math.nan))
    assert math.isnan(evidence.error_share)


def test_float8_products_and_their_gradients_are_within_its_rounding() -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(64, 48), torch.randn(4, 32, 64, requires_grad=True)
    of = (x, layer.weight, layer.bias)
    exact, found = layer(x), float8_linear(x, layer.weight, layer.bias)
    assert found.shape == exact.shape
    assert found.dtype == torch.bfloat16
    seed = torch.randn_like(exact)
    theirs = torch.autograd.grad(exact, of, seed)
    ours = torch.autograd.grad(found, of, seed.bfloat16())
    for one, other in zip((found, *ours), (exact, *theirs), strict=True):
        assert float((one.float() - other).detach().norm() / other.detach().norm()) < 0.1
    assert [one.dtype for one in ours] == [torch.float32] * 3


def test_float8_leaves_sizes_that_do_not_fit() -> None:
    assert float8_linear(torch.ones(3, 64), torch.ones(16, 64), None) is None
    assert float8_linear(torch.ones(16, 20), torch.ones(16, 20), None) is None


def test_float8_trains_all_but_the_last_layer_and_says_how_near() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(32, 64)
    program = begun(fp8_linear, model, x, device="cpu", least="16")
    (products, _), _ = outcome(program)
    assert products.facts == {"model": "Net", "layers": 2, "rest_in_bfloat16": True}
    found = model(x)
    assert found.dtype == torch.float32
    found.square().mean().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert "forward" not in vars(model.head)


def test_float8_is_compiled_by_a_program_that_does_so_later() -> None:
    torch.manual_seed(0)
    model, x = Net(), torch.randn(32, 64)
    begun(fp8_linear, model, x, device="cpu", least="16")
    model(x).square().mean().backward()
    plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    model.compile(backend="aot_eager")
    model(x).square().mean().backward()
    made = [p.grad for p in model.parameters() if p.grad is not None]
    assert len(made) == len(plain) > 0
    for one, other in zip(made, plain, strict=True):
        assert float((one - other).norm() / other.norm()) < 0.2


def test_float8_leaves_large_logits_in_16_bits_to_a_loss_that_casts_them() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, MIN_CLASSES))
    program = begun(fp8_linear, model, torch.randn(32, 64), device="cpu", least="16")
    program.half_logits = True
    assert model(torch.randn(32, 64)).dtype == torch.bfloat16


def test_float8_needs_a_gpu_that_has_it() -> None:
    assert code(fp8_linear.reason_to_skip(Ground())) == Skip.NO_GPU
    assert (
        code(fp8_linear.reason_to_skip(Ground(device="cuda", capability=(8, 0)))) == Skip.GPU_LACKS
    )
    assert fp8_linear.reason_to_skip(Ground(device="cuda", capability=(9, 0))) is None
    with_autocast = Ground(device="cuda", capability=(9, 0), autocast=("cuda bfloat16",))
    assert fp8_linear.reason_to_skip(with_autocast) is None
    half = Ground(device="cuda", capability=(9, 0), autocast=("cuda float16",))
    assert code(fp8_linear.reason_to_skip(half)) == Skip.FLOAT16_WITH_SCALER
    assert outcome(begun(fp8_linear, Net(), torch.randn(32, 64)))[1] == [Skip.NO_GPU]
