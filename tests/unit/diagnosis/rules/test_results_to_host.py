"""Large results copied to the host."""

import pytest

from ridgeline.diagnosis.rules.host_waits import results_to_host as look
from tests.unit.diagnosis.rules.made_up_waits import MS, TO, case, copy, wait

LOOP = """\
def main():
    for x in data:
        outputs = model(x)
        kept = outputs.detach().cpu()
"""
PULLED = wait(0.5, ops=TO, via=("cpu",), times=1.0, waits=1.0, bytes=16 * 2**20, device_ns=2 * MS)


def test_outputs_pulled_each_step_are_named_with_their_bytes_and_line() -> None:
    (finding,) = look(case(LOOP, waits=(PULLED,)))
    assert finding.line == 4
    assert finding.claim == (
        "`outputs.detach().cpu()` fetches 16 MiB to the host once a step, and the GPU waits"
    )
    assert finding.share_pct == pytest.approx(25.0)
    assert finding.change.startswith("kept = outputs.detach()  # stays on the device")


def test_a_copy_nobody_waits_for_counts_where_the_step_hangs_on_it() -> None:
    beside = copy(1.0, direction="to host", pageable=False, via=("copy_",))
    (finding,) = look(case(LOOP, copies=(beside,)))
    assert finding.share_pct == pytest.approx(10.0)
    hidden = copy(1.0, direction="to host", pageable=False, path_ns=0.0)
    assert not list(look(case(LOOP, copies=(hidden,))))


def test_small_copies_are_host_copy_syncs() -> None:
    assert not list(look(case(LOOP, waits=(wait(2.0, ops=TO, via=("cpu",)),))))


def test_a_list_of_them_is_copied_without_waiting_not_kept_on_the_device() -> None:
    text = "def main():\n    for x in data:\n        kept.append(model(x).cpu())\n"
    (finding,) = look(case(text, waits=(PULLED,)))
    assert finding.change.startswith("values = model(x).detach()  #")
    assert "host.copy_(values, non_blocking=True)" in finding.change
    assert "copied.synchronize()" in finding.change
