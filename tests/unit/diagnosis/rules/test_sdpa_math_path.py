from typing import Any

import pytest

from ridgeline.diagnosis.rules.attention import sdpa_math_path as look
from ridgeline.records.sites import OpSite
from tests.unit.diagnosis.rules.made_up_kernels import case, place, site

SOURCE = """\
def forward(self, x):
    q, k, v = self.split(x)
    return F.scaled_dot_product_attention(q, k, v, dropout_p=0.1)
"""
MATH = "aten::_scaled_dot_product_attention_math"
HEADS = [2, 4, 256, 64]
NORMAL = [65536, 16384, 64, 1]


def fell(
    dims: tuple[Any, ...] = (HEADS, HEADS, HEADS, [], [], []),
    concrete: tuple[str, ...] = ("", "", "", "", "0.", "False"),
    strides: Any = NORMAL, gpu: bool = True, types: tuple[str, ...] = ("float",) * 3,
) -> list[OpSite]:  # fmt: skip
    within = ("aten::scaled_dot_product_attention", MATH)
    scores = [2, 4, 256, 256]
    given: dict[str, Any] = {"gpu": gpu, "place": place(1)}
    return [
        site(MATH, dims, 0.1, within=within[:1], concrete=concrete, strides=(strides,) * 3,
             **{**given, "types": types}),
        site("aten::_safe_softmax", (scores, [], []), 10, within=within, **given),
        site("aten::bmm", ([8, 256, 256], [8, 256, 64]), 5, within=within, **given),
        site("aten::_softmax_backward_data", (scores, scores, [], []), 10, phase="backward",
             within=("SafeSoftmaxBackward0",), **given),
        site("aten::mm", ([512, 512], [512, 512]), 20, **given),
    ]  # fmt: skip


def said(*sites: OpSite, source: str = SOURCE, gpu: bool = True) -> Any:
    (finding,) = look(case(*sites, source=source, gpu=gpu))
    return finding


def test_dropout_on_a_processor_is_the_reason() -> None:
    dropout = ("", "", "", "", "0.10000000000000001", "False")
    finding = said(*fell(concrete=dropout, gpu=False), gpu=False)
    assert finding.share_pct == pytest.approx(25.1, abs=0.1)
    assert finding.line == 3
    assert "no dropout" in finding.claim
    assert finding.change == (
        "return F.dropout(F.scaled_dot_product_attention(q, k, v), 0.1, self.training)"
        "  # of its result, not its weights"
    )


def test_the_change_has_the_programs_own_names() -> None:
    dropout = ("", "", "", "", "0.1", "False")
    source = SOURCE.replace("return F.", "y = F.") + "    return self.proj(y)\n"
    finding = said(*fell(concrete=dropout, gpu=False), gpu=False, source=source)
    first, second = finding.change.splitlines()
    assert first == "y = F.scaled_dot_product_attention(q, k, v)"
    assert second.startswith("y = F.dropout(y, 0.1, self.training)")
    inside = SOURCE.replace("return F.", "return self.proj(F.").replace("=0.1)", "=0.1))")
    finding = said(*fell(concrete=dropout, gpu=False), gpu=False, source=inside)
    assert finding.change.startswith("F.dropout(F.scaled_dot_product_attention(q, k, v), 0.1,")


def test_dropout_inside_a_library_is_left_alone_until_it_costs_much() -> None:
    dropout = ("", "", "", "", "0.1", "False")
    sites = fell(concrete=dropout, gpu=False)
    assert not [*look(case(*sites, source="def forward(self, x):\n    pass\n", gpu=False))]


def test_a_strided_head_is_the_reason() -> None:
    finding = said(*fell(strides=[65536, 1, 256, 4]))
    assert "not contiguous (stride 4)" in finding.claim
    assert finding.confidence == "high"


@pytest.mark.parametrize(
    ("sites", "word"),
    [
        (fell(dims=([2, 256, 64],) * 3 + ([], [], [])), "3 dimensions"),
        (fell(types=("double",) * 3), "float64"),
        (fell(types=("float", "c10::Half", "c10::Half")), "different types"),
        (fell(dims=(HEADS, HEADS, [2, 4, 256, 32], [], [], [])), "sizes differ"),
        (fell(dims=(HEADS, HEADS, HEADS, [256, 256], [], [])), "mask"),
    ],
)
def test_each_condition_is_named(sites: list[OpSite], word: str) -> None:
    assert word in said(*sites).claim


def test_a_setting_in_the_source_is_the_reason() -> None:
    source = SOURCE + "\nwith sdpa_kernel(SDPBackend.MATH):\n    train()\n"
    assert "`sdpa_kernel(SDPBackend.MATH)` in line 5" in said(*fell(), source=source).claim


def test_without_a_reason_it_says_how_to_ask() -> None:
    finding = said(*fell())
    assert finding.confidence == "medium"
    assert "sdpa_kernel" in finding.change


def test_a_fused_call_gets_nothing() -> None:
    flash = site("aten::_scaled_dot_product_flash_attention", (HEADS,) * 3, 40, place=place(1))
    assert not [*look(case(flash, source=SOURCE))]
