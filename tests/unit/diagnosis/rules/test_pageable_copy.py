"""Copies from memory that is not pinned."""

import pytest
from msgspec.structs import replace

from ridgeline.diagnosis.rule import with_tolerance
from ridgeline.diagnosis.rules.copies import pageable_copy as look
from ridgeline.records.run import LoaderSeen
from tests.unit.diagnosis.rules.made_up_waits import MS, TO, case, copy, held, wait

LOOP = """\
def main():
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        loss = model(images)
"""


def test_a_pageable_batch_is_named_with_its_line_and_the_loaders_setting() -> None:
    (finding,) = look(case(LOOP, waits=(held(),), copies=(copy(),), loader=True, busy=0.8))
    assert finding.line == 3
    assert finding.claim.startswith("`images.to(device)` moves 36.7 MiB a step from memory that")
    assert finding.share_pct == pytest.approx(31.0)
    assert finding.gain_bound == pytest.approx(with_tolerance(1 / 0.69), abs=0.002)
    assert finding.confidence == "high"
    assert any("pin_memory=False" in one.text for one in finding.evidence)
    assert "images.to(device, non_blocking=True), labels.to(device, non_blocking=True)" in (
        finding.change
    )


def test_what_pinned_copies_need_beyond_the_steps_own_work_is_not_promised() -> None:
    """308 MB in a step of 10 ms: 4.8 ms at the bus's full rate, hidden behind 0.5 ms of work."""
    large = copy(9.0, bytes=308e6)
    (finding,) = look(case(LOOP, waits=(held(host_ms=9.1),), copies=(large,), busy=0.95))
    assert finding.share_pct == pytest.approx(100 * (0.91 - (0.48125 - 0.05)), abs=0.1)


def test_host_and_device_time_of_one_copy_are_not_gained_twice() -> None:
    launching = wait(3.0, ops=TO, via=("to",), direction="to device", host_ns=3.2 * MS)
    (finding,) = look(case(LOOP, waits=(launching,), copies=(copy(3.0),), busy=0.5))
    assert finding.share_pct == pytest.approx(32.0)


def test_pinned_copies_and_small_ones_are_silent() -> None:
    assert not list(look(case(LOOP, copies=(copy(pageable=False),))))
    assert not list(look(case(LOOP, waits=(held(0.0),), copies=(copy(0.05),))))


def test_a_line_that_does_not_wait_under_an_unpinned_loader_is_the_loaders_fault() -> None:
    text = LOOP.replace(".to(device)", ".to(device, non_blocking=True)")
    assert not list(look(case(text, waits=(held(),), copies=(copy(),), loader=True)))
    assert list(look(case(text, waits=(held(),), copies=(copy(),))))


def test_copies_of_one_function_are_shared_out_to_its_lines_in_their_order() -> None:
    text = """\
def main():
    for batch in loader:
        labels = batch[1].to(device)
        images = batch[0].to(device)
"""
    small = copy(0.001, dims=(64,), bytes=512.0, offset_ns=10)
    (finding,) = look(case(text, waits=(held(),), copies=(copy(offset_ns=99), small)))
    assert finding.line == 4


def test_a_copy_made_inside_a_library_is_placed_at_the_line_that_calls_it() -> None:
    text = (
        "def main():\n    for batch in loader:\n        x.to(device)\n        moved = send(batch)\n"
    )
    via = ("accelerate/utils.py:send", "to")
    (finding,) = look(case(text, waits=(held(via=via),), copies=(copy(via=via),)))
    assert finding.line == 4


def test_a_loader_that_pins_is_no_evidence_and_a_trace_alone_has_no_place() -> None:
    made = case(LOOP, waits=(held(place=None),), copies=(copy(place=None),), loader=True)
    assert made.capture is not None
    pinned = replace(made.capture, loaders=(LoaderSeen(batches=9, pin_memory=True),))
    (finding,) = look(replace(made, capture=pinned))
    assert (finding.line, finding.confidence) == (None, "low")


def test_pinning_is_assigned_where_no_loader_is_known() -> None:
    (finding,) = look(case(LOOP, waits=(held(),), copies=(copy(),)))
    assert finding.change.startswith("images = images.pin_memory()  # once")


def test_few_bytes_are_told_as_a_wait_and_need_no_pinning() -> None:
    small = copy(0.002, bytes=5616.0, copies=2.0)
    waited = held(1.0, host_ms=1.1, bytes=5616.0)
    (finding,) = look(case(LOOP, waits=(waited,), copies=(small,)))
    assert finding.claim == (
        "`images.to(device)` copies to the GPU (5.48 KiB a step), and the host waits for all that "
        "was queued before: 10 % of the step"
    )
    assert "pin_memory" not in finding.change
    assert any(one.what == "host held" for one in finding.evidence)


def test_an_index_on_the_host_is_no_line_that_copies() -> None:
    ops = ("aten::index", *TO)
    small = copy(0.002, bytes=5616.0, copies=2.0, op="aten::index", via=())
    waited = held(1.0, host_ms=1.1, ops=ops, via=())
    (finding,) = look(case(LOOP, waits=(waited,), copies=(small,)))
    assert finding.claim.startswith("An index on the host is copied to the GPU at each use")
    assert finding.change.startswith("index = index.to(device)")
    assert finding.gain_bound == pytest.approx(
        with_tolerance(1 / (1 - finding.share_pct / 100)), abs=0.01
    )


def test_numbers_made_on_the_device_are_made_in_pinned_memory() -> None:
    text = "def main():\n    for x in data:\n        y = torch.tensor(x, device=device)\n"
    via = ("tensor",)
    (finding,) = look(case(text, waits=(held(via=via),), copies=(copy(via=via),)))
    assert finding.change == "torch.tensor(x).pin_memory().to(device, non_blocking=True)"
