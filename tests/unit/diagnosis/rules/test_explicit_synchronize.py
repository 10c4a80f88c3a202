"""Waits the program asks for in so many words."""

import pytest

from ridgeline.diagnosis.rules.host_waits import explicit_synchronize as look
from tests.unit.diagnosis.rules.made_up_waits import at, case, wait

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
    assert finding.change == "# take out: torch.cuda.synchronize()"


def test_without_stacks_the_calls_name_is_enough_for_device_and_event() -> None:
    event = wait(1.0, ops=(), call="cudaEventSynchronize", via=(), direction="", place=None)
    (finding,) = look(case(waits=(event,)))
    assert finding.confidence == "low"
    stream = wait(1.0, ops=(), call="cudaStreamSynchronize", via=(), direction="", place=None)
    assert not list(look(case(waits=(stream,))))


def test_a_wait_within_an_operator_is_not_its() -> None:
    assert not list(look(case(TIMED, waits=(wait(2.0),))))


def test_what_was_timed_lies_between_the_events() -> None:
    text = TIMED.replace("        y =", "        began = time.perf_counter()\n        y =")
    (finding,) = look(case(text, waits=(ASKED,)))
    lines = finding.change.splitlines()
    began, ended = lines.index("began.record()"), lines.index("ended.record()")
    assert ended == began + 2
    assert lines[began + 1].startswith("...")


def test_a_program_that_uses_events_is_told_to_read_them_later() -> None:
    event = wait(1.0, ops=(), call="cudaEventSynchronize", via=(), direction="", place=None)
    (finding,) = look(case(waits=(event,)))
    assert "enable_timing" not in finding.change
    assert "once, after the loop" in finding.change
