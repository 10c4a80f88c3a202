"""Attention written out, rewritten as one call; and what is left alone."""

import ast
import math
from textwrap import dedent, indent
from typing import Any

import pytest
import torch
from torch import nn

from ridgeline.fixes.fused_attention import Fused, fused
from ridgeline.records.facts import Reason
from ridgeline.records.reason_codes import Skip

HEAD = "import math\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"


def source(body: str, init: str = "pass") -> str:
    return (
        f"{HEAD}class Attention(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        {init}\n\n    def forward(self, q, k, v, mask):\n"
        f"{indent(dedent(body), ' ' * 8)}\n"
    )


def rewritten(text: str) -> Fused:
    found = fused(
        text, text.splitlines().index(next(r for r in text.splitlines() if "forward" in r)) + 1
    )
    assert isinstance(found, Fused), found
    return found


def obstacle(text: str, line: int | None = None) -> str:
    found = fused(text, line or len(text.splitlines()))
    assert isinstance(found, Reason)
    return found.code


def module(text: str) -> nn.Module:
    names: dict[str, Any] = {}
    exec(compile(text, "attention.py", "exec"), names)
    made = names["Attention"]()
    assert isinstance(made, nn.Module)
    return made


SAME = {
    "causal buffer, scaled by a product": (
        """\
        T = q.size(-2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = att @ v
        return y
        """,
        'self.register_buffer("bias", torch.tril(torch.ones(8, 8)).view(1, 1, 8, 8))',
    ),
    "one expression, divided": (
        "return torch.softmax(torch.matmul(q, k.transpose(2, 3)) / 3.0, dim=-1) @ v",
        "pass",
    ),
    "a mask that is added": (
        """\
        scores = torch.matmul(q, k.mT)
        scores = scores / math.sqrt(q.shape[-1])
        scores += mask.float() * -1e9
        weights = scores.softmax(-1)
        return torch.matmul(weights, v)
        """,
        "pass",
    ),
    "a mask of what to leave out, cast": (
        """\
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k)
        scores = scores.masked_fill(mask, -1e9)
        weights = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
        return torch.einsum("bhqk,bhkd->bhqd", weights, v)
        """,
        "pass",
    ),
    "queries scaled before, what takes part": (
        """\
        scores = (q * 0.25) @ k.permute(0, 1, 3, 2)
        scores = torch.where(~mask, scores, torch.finfo(q.dtype).min)
        return F.softmax(scores, -1).matmul(v).transpose(1, 2)
        """,
        "pass",
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_rewritten_function_computes_the_same(name: str) -> None:
    text = source(*SAME[name])
    found = rewritten(text)
    assert "softmax" not in found.text.partition("def forward")[2]
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 3, 8, 4, generator=generator) for _ in range(3))
    mask = torch.rand(2, 1, 8, 8, generator=generator) < 0.3
    old, new = module(text)(q, k, v, mask), module(found.text)(q, k, v, mask)
    torch.testing.assert_close(new, old, rtol=1e-5, atol=1e-6)


def test_causal_masks_are_known_by_the_line_that_makes_them() -> None:
    found = rewritten(source(*SAME["causal buffer, scaled by a product"]))
    assert "is_causal=True" in found.call
    assert "attn_mask" not in found.call


def test_dropout_keeps_its_rate_and_its_mode() -> None:
    body = """\
    att = F.softmax(q @ k.transpose(-2, -1), dim=-1)
    att = self.drop(att)
    return att @ v
    """
    found = rewritten(source(body, "self.drop = nn.Dropout(0.1)"))
    assert "dropout_p=self.drop.p if self.training else 0.0" in found.call
    made = module(found.text).eval()
    q = torch.randn(1, 1, 4, 4)
    expected = torch.softmax(q @ q.mT, -1) @ q
    torch.testing.assert_close(made(q, q, q, None), expected)


@pytest.mark.parametrize(
    ("body", "skip"),
    [
        (
            "att = (q @ k.mT).softmax(-1)\nself.seen = att\nreturn att @ v",
            Skip.SCORES_USED_ELSEWHERE,
        ),
        ("att = torch.tanh(q @ k.mT).softmax(-1)\nreturn att @ v", Skip.ATTENTION_CALL),
        ("att = (q @ k.mT).softmax(1)\nreturn att @ v", Skip.SOFTMAX_DIMENSION),
        ("att = (q @ k.mT).softmax(-1) * mask\nreturn att @ v", Skip.WEIGHTS_CHANGED),
        ("att = (q @ k.mT).masked_fill(mask, 0.0).softmax(-1)\nreturn att @ v", Skip.SCORES_FILLED),
        ("att = (q @ k).softmax(-1)\nreturn att @ v", Skip.NO_ATTENTION_CHAIN),
        ("return q.softmax(-1) @ v", Skip.NO_ATTENTION_CHAIN),
        (
            "s = q @ k.mT\ns = s.masked_fill(mask, -1e9)\ns = s + v\nreturn s.softmax(-1) @ v",
            Skip.SEVERAL_MASKS,
        ),
        ("s = q @ k.mT; s = s.softmax(-1)\nreturn s @ v", Skip.SHARED_LINE),
    ],
)
def test_what_else_happens_to_it_leaves_it_alone(body: str, skip: Skip) -> None:
    assert obstacle(source(body)) == skip


def test_files_that_cannot_be_read_or_do_not_know_torch() -> None:
    assert obstacle("def f(:\n", 1) == Skip.SOURCE_NOT_PARSED
    assert obstacle("def f(q, k, v):\n    return q\n", 1) == Skip.TORCH_NOT_IMPORTED
    assert obstacle("import torch\nx = 1\n", 2) == Skip.NO_FUNCTION_AT_LINE


def test_nothing_but_the_attention_is_touched() -> None:
    text = source(*SAME["causal buffer, scaled by a product"]).replace(
        "return y", "return y  # ünïcode, kept"
    )
    found = rewritten(text)
    old, new = text.splitlines(), found.text.splitlines()
    added = "".join(row.strip() for row in new if row not in old)
    assert ast.dump(ast.parse(added)) == ast.dump(ast.parse(f"y = {found.call}"))
    assert new[-1] == old[-1]
    assert math.isclose(found.last - found.first, 4)
    assert [*old[: found.first - 1], *found.after.split("\n"), *old[found.last :]] == new
    assert found.before.split("\n") == old[found.first - 1 : found.last]


def test_a_call_too_long_for_a_line_gets_several() -> None:
    found = rewritten(source(*SAME["causal buffer, scaled by a product"]))
    assert max(len(row) for row in found.text.split("\n")) <= 100
    assert "        y = F.scaled_dot_product_attention(" in found.after


def test_the_file_s_own_name_for_the_functions_is_used() -> None:
    for head, name in (
        ("import torch", "torch.nn.functional"),
        ("from torch import nn", "nn.functional"),
        ("import torch.nn.functional as TF", "TF"),
    ):
        body = "def f(q, k, v):\n    return (q @ k.mT).softmax(-1) @ v\n"
        found = fused(f"{head}\n{body}", 2)
        assert isinstance(found, Fused)
        assert found.call.startswith(f"{name}.scaled_dot_product_attention(q, k, v, ")


def test_a_mask_that_nothing_reads_any_more_goes_too() -> None:
    body = """\
    T = q.size(2)
    kept = T + 1
    future = torch.ones(T, T).triu(1).bool()
    noise = torch.rand(1)
    s = (q @ k.mT).masked_fill(future, float("-inf"))
    return s.softmax(-1) @ v * kept
    """
    found = rewritten(source(body))
    assert "future" not in found.text
    assert "T = q.size(2)" in found.text
    assert "noise" in found.text
