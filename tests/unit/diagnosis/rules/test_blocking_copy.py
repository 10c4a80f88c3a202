"""Pinned copies that nothing runs beside."""

import ast

import pytest

from ridgeline.diagnosis.rules.copies import BLOCKING_COPY as RULE
from ridgeline.diagnosis.rules.copies import blocking_copy as look
from ridgeline.source.transfers import AHEAD
from tests.unit.diagnosis.rules.made_up_waits import case, copy, held

LOOP = """\
def main():
    for step in range(steps):
        inputs = ready[step % 4].to(device)
        loss = model(inputs)
"""


def test_a_pinned_copy_that_is_waited_for_is_named() -> None:
    (finding,) = look(case(LOOP, waits=(held(),), copies=(copy(1.5, pageable=False),), busy=0.9))
    assert finding.line == 3
    assert "moves 36.7 MiB a step while nothing else runs, and is waited for" in finding.claim
    assert finding.share_pct == pytest.approx(16.0)
    assert finding.confidence == "high"
    assert "return ready[step % 4].to(device, non_blocking=True)" in finding.change
    assert "following = sent(step + 1) if step + 1 < steps else None" in finding.change
    assert "inputs.record_stream(torch.cuda.current_stream())" in finding.change
    ast.parse(finding.change)


def test_a_copy_can_be_hidden_only_behind_as_much_work() -> None:
    """A step that copies 5.6 of 6 ms: overlapping gains what is computed, no more."""
    made = case(LOOP, copies=(copy(9.2, pageable=False),), busy=0.95)
    (finding,) = look(made)
    assert finding.share_pct == pytest.approx(3.0)
    assert finding.confidence == "medium"


def test_a_copy_beside_the_kernels_stream_counts_only_where_it_is_waited_for() -> None:
    ahead = copy(1.5, pageable=False, beside=True, path_ns=0.0)
    assert not list(look(case(LOOP, copies=(ahead,), busy=0.9)))


def test_where_the_host_is_late_an_uncovered_copy_is_no_cause() -> None:
    late = copy(1.5, pageable=False, path_ns=0.0)
    assert not list(look(case(LOOP, copies=(late,), busy=0.4)))


def test_pageable_copies_are_not_its() -> None:
    assert not list(look(case(LOOP, waits=(held(),), copies=(copy(),))))


def test_a_loop_over_batches_goes_over_batches_sent_ahead() -> None:
    text = """\
def main():
    for step, (images, labels) in enumerate(loader):
        images = images.to(device)
"""
    (finding,) = look(case(text, waits=(held(),), copies=(copy(1.5, pageable=False),), busy=0.9))
    assert "for step, (images, labels) in enumerate(ahead(loader)):" in finding.change
    assert "part.record_stream(" in finding.change
    ast.parse(finding.change)


def test_the_page_shows_the_function_the_change_writes() -> None:
    assert AHEAD in RULE.text.fix
