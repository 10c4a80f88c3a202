"""Ways of compiling: when they are tried, what they set, and the lines they write. Nothing is
compiled here: `Module.compile` only says that the next call is to be."""

from typing import Any

import pytest
import torch
from torch import nn

from ridgeline.fixes.catalog import (
    autocast,
    channels_last,
    checkpointing,
    compile_dynamic,
    compile_max_autotune,
    compile_reduce_overhead,
    compile_regional,
    compiled_autograd,
    inference_mode,
)
from ridgeline.fixes.catalog import compile as whole
from ridgeline.fixes.fix import EditByHand, find_fix, registered
from ridgeline.fixes.program import Program
from ridgeline.records.edit import Insert
from ridgeline.records.facts import Fact, Place, Reason, because
from ridgeline.records.ground import Ground
from ridgeline.records.reason_codes import ByHand, Done, Skip
from ridgeline.records.trial import Applied, FixTarget
from ridgeline.source.editing.patching import patched
from tests.unit.fixes.seams_here import code, codes, done, why

GPU = Ground(device="cuda", capability=(9, 0))
SCRIPT = """\
import torch
import torch.nn.functional as F

def main():
    model = Net().to("cuda")
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
"""


def begun(fix: Any, *models: nn.Module, device: str = "cpu") -> tuple[list[Reason], list[str]]:
    program = Program(torch)
    program.device = device
    fix.apply(program, {})
    for model in models:
        program.call_begins(model, (), {})
    fixed, left = program.outcome()
    return done(fixed), codes(why(left))


def applied(fix: Any, done: Done, line: int = 8, **facts: Fact) -> Applied:
    target = FixTarget(done=Reason(done.value, facts), place=Place("t.py", line))
    return Applied(fix=fix.FIX.id, targets=(target,))


def compiled(fix: Any, arguments: str = "", mode: str = "") -> Applied:
    return applied(fix, Done.COMPILED, model="Net", arguments=arguments, mode=mode)


def text_of(fix: Any, seen: Applied, text: str = SCRIPT) -> str:
    done = patched("t.py", text.encode(), find_fix(fix.FIX.id).source_edits(seen, lambda _: text))
    assert not done.refused
    return done.text


def stack() -> nn.Module:
    return nn.Sequential(*(nn.TransformerEncoderLayer(8, 2, 8) for _ in range(3)))


def test_every_root_is_compiled_and_said() -> None:
    one, two = nn.Linear(2, 2), nn.Bilinear(2, 2, 2)
    assert [reason.facts["model"] for reason in begun(whole, one, two)[0]] == ["Linear", "Bilinear"]
    assert one._compiled_call_impl is not None
    assert two._compiled_call_impl is not None


@pytest.mark.parametrize("fix", [whole, compile_dynamic, compile_regional])
def test_what_the_program_compiles_is_left(fix: Any) -> None:
    ready = stack()
    ready.compile()
    assert begun(fix, ready)[1] == [Skip.ALREADY_SET]
    assert begun(fix, torch.compile(stack()))[1] == [Skip.ALREADY_SET]
    part = stack()
    part[0].compile()
    assert begun(fix, part)[1] == [Skip.ALREADY_SET]


def test_torchscript_is_left() -> None:
    assert begun(whole, torch.jit.script(nn.Linear(2, 2)))[1] == [Skip.TORCHSCRIPT]


def test_repeated_blocks_are_compiled_each_and_counted() -> None:
    model = stack()
    facts = {"model": "Sequential", "block": "TransformerEncoderLayer", "blocks": 3}
    assert begun(compile_regional, model)[0] == [Reason(Done.COMPILED_BLOCKS, facts)]
    assert model._compiled_call_impl is None
    assert all(block._compiled_call_impl is not None for block in model)
    assert begun(compile_regional, nn.Linear(2, 2))[1] == [Skip.NO_REPEATED_BLOCKS]


@pytest.mark.parametrize("fix", [compile_reduce_overhead, compile_max_autotune])
def test_what_is_for_a_gpu_is_not_applied_on_a_cpu(fix: Any) -> None:
    model = nn.Linear(2, 2)
    assert begun(fix, model)[1] == [Skip.NO_GPU]
    assert model._compiled_call_impl is None
    assert fix.reason_to_skip(Ground()) == because(Skip.NO_GPU)
    assert fix.reason_to_skip(GPU) is None
    changing = Ground(device="cuda", capability=(9, 0), shapes_change=True)
    assert fix.reason_to_skip(changing) == because(Skip.SHAPES_CHANGE)


def test_a_step_is_marked_for_cuda_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    marks: list[int] = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    program = Program(torch)
    program.device = "cuda"
    compile_reduce_overhead.apply(program, {})
    program.step_ended()
    program.step_ended()
    assert len(marks) == 2


def test_compiling_is_refused_where_nothing_can_compile_or_all_is() -> None:
    for one in registered():
        if one.fix.slot == "compile":
            assert one.reason_to_skip(Ground(device="cuda", capability=(9, 0), compiler=False))
            assert one.bound is not None
            assert one.bound(Ground(products_least_share=0.1)) > 5
            assert one.bound(Ground(input_share=1.0, products_least_share=0.0)) == 1
            assert one.bound(Ground()) is None
            # a rung of 2.84 × was kept where products and input took 58 % of the step
            assert one.bound(Ground(products_least_share=0.58)) > 2.84
    assert code(whole.reason_to_skip(Ground(compiled=True))) == Skip.ALREADY_SET
    assert code(compile_dynamic.reason_to_skip(Ground())) == Skip.SAME_SHAPES
    assert compile_dynamic.reason_to_skip(Ground(shapes_change=True)) is None
    assert code(compiled_autograd.reason_to_skip(Ground(ranks=2))) == Skip.DDP_SENDS_IN_BACKWARD


def test_compile_is_written_after_the_model_is_made() -> None:
    text = text_of(whole, compiled(whole))
    lines = [line.strip() for line in text.splitlines()]
    assert 'model = Net().to("cuda")' in lines
    at = next(i for i, line in enumerate(lines) if line.startswith("model.compile()"))
    assert at < next(i for i, line in enumerate(lines) if line.startswith("opt ="))
    assert "model.compile(dynamic=True)" in text_of(
        compile_dynamic, compiled(compile_dynamic, "dynamic=True")
    )


def test_cuda_graphs_are_written_with_the_mark_before_the_call() -> None:
    seen = compiled(compile_reduce_overhead, 'mode="reduce-overhead"', "reduce-overhead")
    made, mark, _ = find_fix("compile-reduce-overhead").source_edits(seen, lambda _: SCRIPT)
    assert isinstance(made, Insert)
    assert (made.line, made.where, made.text) == (
        5,
        "after",
        'model.compile(mode="reduce-overhead")',
    )
    assert isinstance(mark, Insert)
    assert (mark.line, mark.where) == (8, "before")
    compile(text_of(compile_reduce_overhead, seen), "t.py", "exec")


def test_regional_compile_is_written_as_a_loop_over_the_blocks() -> None:
    seen = applied(compile_regional, Done.COMPILED_BLOCKS, model="Net", block="Block", blocks=3)
    text = text_of(compile_regional, seen)
    assert 'if type(block).__name__ == "Block":' in text
    assert "for block in model.modules():" in text
    compile(text, "t.py", "exec")


def test_autocast_is_written_around_the_call_alone() -> None:
    seen = applied(autocast, Done.AUTOCAST, model="Net", device="cuda", dtype="bfloat16")
    text = text_of(autocast, seen)
    compile(text, "t.py", "exec")
    assert 'with torch.autocast("cuda", dtype=torch.bfloat16):' in text
    assert "loss = F.cross_entropy(outputs.float(), y)" in text
    bad = SCRIPT.replace("model(x)", "[model(one) for one in x]").replace("loss.backward()", "")
    with pytest.raises(EditByHand) as raised:
        autocast.source_edits(seen, lambda _: bad)
    header = 'torch.autocast("cuda", dtype=torch.bfloat16)'
    assert raised.value.reason.code == ByHand.AROUND_MODEL_CALL
    assert raised.value.reason.facts == {"header": header}


def laid_out(memory_format: str, images: bool) -> Applied:
    facts: dict[str, Fact] = {"memory_format": memory_format, "images": images}
    done = Reason(Done.CHANNELS_LAST, {"model": "Net", **facts})
    return Applied(fix="channels-last", targets=(FixTarget(done=done, place=Place("t.py", 8)),))


def checkpointed(blocks: int) -> Applied:
    """Return four blocks of which some are checkpointed, called at line 4."""
    facts: dict[str, Fact] = {"model": "Net", "block": "Block", "blocks": blocks, "all_blocks": 4}
    model = FixTarget(done=Reason(Done.CHECKPOINT_BLOCKS, facts), place=Place("t.py", 99))
    call = because(Done.CHECKPOINT_CALL, block="Block")
    targets = (model, FixTarget(done=call, place=Place("t.py", 4)))
    return Applied(fix="checkpointing", targets=targets)


def test_channels_last_is_written_for_the_model_and_its_images() -> None:
    text = text_of(channels_last, laid_out("channels_last", images=True))
    assert "model.to(memory_format=torch.channels_last)" in text
    assert "x = x.to(memory_format=torch.channels_last)" in text
    deep = text_of(channels_last, laid_out("channels_last_3d", images=False))
    assert "model.to(memory_format=torch.channels_last_3d)" in deep
    assert "x = x" not in deep


def test_checkpointing_is_written_where_the_blocks_are_called() -> None:
    text = "class Net:\n    def forward(self, x):\n        for block in self.blocks:\n"
    text += "            x = block(x, mask=self.mask)\n        return x\n"
    seen = checkpointed(4)
    done = text_of(checkpointing, seen, text)
    assert "x = checkpoint(block, x, mask=self.mask, use_reentrant=False)" in done
    assert "from torch.utils.checkpoint import checkpoint" in done
    half = checkpointed(2)
    with pytest.raises(EditByHand) as some:
        checkpointing.source_edits(half, lambda _: text)
    assert some.value.reason.cause == because(ByHand.SOME_BLOCKS)
    with pytest.raises(EditByHand) as unnamed:
        checkpointing.source_edits(seen, lambda _: "x = 1\n")
    assert unnamed.value.reason.cause == because(ByHand.BLOCKS_NOT_NAMED)


def test_checkpointing_of_a_library_s_model_is_written_as_its_own_call() -> None:
    seen = applied(checkpointing, Done.CHECKPOINT_METHOD, model="Net", path="")
    assert "model.gradient_checkpointing_enable(" in text_of(checkpointing, seen)
    inner = applied(checkpointing, Done.CHECKPOINT_METHOD, model="Net", path="body")
    assert "model.body.gradient_checkpointing_enable(" in text_of(checkpointing, inner)


def test_inference_mode_takes_the_place_of_no_grad() -> None:
    seen = applied(inference_mode, Done.INFERENCE_MODE, 4, model="Net")
    text = "import torch\nm = Net()\nwith torch.no_grad():\n    y = m(x)\n"
    assert "with torch.inference_mode():" in text_of(inference_mode, seen, text)
    bare = "import torch\nm = Net()\nfor x in data:\n    y = m(x)\n    print(y)\n"
    done = text_of(inference_mode, seen, bare)
    assert "        y = m(x)\n    print(y)" in done


def test_compiled_autograd_is_written_around_the_backward() -> None:
    seen = applied(compiled_autograd, Done.BACKWARD_CAPTURED)
    done = text_of(compiled_autograd, seen)
    assert "torch._dynamo.config.compiled_autograd = True" in done
    assert "_enable(torch.compile):\n            loss.backward()" in done
    compile(done, "t.py", "exec")


def test_a_file_that_cannot_be_read_is_said() -> None:
    with pytest.raises(EditByHand) as raised:
        find_fix("compile").source_edits(compiled(whole), lambda _: None)
    reason = raised.value.reason
    assert reason.facts == {"line": 8, "statement": "model.compile()"}
    assert reason.cause == because(ByHand.FILE_UNREADABLE, file="t.py")
