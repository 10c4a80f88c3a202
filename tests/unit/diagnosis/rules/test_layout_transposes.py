import msgspec
import pytest

from ridgeline.diagnosis.rule import with_tolerance
from ridgeline.diagnosis.rules.convolutions import layout_transposes as look
from ridgeline.records.run import Flags
from ridgeline.records.sites import OpSite, SiteKernel
from ridgeline.records.trace import KernelRow
from tests.unit.diagnosis.rules.made_up_kernels import MS, STEPS, case, place, site

SOURCE = """\
def main():
    model = Net()
    model = model.to(device)
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
"""
IMAGE, WEIGHT = [64, 128, 56, 56], [128, 128, 3, 3]


def turning(ms: float, name: str = "nchwToNhwcKernel", op: str = "aten::cudnn_convolution"
            ) -> KernelRow:  # fmt: skip
    full = f"void cudnn::engines_precompiled::{name}<__nv_bfloat16, float>(int)"
    return KernelRow(name=full, category="convolution", count=24 * STEPS, op=op, share=0.1,
                     total_ns=round(ms * MS * STEPS), mean_ns=0, least_ns=0, most_ns=0)  # fmt: skip


def convolution(ms: float = 40, flops: float = 0.0) -> OpSite:
    return site("aten::cudnn_convolution", (IMAGE, WEIGHT), ms, flops=flops, dtype="bfloat16",
                place=place(9))  # fmt: skip


def test_turning_kernels_are_charged_and_the_move_is_rewritten() -> None:
    rows = (turning(6), turning(4, "nhwcToNchwKernel"))
    (finding,) = look(
        case(convolution(), kernels=rows, source=SOURCE, flags=Flags(), called_at="net.py:5")
    )
    assert finding.share_pct == pytest.approx(10)
    assert (finding.line, finding.function, finding.confidence) == (3, "main", "high")
    assert finding.fix == "channels-last"
    assert "# net.py, after line 3\nmodel.to(memory_format=torch.channels_last)" in finding.change
    assert "48 times a step" in finding.claim


def test_the_bound_has_room_for_faster_kernels() -> None:
    """40 ms of which 10 turn: 9.6 TFLOP need 12 ms, 18 more may go."""
    (finding,) = look(case(convolution(flops=9.6e12), kernels=(turning(10),)))
    assert finding.gain_bound == pytest.approx(with_tolerance(1 / (1 - 0.28)), abs=0.01)
    assert (finding.line, finding.confidence) == (9, "medium")


def test_convolutions_that_turn_have_the_fast_kernels_already() -> None:
    row = turning(10)
    turns = SiteKernel(name=row.name, count=24, ns=10 * MS)
    made = msgspec.structs.replace(convolution(flops=9.6e12), kernels=(turns,))
    (finding,) = look(case(made, kernels=(row,)))
    assert finding.gain_bound == pytest.approx(with_tolerance(1 / (1 - 0.1)), abs=0.01)


def norm(ms: float, kernel: str = "batch_norm_backward_kernel") -> OpSite:
    """4 GB need 1 ms."""
    return site("aten::native_batch_norm_backward", (IMAGE, IMAGE), ms, bytes=4e9,
                kernels=(SiteKernel(name=kernel, count=1, ns=ms * MS),))  # fmt: skip


def test_slow_norms_over_the_same_layout_are_charged_too() -> None:
    (finding,) = look(case(convolution(flops=24e12), norm(24), kernels=(turning(10),)))
    assert finding.share_pct == pytest.approx(10 + 21)
    assert finding.gain_bound == pytest.approx(with_tolerance(1 / (1 - 0.31)), abs=0.01)
    assert finding.claim.endswith("10 ms, and batch norms take 21 ms more over NCHW")
    last = norm(24, "batch_norm_backward_reduce_channels_last_kernel")
    (other,) = look(case(convolution(), last, kernels=(turning(10),)))
    assert other.share_pct == pytest.approx(10)


def test_other_transposes_are_not_the_convolutions() -> None:
    assert not [*look(case(convolution(), kernels=(turning(10, op="aten::copy_"),)))]
    assert not [*look(case(convolution(), kernels=(turning(10, "bn_fw_tr_NCHW"),)))]


def test_a_few_of_them_are_not_worth_a_word() -> None:
    assert not [*look(case(convolution(), kernels=(turning(0.9),)))]
