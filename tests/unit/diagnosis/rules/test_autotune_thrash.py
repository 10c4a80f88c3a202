from typing import Any

import pytest

from ridgeline.diagnosis.case import Case
from ridgeline.diagnosis.rules.convolutions import autotune_thrash as look
from ridgeline.records.run import Flags
from ridgeline.records.sites import OpSite, SiteKernel
from tests.unit.diagnosis.rules.made_up_kernels import MS, STEPS, case, place, site

SOURCE = """\
def main():
    torch.backends.cudnn.benchmark = True
    model = Net()
    for x in data:
        model(x)
"""
ON = Flags(cudnn_benchmark=True)


def convolution(size: int, host_ms: float = 60, steps: int = 1, **changed: Any) -> OpSite:
    """Called once in this many of the three traced steps, each time so long on the host."""
    dims = ([8, 64, size, size], [64, 64, 3, 3])
    given: dict[str, Any] = {
        "calls": steps / STEPS, "host_ns": host_ms * MS * steps / STEPS, "place": place(9),
    }  # fmt: skip
    return site("aten::cudnn_convolution", dims, 1, **{**given, **changed})


def made(*sites: OpSite, flags: Flags | None = ON) -> Case:
    return case(*sites, source=SOURCE, flags=flags, called_at="net.py:5" if flags else "")


def test_trials_at_every_step_are_charged() -> None:
    (finding,) = look(made(*[convolution(size) for size in (96, 100, 104)]))
    assert finding.share_pct == pytest.approx(60, abs=0.5)
    assert (finding.line, finding.confidence) == (2, "high")
    assert finding.change == "torch.backends.cudnn.benchmark = False"


def test_sizes_that_repeat_are_left_alone() -> None:
    assert not [*look(made(convolution(96, steps=3)))]
    assert not [*look(made(convolution(96, steps=2), convolution(97, steps=2, host_ms=0.05)))]


def test_quick_calls_are_only_launches() -> None:
    assert not [*look(made(*[convolution(size, host_ms=0.05) for size in (96, 100, 104)]))]


def test_where_it_is_off_new_sizes_are_no_fault_of_it() -> None:
    off = Flags(cudnn_benchmark=False)
    assert not [*look(made(*[convolution(size) for size in (96, 100, 104)], flags=off))]


def test_in_a_trace_alone_tried_kernels_must_show() -> None:
    sizes = (96, 100, 104)
    assert not [*look(made(*[convolution(size) for size in sizes], flags=None))]
    tried = tuple(SiteKernel(name=f"try{i}", count=1, ns=1) for i in range(3))
    (finding,) = look(made(*[convolution(s, kernels=tried) for s in sizes], flags=None))
    assert (finding.confidence, finding.line) == ("low", 9)
