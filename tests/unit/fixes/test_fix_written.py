"""Changes written into source do there what they do from outside."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from ridgeline.fixes.catalog import checkpointing, padded_vocabulary, sdpa
from ridgeline.optimization.patching import patches
from ridgeline.records.facts import Fact, Reason, because
from ridgeline.records.reason_codes import ByHand, Done
from ridgeline.source.editing import patched
from ridgeline.source.program import ProgramTexts
from tests.unit.fixes.seams_here import applied

NETS = """\
import torch
from torch import nn
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
    def forward(self, x):
        return self.body(x)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(8, 1030, bias=BIAS)
    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)
"""
PADDED = because(Done.PADDED_LAYER, layer="head", width=1088)
TRAIN = "from nets import Net\nmodel = Net()\nfor x in data:\n    model(x).sum().backward()\n"


def program(folder: Path, bias: str = "True") -> Path:
    (folder / "nets.py").write_text(NETS.replace("BIAS", bias))
    (folder / "train.py").write_text(TRAIN)
    return folder / "train.py"


def ran(text: str) -> Any:
    scope: dict[str, Any] = {"__name__": "nets"}
    exec(compile(text, "nets.py", "exec"), scope)
    torch.manual_seed(0)
    return scope["Net"]()


def test_a_padded_head_is_written_where_it_is_called(tmp_path: Path) -> None:
    for bias in ("True", "False"):
        script = program(tmp_path, bias)
        padded = applied("padded-vocabulary", PADDED, places=[f"{script}:4"])
        (file,) = patches(script, [padded]).files
        assert "return padded_linear(self.head, x)" in file.text
        x = torch.randn(5, 8)
        old, new = ran(NETS.replace("BIAS", bias)), ran(file.text)
        torch.testing.assert_close(new(x), old(x), rtol=1e-6, atol=1e-6)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert new(x).dtype == torch.bfloat16


def test_blocks_that_ran_compiled_are_found_by_their_class(tmp_path: Path) -> None:
    script = program(tmp_path)
    facts: dict[str, Fact] = {"model": "Net", "block": "Block", "blocks": 3, "all_blocks": 3}
    blocks = Reason(Done.CHECKPOINT_BLOCKS, facts)
    checkpointed = applied("checkpointing", blocks, places=[f"{script}:4"])
    (file,) = patches(script, [checkpointed]).files
    assert "x = checkpoint(block, x, use_reentrant=False)" in file.text
    assert checkpointing.source_edits(checkpointed, ProgramTexts(script))


def test_a_head_that_two_classes_have_is_left_to_be_written_by_hand(tmp_path: Path) -> None:
    script = program(tmp_path)
    text = (tmp_path / "nets.py").read_text()
    (tmp_path / "nets.py").write_text(text + text.replace("class Net", "class Other"))
    found = patches(script, [applied("padded-vocabulary", PADDED, places=[f"{script}:4"])])
    assert not found.files
    assert found.by_hand == (because(ByHand.PADDED_PRODUCT, layer="head", multiple=64),)


def test_the_attention_written_is_the_one_that_was_tried(tmp_path: Path) -> None:
    from ridgeline.fixes.fused_attention import Fused, fused

    text = "import torch\n\n\ndef f(q, k, v):\n    s = q @ k.mT / 2\n    return s.softmax(-1) @ v\n"
    file = tmp_path / "net.py"
    file.write_text(text)
    rewritten = because(Done.FUNCTION_REWRITTEN, function="f")
    fixed = applied("sdpa", rewritten, places=[f"{file}:4"])
    new = patched("net.py", text.encode(), sdpa.source_edits(fixed, ProgramTexts(file))).text
    tried = fused(text, 4)
    assert isinstance(tried, Fused)
    comment = "    # ridgeline: scores and weights stay on the chip\n"
    assert new.replace(comment, "") == tried.text


def test_words_of_the_padded_code_are_those_of_the_trial() -> None:
    """Both are kept by hand: the copy's function against the layer's own forward as wrapped."""
    layer = nn.Linear(8, 1030)
    scope: dict[str, Any] = {"torch": torch}
    exec(padded_vocabulary.CODE, scope)
    under = padded_vocabulary.padded(torch, type(layer).forward)
    x = torch.randn(3, 8)
    assert torch.equal(scope["padded_linear"](layer, x), under(layer, x))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(scope["padded_linear"](layer, x), under(layer, x))
