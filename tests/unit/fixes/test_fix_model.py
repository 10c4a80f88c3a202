"""Changes of the model: what is put around a forward, and what stays as it was."""

import copy
import io
import pickle
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch import nn

from ridgeline.fixes.catalog import (
    autocast,
    channels_last,
    checkpointing,
    compile,
    eval_fusing,
    inference_mode,
    padded_vocabulary,
)
from ridgeline.fixes.catalog.compile_regional import repeated_blocks
from ridgeline.fixes.model_forward import Forward, fixes_around, map_tensors, wrap_forward
from ridgeline.fixes.program import Program
from ridgeline.records.facts import Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import Done, Skip
from ridgeline.records.run import ModuleSeen
from tests.unit.fixes.seams_here import code, codes, done, why


class Block(nn.Module):
    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.n: nn.Module = nn.BatchNorm1d(8) if norm else nn.LayerNorm(8)
        self.d = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.d(self.n(self.a(x))) * scale


class Stack(nn.Module):
    def __init__(self, blocks: int = 4, norm: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(norm) for _ in range(blocks))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def begun(fix: Any, model: nn.Module, *args: Any, **options: str) -> tuple[list[Reason], list[str]]:
    """Let a fix meet the model at its first call. Return what it did, and the codes of why not."""
    program = Program(torch)
    fix.apply(program, options)
    program.call_begins(model, args, {})
    fixed, left = program.outcome()
    return done(fixed), codes(why(left))


def doubled(forward: Forward) -> Forward:
    def under(self: Any, *args: Any) -> Any:
        return 2 * forward(self, *args)

    return under


def test_a_copy_of_a_wrapped_model_runs_on_its_own_parameters() -> None:
    model = nn.Linear(2, 2)
    wrap_forward(model, "twice", doubled)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.weight.zero_()
        other.bias.zero_()
    x = torch.ones(1, 2)
    assert not other(x).any()
    assert torch.equal(model(x), 2 * nn.functional.linear(x, model.weight, model.bias))
    assert fixes_around(other) == ("twice",)


def test_a_wrapped_model_can_be_pickled_and_is_itself_again() -> None:
    model = nn.Linear(2, 2)
    wrap_forward(model, "twice", doubled)
    kept = pickle.loads(pickle.dumps(model))
    x = torch.ones(1, 2)
    assert torch.equal(2 * kept(x), model(x))
    torch.save(model, io.BytesIO())


def test_a_forward_that_a_library_put_on_the_instance_is_kept() -> None:
    model = nn.Linear(2, 2)
    model.forward = lambda x: x + 1  # type: ignore[method-assign]
    wrap_forward(model, "twice", doubled)
    assert torch.equal(model(torch.ones(2)), torch.full((2,), 4.0))


@dataclass(frozen=True)
class Output:
    logits: torch.Tensor
    name: str


Pair = namedtuple("Pair", "first second")


def test_tensors_are_changed_in_every_kind_of_output() -> None:
    one = torch.ones(1)
    given = {"a": [one, 3], "b": Pair(one, "x"), "c": Output(one, "y"), "d": OrderedDict(e=one)}
    found = map_tensors(torch, given, lambda tensor: tensor + 1)
    assert found["a"][0].item() == 2
    assert found["b"].first.item() == 2
    assert isinstance(found["b"], Pair)
    assert found["c"].logits.item() == 2
    assert found["c"].name == "y"
    assert found["d"]["e"].item() == 2
    assert given["a"][0] is one  # the caller's own is not touched
    assert map_tensors(torch, given["c"], lambda tensor: tensor) is given["c"]


def test_outputs_of_hugging_face_keep_their_kind() -> None:
    outputs = pytest.importorskip("transformers.modeling_outputs")
    given = outputs.CausalLMOutput(loss=torch.ones(()), logits=torch.ones(2))
    found = map_tensors(torch, given, lambda tensor: tensor + 1)
    assert type(found) is outputs.CausalLMOutput
    assert found.loss.item() == found["loss"].item() == found.to_tuple()[0].item() == 2


def test_autocast_gives_float32_back_and_computes_in_bfloat16() -> None:
    model, x = nn.Linear(64, 64), torch.randn(4, 64)
    plain = model(x)
    (cast,), _ = begun(autocast, model, x)
    assert cast.facts == {"model": "Linear", "device": "cpu", "dtype": "bfloat16"}
    found = model(x)
    assert found.dtype == torch.float32
    assert not torch.equal(found, plain)
    assert torch.allclose(found, plain, atol=0.05)


def test_autocast_leaves_losses_and_the_program_s_own_regions() -> None:
    class MarginLoss(nn.Linear):
        pass

    assert begun(autocast, MarginLoss(2, 2), torch.ones(1, 2))[1] == [Skip.IS_A_LOSS]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert begun(autocast, nn.Linear(2, 2), torch.ones(1, 2))[1] == [Skip.ALREADY_SET]
    model = nn.Linear(2, 2)
    begun(autocast, model, torch.ones(1, 2))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model(torch.ones(1, 2)).dtype == torch.bfloat16
    assert begun(autocast, nn.Linear(2, 2).double(), torch.ones(1, 2))[1] == [Skip.NO_FLOAT32]


@pytest.mark.parametrize(
    ("ground", "skip"),
    [
        (Ground(emulated=("bfloat16",)), Skip.DTYPE_EMULATED),
        (Ground(device="cuda", capability=(7, 5)), Skip.GPU_LACKS),
        (Ground(autocast=("cuda bfloat16",)), Skip.ALREADY_SET),
        (Ground(modules=(ModuleSeen(name="N", dtypes=("bfloat16",)),)), Skip.NO_FLOAT32),
        (Ground(device="cuda", capability=(9, 0)), ""),
    ],
)
def test_autocast_is_tried_where_it_can_win(ground: Ground, skip: str) -> None:
    assert code(autocast.reason_to_skip(ground)) == skip


def test_channels_last_turns_convolutions_of_two_and_three_dimensions() -> None:
    flat = nn.Sequential(nn.Conv2d(3, 4, 3))
    x = torch.randn(2, 3, 8, 8)
    plain = flat(x)
    (laid_out,), _ = begun(channels_last, flat, x)
    assert laid_out.facts == {
        "model": "Sequential", "memory_format": "channels_last", "images": True
    }  # fmt: skip
    assert flat[0].weight.is_contiguous(memory_format=torch.channels_last)
    assert torch.allclose(flat(x), plain, atol=1e-6)
    assert flat(x).is_contiguous(memory_format=torch.channels_last)
    deep = nn.Sequential(nn.Conv3d(3, 4, 3))
    (laid_out,), _ = begun(channels_last, deep, torch.randn(2, 3, 8, 8, 8))
    assert laid_out.facts["memory_format"] == "channels_last_3d"
    assert deep[0].weight.is_contiguous(memory_format=torch.channels_last_3d)


class Copied(nn.DataParallel):
    """A DataParallel as it is with two GPUs."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.device_ids = [0, 1]


Copied.__name__ = "DataParallel"


@pytest.mark.parametrize("fix", [channels_last, compile])
def test_a_data_parallel_on_one_device_is_looked_into_and_on_several_is_left(fix: Any) -> None:
    net, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 8, 8)
    (fixed,), _ = begun(fix, nn.DataParallel(net), x)
    assert fixed.facts["model"] == "Sequential"
    if fix is channels_last:
        assert net[0].weight.is_contiguous(memory_format=torch.channels_last)
    else:
        assert net._compiled_call_impl is not None
    assert begun(fix, Copied(nn.Sequential(nn.Conv2d(3, 4, 3))), x) == ([], [Skip.REPLICATED])


def test_channels_last_leaves_a_model_in_ddp() -> None:
    class Sends(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

    Sends.__name__ = "DistributedDataParallel"
    model = Sends(nn.Conv2d(3, 4, 3))
    assert begun(channels_last, model, torch.randn(2, 3, 8, 8))[1] == [Skip.WRAPPED_IN_DDP]


def test_autocast_of_a_model_on_several_devices_is_around_the_copies() -> None:
    """A copy of a model whose own forward was wrapped would run on the original's parameters."""
    net = nn.Conv2d(3, 4, 3)
    model = Copied(net)
    (fixed,), _ = begun(autocast, model, torch.randn(2, 3, 8, 8))
    assert fixed.facts["model"] == "Conv2d"
    assert (fixes_around(model), fixes_around(net)) == (("autocast",), ())


def test_channels_last_leaves_other_parameters_of_four_dimensions() -> None:
    class Biased(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c = nn.Conv2d(3, 4, 1)
            self.table = nn.Parameter(torch.randn(1, 4, 3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.c(x).sum() + self.table.view(-1).sum()

    model = Biased()
    assert begun(channels_last, model, torch.randn(1, 3, 4, 4))[0]
    model(torch.randn(1, 3, 4, 4)).backward()
    assert begun(channels_last, nn.Linear(2, 2), torch.ones(1, 2))[1] == [Skip.NO_CONVOLUTION]


def test_blocks_are_found_where_most_of_the_model_is_in_them() -> None:
    assert len(repeated_blocks(torch, Stack())) == 4
    assert repeated_blocks(torch, Stack(blocks=2)) == []
    assert repeated_blocks(torch, nn.Sequential(*(nn.Linear(4, 4) for _ in range(5)))) == []
    wide = Stack()
    wide.head = nn.Linear(8, 1000)
    assert repeated_blocks(torch, wide) == []
    tabled = Stack()
    tabled.table = nn.Embedding(1000, 8)
    assert len(repeated_blocks(torch, tabled)) == 4


def gradients(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    torch.manual_seed(3)
    model.zero_grad()
    model(x).square().sum().backward()
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(("blocks", "count"), [("all", 4), ("half", 2)])
def test_checkpointing_gives_equal_gradients_with_dropout(blocks: str, count: int) -> None:
    model, x = Stack(), torch.randn(5, 8)
    plain = gradients(model, x)
    (chosen,), _ = begun(checkpointing, model, x, blocks=blocks)
    assert chosen.facts == {
        "model": "Stack", "block": "Block", "blocks": count, "all_blocks": 4
    }  # fmt: skip
    runs = []
    model.blocks[0].a.register_forward_hook(lambda *_: runs.append(1))
    found = gradients(model, x)
    assert len(runs) == 2  # once more in the backward
    assert all(torch.equal(one, was) for one, was in zip(found, plain, strict=True))
    model.eval()
    model(x)
    assert len(runs) == 3


def test_checkpointing_refuses_blocks_that_would_count_a_batch_twice() -> None:
    assert begun(checkpointing, Stack(norm=True), torch.randn(5, 8))[1] == [Skip.RUNNING_STATISTICS]
    assert begun(checkpointing, nn.Linear(2, 2), torch.ones(1, 2))[1] == [Skip.NO_REPEATED_BLOCKS]

    class Counting(Block):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            self.calls += 1
            return super().forward(x, scale)

    model = Stack()
    model.blocks = nn.ModuleList(Counting() for _ in range(3))
    assert begun(checkpointing, model, torch.randn(5, 8))[0]
    with pytest.raises(RuntimeError, match="writes its buffers"):
        model(torch.randn(5, 8))


def test_a_model_that_can_checkpoint_itself_does_and_fills_no_cache_twice() -> None:
    transformers = pytest.importorskip("transformers")
    settings = transformers.GPT2Config(
        n_layer=3, n_embd=8, n_head=2, vocab_size=11, n_positions=8, bos_token_id=1, eos_token_id=2
    )
    model = transformers.GPT2LMHeadModel(settings).train()
    ids = torch.randint(11, (2, 6))

    def found() -> list[torch.Tensor]:
        torch.manual_seed(3)
        model.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    plain = found()
    done_by_method = because(Done.CHECKPOINT_METHOD, model="GPT2LMHeadModel", path="")
    assert begun(checkpointing, model)[0] == [done_by_method]
    assert all(torch.equal(one, was) for one, was in zip(found(), plain, strict=True))
    other = transformers.GPT2LMHeadModel(settings).train()
    begun(checkpointing, other, blocks="half")
    with pytest.raises(RuntimeError, match="fills a cache"):
        other(input_ids=ids, labels=ids)


def test_inference_mode_is_put_on_where_nothing_trains() -> None:
    assert inference_mode.reason_to_skip(Ground()) == because(Skip.TRAINS)
    assert inference_mode.reason_to_skip(Ground(trains=False)) is None
    model, x = nn.Linear(2, 2).eval(), torch.ones(1, 2)
    plain = model(x)
    assert begun(inference_mode, model, x)[0] == [because(Done.INFERENCE_MODE, model="Linear")]
    assert model(x).is_inference()
    assert torch.equal(model(x), plain)
    asked = torch.ones(1, 2, requires_grad=True)
    assert begun(inference_mode, nn.Linear(2, 2).eval(), asked)[1] == [Skip.INPUT_NEEDS_GRADIENT]
    with torch.inference_mode():
        assert begun(inference_mode, nn.Linear(2, 2), x)[1] == [Skip.ALREADY_SET]
    with pytest.raises(RuntimeError, match="does not require grad"):
        model(x).sum().backward()  # a program that trains after all is not silently equal
    with pytest.raises(RuntimeError, match="nplace"):
        model(x).add_(1)


class Convs(nn.Module):
    """a feeds its norm alone; b is used twice; c's norm runs on another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(3, 3, 3, padding=1) for _ in range(3))
        self.na, self.nb, self.nc = (nn.BatchNorm2d(3) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.na(self.a(x)))
        y = self.b(x)
        z = self.nb(y) + y
        return self.nc(torch.relu(self.c(z)))


@pytest.fixture
def convs() -> Convs:
    torch.manual_seed(0)
    model = Convs()
    for _ in range(3):
        model(torch.randn(4, 3, 6, 6))  # statistics that are not 0 and 1
    return model.eval()


def test_a_norm_is_folded_only_where_it_alone_reads_the_convolution(convs: Convs) -> None:
    x = torch.randn(2, 3, 6, 6)
    plain = convs(x)
    state = {name: one.clone() for name, one in convs.state_dict().items()}
    assert begun(eval_fusing, convs, x)[0] == [because(Done.NORMS_FOLDED, model="Convs", norms=1)]
    assert fixes_around(convs.a) == fixes_around(convs.na) == ("eval-fusing",)
    assert not fixes_around(convs.b)
    assert torch.allclose(convs(x), plain, atol=1e-5)
    assert all(torch.equal(one, state[name]) for name, one in convs.state_dict().items())


def test_folded_norms_follow_new_weights_and_training(convs: Convs) -> None:
    x = torch.randn(2, 3, 6, 6)
    other = copy.deepcopy(convs)
    begun(eval_fusing, convs, x)
    with torch.no_grad():
        for model in (convs, other):
            model.a.weight.mul_(2)
            model.na.running_mean.add_(1)
    assert torch.allclose(convs(x), other(x), atol=1e-5)
    assert torch.allclose(copy.deepcopy(convs)(x), other(x), atol=1e-5)
    convs.train()
    other.train()
    assert torch.equal(convs(x), other(x))
    assert begun(eval_fusing, convs, x)[1] == [Skip.TRAINING_MODE]


def test_a_padded_product_gives_the_same_logits_and_gradients() -> None:
    head, x = nn.Linear(8, 1027), torch.randn(2, 5, 8)
    plain = head(x)
    plain.square().sum().backward()
    before = head.weight.grad.clone() if head.weight.grad is not None else None
    head.zero_grad()
    wrap_forward(
        head, "padded-vocabulary", lambda forward: padded_vocabulary.padded(torch, forward)
    )
    found = head(x)
    assert found.shape == plain.shape
    assert found.stride(-2) == 1088
    assert torch.allclose(found, plain, atol=1e-5)
    found.view(-1, 1027).square().sum().backward()
    assert head.weight.shape == (1027, 8)
    assert torch.allclose(head.weight.grad, before, atol=1e-3)


def test_padding_is_refused_where_it_cannot_win() -> None:
    assert code(padded_vocabulary.reason_to_skip(Ground())) == Skip.NO_GPU
    gpu = Ground(device="cuda", capability=(9, 0), odd_widths=True)
    assert padded_vocabulary.reason_to_skip(gpu) is None
    assert (
        code(padded_vocabulary.reason_to_skip(replace(gpu, odd_widths=False))) == Skip.NO_ODD_WIDTH
    )
    assert padded_vocabulary.padding(50257) == 47
    assert padded_vocabulary.padding(50304) == padded_vocabulary.padding(10) == 0
    on_cpu = begun(padded_vocabulary, nn.Linear(8, 1027), torch.ones(1, 8))
    assert on_cpu == ([], [Skip.NO_ODD_WIDTH])
