"""A fused cross-entropy computes what the plain one does, of logits that stay in 16 bits too, and
its source says the same."""

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from ridgeline.fixes.catalog import autocast, fused_cross_entropy
from ridgeline.fixes.cross_entropy import MIN_CLASSES as CLASSES
from ridgeline.fixes.fix import EditByHand
from ridgeline.fixes.program import Program
from ridgeline.records.facts import because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.source.editing import patched
from tests.unit.fixes.seams_here import applied, code, done

PLAIN = functional.cross_entropy
ROWS = 6
UNDER_AUTOCAST = because(Done.AUTOCAST, model="Net", device="cuda", dtype="bfloat16")
COMPILED = because(Done.LOSS_COMPILED, classes=CLASSES)


@pytest.fixture(scope="module")
def program() -> Program:
    return Program(torch)


@pytest.fixture(scope="module")
def fused(program: Program) -> Any:
    """Compiled once for all."""
    return fused_cross_entropy.fused(program, PLAIN, ROWS * CLASSES)


def both(fused: Any, dtype: torch.dtype, **settings: Any) -> list[tuple[Any, Any]]:
    torch.manual_seed(1)
    logits, target = torch.randn(ROWS, CLASSES).to(dtype), torch.randint(CLASSES, (ROWS,))
    target[2] = -100
    found = []
    for loss_of in (lambda x, *rest, **told: PLAIN(x.float(), *rest, **told), fused):
        given = logits.clone().requires_grad_()
        loss = loss_of(given, target, **settings)
        (loss * 3).backward()
        found.append((loss, given.grad))
    return found


@pytest.mark.slow
@pytest.mark.compiles
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_gives_the_plain_loss_and_gradient(
    program: Program, fused: Any, dtype: torch.dtype
) -> None:
    program.half_logits = True
    settings = {"label_smoothing": 0.1, "weight": torch.rand(CLASSES) + 0.5}
    (loss, gradient), (found, made) = both(fused, dtype, **settings)
    assert found.dtype == torch.float32
    assert made.dtype == dtype
    assert torch.allclose(found, loss, rtol=1e-5)
    assert torch.allclose(made.float(), gradient.float(), rtol=1e-2, atol=1e-7)
    ((target,),) = [one.targets for one in program.outcome()[0]]
    assert target.done == because(Done.LOSS_COMPILED, classes=CLASSES)
    assert target.place is not None
    assert target.place.file == __file__


def test_what_is_small_and_what_is_all_in_16_bits_stays_as_it_is() -> None:
    program = Program(torch)
    loss_of = fused_cross_entropy.fused(program, PLAIN, ROWS * CLASSES)
    logits, target = torch.randn(ROWS, CLASSES), torch.zeros(ROWS, dtype=torch.long)
    for given in (logits[1:], logits.bfloat16()):
        one = given.clone().requires_grad_()
        found = loss_of(one, target[: len(one)])
        assert torch.equal(found, PLAIN(one, target[: len(one)]))
    assert program.outcome()[0] == ()


class Wide(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head, self.other = nn.Linear(4, CLASSES), nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.head(x), self.other(x)


def test_autocast_leaves_large_logits_in_16_bits_once_a_loss_was_put_on_that_casts_them() -> None:
    program, model, x = Program(torch), Wide(), torch.randn(2, 4)
    autocast.apply(program, {})
    program.call_begins(model, (x,), {})
    assert [one.dtype for one in model(x)] == [torch.float32, torch.float32]
    program.half_logits = True
    assert [one.dtype for one in model(x)] == [torch.bfloat16, torch.float32]
    with torch.no_grad():  # an evaluation has its own metrics
        assert model(x)[0].dtype == torch.float32
    first, second = done(program.outcome()[0])
    assert first.facts["model"] == "Wide"
    assert second == because(Done.LARGE_LOGITS_STAY)


LOOPS = {
    "logits = model(x)\nloss = F.cross_entropy(logits.flatten(0, 1), y)": "logits.flatten(0, 1), y",
    "loss = F.cross_entropy(model(x).view(-1, 9), y.view(-1))": "outputs.view(-1, 9), y.view(-1)",
    "loss = F.cross_entropy(model(x), y, classes)": "outputs, y, classes",
    "criterion = torch.nn.CrossEntropyLoss(label_smoothing=0.1)\n"
    "logits = model(x)\nloss = criterion(logits, y)": "logits, y, "
    "label_smoothing=criterion.label_smoothing",
}


@pytest.mark.parametrize("loop", LOOPS)
def test_it_is_written_with_the_cast_inside(loop: str) -> None:
    text = (
        f"import torch.nn.functional as F\nimport torch\nmodel = Net()\n{loop}\nloss.backward()\n"
    )
    lines = text.split("\n")
    call = next(at for at, row in enumerate(lines, 1) if "model(x)" in row)
    loss = next(at for at, row in enumerate(lines, 1) if row.startswith("loss = "))
    stay = because(Done.LARGE_LOGITS_STAY)
    cast = applied("autocast", UNDER_AUTOCAST, stay, places=[f"t.py:{call}"])
    compiled = applied("fused-cross-entropy", COMPILED, places=[f"t.py:{loss}"])
    edits = (
        *fused_cross_entropy.source_edits(compiled, lambda _: text),
        *autocast.source_edits(cast, lambda _: text),
    )
    new = patched("t.py", text.encode(), edits)
    assert not new.refused
    assert f"loss = fused_cross_entropy({LOOPS[loop]})" in new.text
    body = new.text.partition("model = Net()")[2]
    assert ".float()" not in body
    assert "@torch.compile\ndef fused_cross_entropy(" in new.text
    compile(new.text, "t.py", "exec")


def test_without_a_fused_loss_logits_are_in_float32_again() -> None:
    text = "model = Net()\nlogits = model(x)\nloss = F.cross_entropy(logits, y)\nloss.backward()\n"
    cast = applied("autocast", UNDER_AUTOCAST, places=["t:2"])
    new = patched("t", text.encode(), autocast.source_edits(cast, lambda _: text))
    assert "logits = logits.float()" in new.text


def test_a_loss_that_is_not_called_by_name_is_told_in_words() -> None:
    compiled = applied("fused-cross-entropy", COMPILED, places=["t.py:1"])
    with pytest.raises(EditByHand) as raised:
        fused_cross_entropy.source_edits(compiled, lambda _: "loss = lossy(a, b)\n")
    assert raised.value.reason == because(ByHand.COMPILED_CROSS_ENTROPY, file="t.py", line=1)


def test_it_is_for_wide_losses_that_take_time_on_a_gpu() -> None:
    reason_to_skip = fused_cross_entropy.reason_to_skip
    assert reason_to_skip(Ground(device="cuda", loss_share=0.01)) is None
    assert code(reason_to_skip(Ground(device="cuda"))) == Skip.NO_LARGE_LOSS
    assert code(reason_to_skip(Ground(loss_share=0.1))) == Skip.NO_GPU
    assert (
        code(reason_to_skip(Ground(device="cuda", loss_share=0.1, compiler=False)))
        == Skip.NO_COMPILER
    )
    assert (
        code(reason_to_skip(Ground(device="cuda", loss_share=0.1, trains=False)))
        == Skip.DOES_NOT_TRAIN
    )
    assert fused_cross_entropy.bound(Ground(loss_share=0.1)) == pytest.approx(1 / 0.85)
