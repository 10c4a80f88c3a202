import msgspec
import pytest

from ridgeline.diagnosis.rules.peak_memory import huge_logits as look
from ridgeline.records.sites import OpSite
from ridgeline.records.trace import MemoryCurve
from tests.unit.diagnosis.rules.made_up_kernels import case, place, site

SOURCE = """\
def forward(self, tokens, targets):
    hidden = self.body(tokens)
    return F.cross_entropy(self.head(hidden), targets)
"""
GIB = 2**30


def loss(positions: int = 8192, words: int = 32768) -> list[OpSite]:
    logits = [positions, words]
    axis = ("", "1", "6")
    return [
        site("aten::_log_softmax", (logits, [], []), 5, concrete=axis, place=place(1)),
        site("aten::_log_softmax_backward_data", (logits, logits, [], []), 5, phase="backward"),
    ]


def test_three_tensors_of_a_gibibyte_are_said_against_the_peak() -> None:
    (finding,) = look(case(*loss(), source=SOURCE, peak=4 * GIB))
    assert finding.memory_pct == pytest.approx(100 * 3 * (7 / 8) / 4, abs=0.01)
    assert finding.share_pct == 0
    assert (finding.line, finding.confidence) == (3, "high")
    assert "8,192 positions × 32,768 words take 1 GiB" in finding.claim
    assert "self.head(h)" in finding.change
    assert "hidden.split(1024)" in finding.change


def test_a_loss_in_another_type_holds_a_copy() -> None:
    """bfloat16 logits, a float32 loss: 0.5 + 1 + 1 GiB."""
    logits = [8192, 32768]
    half = ("c10::BFloat16", "Scalar", "Scalar")
    ops = [
        site("aten::log_softmax", (logits, [], []), 5, concrete=("", "1", "15"), types=half),
        site("aten::_log_softmax_backward_data", (logits, logits, [], []), 5, phase="backward"),
        site("aten::nll_loss_backward", ([], logits, [8192]), 5, types=("float", "float", "long")),
        site("aten::_to_copy", (logits, []), 4),
    ]
    (finding,) = look(case(*ops, peak=4 * GIB))
    assert finding.memory_pct == pytest.approx(100 * 2.5 * (7 / 8) / 4, abs=0.01)
    assert finding.share_pct == 0
    assert finding.confidence == "medium"
    assert any("4 ms" in one.text for one in finding.evidence)
    assert any(one.text == "8,192 × 32,768, bfloat16" for one in finding.evidence)
    assert not any("c10" in one.text for one in finding.evidence)


def test_what_it_costs_in_time_is_said() -> None:
    head = site("aten::mm", ([8192, 512], [512, 32768]), 7)
    (finding,) = look(case(*loss(), head, source=SOURCE, peak=4 * GIB))
    assert "the step becomes longer" in finding.doubt
    assert any(one.text == "7 ms a step for the head's product alone" for one in finding.evidence)


def test_a_loss_in_parts_is_left_alone() -> None:
    assert not [*look(case(*loss(positions=1024), peak=GIB))]


def test_classes_of_images_and_a_large_peak_are_left_alone() -> None:
    assert not [*look(case(*loss(positions=500_000, words=1000), peak=4 * GIB))]
    assert not [*look(case(*loss(), peak=40 * GIB))]


def test_a_trace_of_a_processor_has_its_own_peak() -> None:
    ops = [site(s.op, s.dims, 5, gpu=False, concrete=s.concrete) for s in loss()]
    made = case(*ops, gpu=False)
    assert made.study is not None
    curve = MemoryCurve(device="cpu", points=(), peak_bytes=4 * GIB, peak_ns=0)
    study = msgspec.structs.replace(made.study, memory=(curve,))
    (finding,) = look(msgspec.structs.replace(made, study=study))
    assert finding.memory_pct == pytest.approx(100 * 3 * (31 / 32) / 4, abs=0.01)
    assert "from its own beginning" in finding.doubt


def test_without_a_backward_or_a_peak_nothing_is_known() -> None:
    assert not [*look(case(loss()[0], peak=4 * GIB))]
    assert not [*look(case(*loss()))]
