"""Small copies to the host that are waited for."""

import pytest

from ridgeline.diagnose.rules.host_copy_sync import look
from tests.unit.diagnose.rules.made_up_waits import TO, case, wait

LOOP = """\
def main():
    history = []
    for x in data:
        for layer in layers:
            history.append(layer.peaks.cpu())
"""
SMALL = wait(1.0, ops=TO, via=("cpu",), bytes=20 * 4096)


def test_a_small_copy_is_named_with_its_line_size_and_count() -> None:
    (finding,) = look(case(LOOP, waits=(SMALL,)))
    assert finding.claim == (
        "`layer.peaks.cpu()` fetches 4 KiB to the host and waits for it, 20 times a step"
    )
    assert finding.line == 5
    assert finding.share_pct == pytest.approx(10.0)
    assert "history.append(layer.peaks.detach())" in finding.change


def test_large_copies_and_copies_to_the_device_are_not_its() -> None:
    large = wait(1.0, ops=TO, via=("cpu",), bytes=20 * 2**20)
    sent = wait(1.0, ops=TO, via=("to",), direction="to device")
    assert not list(look(case(LOOP, waits=(large, sent))))


def test_of_several_ways_to_ask_the_one_seen_is_taken() -> None:
    text = LOOP + "            names = layer.ids.tolist()\n"
    (finding,) = look(case(text, waits=(wait(1.0, ops=TO, via=("tolist",)),)))
    assert finding.line == 6


def test_under_one_percent_it_is_silent() -> None:
    assert not list(look(case(LOOP, waits=(wait(0.09, ops=TO, via=("cpu",)),))))
