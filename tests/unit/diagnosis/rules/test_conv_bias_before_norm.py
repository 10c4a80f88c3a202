import pytest

from ridgeline.diagnosis.rules.convolutions import conv_bias_before_norm as look
from ridgeline.records.sites import NormedConv, Sites
from tests.unit.diagnosis.rules.made_up_kernels import MS, case, place

SOURCE = """\
class Head(nn.Module):
    def __init__(self):
        self.out = nn.Conv2d(8, 1, 1)

class Block(nn.Module):
    def __init__(self):
        self.first = nn.Conv2d(8, 8, 1, bias=False)
        self.conv = nn.Conv2d(8, 8, 3,
                              padding=1)
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x):
        return self.norm(self.conv(self.first(x)))
"""


def normed(ms: float = 10, exposed: float = 10) -> Sites:
    one = NormedConv(
        place=place(12), module="Net_0 / Block_0 / Conv2d_1", calls=4.0,
        add_ns=0.6 * ms * MS, gradient_ns=0.4 * ms * MS, exposed_ns=exposed * MS,
    )  # fmt: skip
    return Sites(normed=(one,), steps=3)


def test_the_bias_of_the_module_that_was_measured_is_named() -> None:
    (finding,) = look(case(source=SOURCE, sites=normed()))
    assert finding.share_pct == pytest.approx(10)
    assert finding.line == 8
    assert finding.change.endswith("padding=1, bias=False)")
    assert finding.change.startswith("self.conv = nn.Conv2d(8, 8, 3")
    assert finding.claim.startswith("4 convolutions a step")
    assert finding.confidence == "high"


def test_without_source_the_place_is_the_measured_one() -> None:
    (finding,) = look(case(sites=normed()))
    assert (finding.line, finding.confidence) == (12, "medium")


def test_a_cheap_bias_is_not_worth_a_word() -> None:
    assert not [*look(case(source=SOURCE, sites=normed(ms=0.9)))]
    assert not [*look(case(source=SOURCE, sites=Sites()))]
