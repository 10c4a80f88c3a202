"""Small copies to the host that are waited for."""

import pytest

from ridgeline.diagnosis.rules.host_waits import host_copy_sync as look
from tests.unit.diagnosis.rules.made_up_waits import TO, at, case, wait

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
    assert finding.change.splitlines() == [
        "history.append(layer.peaks.detach().clone())  # stays on the device",
        "history = [one.cpu() for one in history]  # once, after the loop",
    ]


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


def test_an_assignment_keeps_its_name_and_is_detached_once() -> None:
    text = "class M:\n    def forward(self, x):\n        self.peaks = x.detach().amax(0).cpu()\n"
    (finding,) = look(case(text, waits=(wait(1.0, ops=TO, via=("cpu",), place=at(2)),)))
    assert finding.change.startswith("self.peaks = x.detach().amax(0)  #")
    assert finding.change.endswith("self.peaks.cpu()")


def test_a_chain_to_numpy_is_one_reading() -> None:
    text = "def main():\n    for x in data:\n        a = net(x).cpu().numpy()\n"
    (finding,) = look(case(text, waits=(wait(1.0, ops=TO, via=("cpu",)),)))
    assert finding.change.startswith("a = net(x).detach()  #")
    assert finding.change.endswith("a.cpu().numpy()")


def test_every_name_in_the_generic_change_is_set_there() -> None:
    (finding,) = look(case(waits=(SMALL,)))
    assert finding.change.startswith("history = []")
