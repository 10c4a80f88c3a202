"""Cross-entropy in chunks, and gradients scaled from outside."""

import ast
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from ridgeline.fixes.catalog import autocast_fp16, chunked_cross_entropy
from ridgeline.fixes.cross_entropy import MIN_CLASSES
from ridgeline.fixes.fix import EditByHand
from ridgeline.fixes.precision import Scaling, scaling_obstacle
from ridgeline.fixes.program import Program
from ridgeline.records.edit import Top
from ridgeline.records.facts import because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.run import Flags, OptimizerSeen
from ridgeline.source.editing import patched
from tests.unit.fixes.seams_here import applied, code

CLASSES = MIN_CLASSES
PLAIN = functional.cross_entropy


def cut(program: Program) -> Any:
    return chunked_cross_entropy.chunked(program, PLAIN, chunk_elements=3 * CLASSES)


def both(dtype: torch.dtype = torch.float32, **options: Any) -> list[tuple[Any, Any]]:
    """Loss and gradient of 7 rows, whole and in chunks of 3."""
    torch.manual_seed(1)
    logits = torch.randn(7, CLASSES).to(dtype)
    target = torch.randint(CLASSES, (7,))
    target[2] = target[6] = options.get("ignore_index", -100)
    found = []
    for loss_of in (PLAIN, cut(Program(torch))):
        given = logits.clone().requires_grad_()
        loss = loss_of(given, target, **options)
        (loss * 3).backward()
        found.append((loss, given.grad))
    return found


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("ignored", [-100, 5])
def test_chunks_give_the_loss_and_the_gradient_of_the_whole(
    reduction: str, smoothing: float, weighted: bool, ignored: int
) -> None:
    weight = torch.rand(CLASSES) + 0.5 if weighted else None
    (loss, grad), (found, found_grad) = both(
        weight=weight, reduction=reduction, label_smoothing=smoothing, ignore_index=ignored
    )
    assert torch.allclose(found, loss, rtol=1e-6)
    assert torch.allclose(found_grad, grad, rtol=1e-4, atol=1e-8)
    assert not found_grad[2].any()


def test_chunks_of_bfloat16_logits_keep_their_types() -> None:
    (loss, grad), (found, found_grad) = both(torch.bfloat16)
    assert found.dtype == loss.dtype == found_grad.dtype == grad.dtype == torch.bfloat16
    assert torch.allclose(found, loss, rtol=1e-2)
    assert torch.allclose(found_grad, grad, rtol=2e-2, atol=1e-5)


def test_what_is_small_or_of_another_kind_is_left() -> None:
    program = Program(torch)
    loss_of = cut(program)
    wide = torch.randn(7, CLASSES, requires_grad=True)
    cases: list[tuple[Any, Any, dict[str, Any]]] = [
        (wide[:2], torch.zeros(2, dtype=torch.long), {}),
        (wide[:, :50], torch.zeros(7, dtype=torch.long), {}),
        (wide, torch.rand(7, CLASSES), {}),
        (wide, torch.zeros(7, dtype=torch.long), {"reduction": "none"}),
        (wide.detach(), torch.zeros(7, dtype=torch.long), {}),
    ]
    for logits, target, options in cases:
        assert torch.equal(loss_of(logits, target, **options), PLAIN(logits, target, **options))
    assert program.outcome()[0] == ()


def test_chunks_are_said_with_the_line_that_asked_for_them() -> None:
    program = Program(torch)
    logits = torch.randn(7, CLASSES, requires_grad=True)
    cut(program)(logits, torch.zeros(7, dtype=torch.long))
    ((target,),) = [one.targets for one in program.outcome()[0]]
    assert target.done == because(Done.LOSS_CHUNKED, classes=8192, rows=3)
    assert target.place is not None
    assert target.place.file == __file__


def test_chunks_are_written_with_their_code() -> None:
    done = because(Done.LOSS_CHUNKED, classes=50_257, rows=333)
    chunked = applied("chunked-cross-entropy", done, places=["t.py:2"])
    text = "import torch.nn.functional as F\nloss = F.cross_entropy(a.view(-1, v), b.view(-1))\n"
    edits = chunked_cross_entropy.source_edits(chunked, lambda _: text)
    top = edits[0]
    assert isinstance(top, Top)
    new = patched("t.py", text.encode(), edits).text
    assert "loss = chunked_cross_entropy(a.view(-1, v), b.view(-1), rows=333)" in new
    scope: dict[str, Any] = {}
    exec(compile(ast.parse(top.text), "t.py", "exec"), scope)
    logits = torch.randn(5, 9, requires_grad=True)
    target = torch.tensor([0, 1, -100, 8, 3])
    found = scope["chunked_cross_entropy"](logits, target, rows=2)
    assert torch.allclose(found, PLAIN(logits, target))
    with pytest.raises(EditByHand) as raised:
        chunked_cross_entropy.source_edits(chunked, lambda _: "x = 1\nloss = criterion(a, b)\n")
    assert raised.value.reason == because(ByHand.CHUNKED_CROSS_ENTROPY, file="t.py", line=2)


def test_chunks_of_a_loss_object_keep_its_settings() -> None:
    done = because(Done.LOSS_CHUNKED, classes=50_257, rows=9)
    chunked = applied("chunked-cross-entropy", done, places=["t.py:3"])
    text = "from torch import nn\nlf = nn.CrossEntropyLoss(label_smoothing=0.1)\nloss = lf(a, b)\n"
    new = patched(
        "t.py", text.encode(), chunked_cross_entropy.source_edits(chunked, lambda _: text)
    ).text
    call = "loss = chunked_cross_entropy(a, b, label_smoothing=lf.label_smoothing, rows=9)"
    assert call in new


@pytest.fixture
def scaling() -> Iterator[Scaling]:
    skips: list[int] = []
    made = Scaling(torch, skips.append)
    made.skips = skips  # type: ignore[attr-defined]
    yield made
    made.take_off()


def test_gradients_are_right_when_the_backward_returns(scaling: Scaling) -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    model(x).sum().backward()
    model(x).square().sum().backward()
    plain = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    scaling.add(model)
    seen = []
    handle = model.weight.register_hook(lambda grad: seen.append(float(grad.abs().max())))
    model(x).sum().backward()
    model(x).square().sum().backward()  # a second micro-batch adds to the first
    handle.remove()
    found = [p.grad for p in model.parameters()]
    assert max(seen) > 1000  # inside the backward they were scaled
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True) if a is not None)


def test_a_step_that_overflows_is_skipped_and_counted(scaling: Scaling) -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters())
    scaling.add(model)
    before = model.weight.detach().clone()
    model(torch.full((1, 3), 1e38)).sum().mul(1e3).backward()
    model(torch.ones(1, 3)).sum().backward()  # of the same step: thrown away with it
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    assert torch.equal(model.weight, before)
    assert not optimizer.state
    assert (scaling.skipped, scaling.scale) == (1, 2048.0)
    assert scaling.skips == [1]  # type: ignore[attr-defined]
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(model.weight, before)


def test_what_cannot_be_scaled_from_outside_raises(scaling: Scaling) -> None:
    model = nn.Linear(3, 2)
    scaling.add(model)
    with pytest.raises(RuntimeError, match=r"autograd\.grad itself"):
        torch.autograd.grad(model(torch.ones(1, 3)).sum(), model.weight)
    with pytest.raises(RuntimeError, match="differentiates its gradients"):
        model(torch.ones(1, 3)).sum().backward(create_graph=True)
    with pytest.raises(RuntimeError, match="more than the model"):
        model(torch.ones(1, 3, requires_grad=True)).sum().backward()
    torch.optim.SGD(model.parameters()).step()
    with pytest.raises(RuntimeError, match="several optimizers"):
        torch.optim.SGD(model.parameters()).step()


def test_hooks_and_other_types_are_refused_before_anything_is_scaled() -> None:
    model = nn.Linear(3, 2)
    assert scaling_obstacle(torch, model) is None
    assert scaling_obstacle(torch, nn.Linear(3, 2).half()) == because(Skip.TRAINED_OUTSIDE_FLOAT32)
    model.weight.register_hook(lambda grad: grad.clamp(-1, 1))
    assert scaling_obstacle(torch, model) == because(Skip.GRADIENT_HOOK, owner="parameter")
    hooked = nn.Linear(3, 2)
    hooked.register_full_backward_hook(lambda *_: None)
    assert scaling_obstacle(torch, hooked) == because(Skip.GRADIENT_HOOK, owner="module")


@pytest.mark.parametrize(
    ("ground", "skip"),
    [
        (Ground(), Skip.NO_GPU),
        (Ground(device="cuda", capability=(8, 0)), Skip.GPU_HAS_BFLOAT16),
        (Ground(device="cuda", capability=(6, 1)), Skip.GPU_LACKS),
        (Ground(device="cuda", capability=(7, 5)), Skip.SEVERAL_OPTIMIZERS),
        (
            Ground(
                device="cuda",
                capability=(7, 5),
                optimizers=(OptimizerSeen(name="Adam"),),
                flags=Flags(gradient_scaler=True),
            ),
            Skip.ALREADY_SET,
        ),
    ],
)
def test_float16_is_tried_only_where_bfloat16_is_not(ground: Ground, skip: Skip) -> None:
    assert code(autocast_fp16.reason_to_skip(ground)) == skip


def test_float16_is_tried_on_an_older_gpu() -> None:
    ground = Ground(device="cuda", capability=(7, 5), optimizers=(OptimizerSeen(name="Adam"),))
    assert autocast_fp16.reason_to_skip(ground) is None
