from typing import Any

import pytest

from ridgeline.diagnosis.rule import with_tolerance
from ridgeline.diagnosis.rules.attention import written_attention as look
from ridgeline.records.sites import OpSite
from tests.unit.diagnosis.rules.made_up_kernels import case, place, site

SOURCE = """\
class Attention(nn.Module):
    def forward(self, x):
        q, k, v = self.split(x)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        att = self.attn_dropout(att)
        y = att @ v
        return self.out(y)
"""
AT = place(2)
SCORES, HEADS = [4, 8, 512, 512], 32


def attention(gpu: bool = True, **changed: Any) -> list[OpSite]:
    """50 ms of a step of 100: products of 4.3 GFLOP, and passes over the scores."""
    made = ([HEADS, 512, 64], [HEADS, 64, 512])
    read = ([HEADS, 512, 512], [HEADS, 512, 64])
    given: dict[str, Any] = {"gpu": gpu, "place": AT, "module": "GPT / Attention_0", **changed}
    flops = 2.0 * HEADS * 512 * 512 * 64
    back = {"phase": "backward", "within": ("SoftmaxBackward0",)}
    return [
        site("aten::bmm", made, 5, flops=flops, **given),
        site("aten::masked_fill", (SCORES, [1, 1, 512, 512], []), 5, **given),
        site("aten::softmax", (SCORES, [], []), 10, **given),
        site("aten::bmm", read, 5, flops=flops, **given),
        site("aten::_softmax_backward_data", (SCORES, SCORES, [], []), 20, **{**given, **back}),
        site("aten::bmm", ([HEADS, 64, 512], [HEADS, 512, 512]), 5, flops=flops,
             **{**given, **back}),
    ]  # fmt: skip


def test_attention_in_the_open_is_found_and_rewritten() -> None:
    (finding,) = look(case(*attention(), source=SOURCE, peak=100 * 2**20))
    assert finding.share_pct == pytest.approx(50, abs=0.1)
    assert finding.gain_bound == pytest.approx(with_tolerance(1 / (1 - 0.5)), abs=0.01)
    assert (finding.file, finding.line, finding.confidence) == ("net.py", 6, "high")
    assert finding.change == (
        "y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[:, :, :T, :T] != 0, "
        "dropout_p=self.attn_dropout.p if self.training else 0.0)"
    )
    assert "6 operators" in finding.claim
    assert finding.memory_pct == pytest.approx(100 * 32 / 100)  # 32 MiB of scores, kept once


def test_a_fused_kernel_needs_its_share_of_the_time() -> None:
    """At half of 200 GFLOP/s the products' 3.2 GFLOP need 32 ms, 38 with the scores made again;
    masked ones half."""
    (finding,) = look(case(*attention(gpu=False), source=SOURCE, gpu=False))
    assert finding.share_pct == pytest.approx(50 - 19, abs=0.5)
    assert finding.change.endswith("\ny = F.dropout(y, self.attn_dropout.p, self.training)")
    assert "dropout_p" not in finding.change
    assert (finding.confidence, finding.line) == ("medium", 6)


def test_einsum_without_source_keeps_the_measured_place() -> None:
    (finding,) = look(case(*attention()))
    assert (finding.line, finding.confidence) == (2, "medium")
    assert "scaled_dot_product_attention" in finding.change


def test_scores_inside_the_operator_itself_are_not_written_out() -> None:
    within = ("aten::scaled_dot_product_attention", "aten::_scaled_dot_product_attention_math")
    assert not [*look(case(*[s for s in attention(within=within) if s.phase == "forward"]))]


def test_a_softmax_over_classes_is_no_attention() -> None:
    classes = site("aten::softmax", ([64, 10, 1000], [], []), 50, place=AT)
    product = site("aten::bmm", ([8, 64, 64], [8, 64, 64]), 10, place=AT)
    assert not [*look(case(classes, product))]


def test_below_a_hundredth_of_the_step_nothing_is_said() -> None:
    small = [site(s.op, s.dims, 0.1, place=AT, within=s.within) for s in attention()]
    assert not [*look(case(*small))]


def test_without_sizes_the_count_of_products_tells() -> None:
    forward = [
        site("aten::_softmax", (), 10, calls=12.0),
        site("aten::bmm", (), 20, calls=24.0),
    ]
    (finding,) = look(case(*forward, shapes=False))
    assert (finding.confidence, finding.share_pct) == ("low", pytest.approx(30))
    odd = site("aten::bmm", (), 20, calls=25.0)
    assert not [*look(case(forward[0], odd, shapes=False))]


def test_a_softmax_is_counted_once_with_the_operator_inside_it() -> None:
    """As torch traces it: softmax calls _softmax."""
    outer = site("aten::softmax", (), 0.1, calls=12.0)
    inner = site("aten::_softmax", (), 10, calls=12.0, within=("aten::softmax",))
    products = site("aten::bmm", (), 20, calls=24.0, within=("aten::einsum",))
    (finding,) = look(case(outer, inner, products, shapes=False))
    assert "12 times a step" in finding.claim
    assert finding.confidence == "low"


def test_without_sizes_a_softmax_that_chooses_experts_is_no_attention() -> None:
    """A gate and two batched products of its experts: as many, but it takes no time."""
    gate = site("aten::_softmax", (), 0.2, calls=12.0)
    assert not [*look(case(gate, site("aten::bmm", (), 20, calls=24.0), shapes=False))]


def test_what_torchs_own_operators_do_inside_nobody_wrote_out() -> None:
    """nn.TransformerEncoderLayer in evaluation."""
    within = ("aten::_transformer_encoder_layer_fwd", "aten::_native_multi_head_attention")
    module = "TransformerEncoder_0 / TransformerEncoderLayer_0"
    inside = [s for s in attention(within=within, module=module) if s.phase == "forward"]
    assert not [*look(case(*inside))]
    bare = [site(s.op, (), 10, within=s.within) for s in inside if s.op != "aten::masked_fill"]
    assert not [*look(case(*bare, shapes=False))]


def test_multihead_attention_is_asked_for_no_weights() -> None:
    source = """\
class Block:
    def forward(self, x):
        out, _ = self.attn(x, x, x)

    def __init__(self):
        self.attn = nn.MultiheadAttention(64, 8)
"""
    module = "Block_0 / MultiheadAttention_0"
    (finding,) = look(case(*attention(module=module), source=source))
    assert finding.change == "self.attn(x, x, x, need_weights=False)"
    assert finding.line == 3
