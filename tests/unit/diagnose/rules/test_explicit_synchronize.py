"""Waits the program asks for in so many words."""

import pytest

from ridgeline.diagnose.rules.explicit_synchronize import look
from tests.unit.diagnose.rules.made_up_waits import at, case, wait

TIMED = """\
class Timed(nn.Module):
    def forward(self, x):
        y = self.inner(x)
        torch.cuda.synchronize()
        return y
"""
VIA = ("torch/cuda/__init__.py:synchronize", "_cuda_synchronize")
ASKED = wait(1.5, ops=(), call="cudaDeviceSynchronize", via=VIA, direction="", bytes=0.0,
             place=at(2, "forward"))  # fmt: skip


def test_a_synchronisation_left_in_is_named_with_its_line() -> None:
    (finding,) = look(case(TIMED, waits=(ASKED,)))
    assert finding.line == 4
    assert finding.claim == (
        "`torch.cuda.synchronize()` makes the host wait for the GPU 20 times a step"
    )
    assert finding.share_pct == pytest.approx(15.0)
    assert "elapsed_time" in finding.change


def test_without_stacks_the_calls_name_is_enough_for_device_and_event() -> None:
    event = wait(1.0, ops=(), call="cudaEventSynchronize", via=(), direction="", place=None)
    (finding,) = look(case(waits=(event,)))
    assert finding.confidence == "low"
    stream = wait(1.0, ops=(), call="cudaStreamSynchronize", via=(), direction="", place=None)
    assert not list(look(case(waits=(stream,))))


def test_a_wait_within_an_operator_is_not_its() -> None:
    assert not list(look(case(TIMED, waits=(wait(2.0),))))
