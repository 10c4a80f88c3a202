"""The middle of a long trace: its steps, and all that reaches into them."""

from pathlib import Path

import pytest
from traces_made import Made

from ridgeline.trace import window
from ridgeline.trace.links import links_of
from ridgeline.trace.reading.reader import parse
from ridgeline.trace.study import study_one
from ridgeline.trace.trace import Trace


def long(folder: Path, steps: int) -> Trace:
    made = Made()
    made.frame("train.py(7): main", 0, 1000 * steps)
    for i in range(steps):
        t = 1000.0 * i
        made.span(f"ProfilerStep#{i + 3}", t, 1000)
        made.op("aten::mm", t + 100, 50)
        made.launch("gemm", t + 110, t + 200, 700, i + 1)
    return parse(made.write(folder, "long.json"))


def test_a_short_trace_is_not_cut(tmp_path: Path) -> None:
    assert window.middle_part(long(tmp_path, 30)) is None


def test_the_middle_steps_are_a_trace_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(window, "MAX_EVENTS", 10)
    whole = long(tmp_path, 31)
    cut = window.middle_part(whole)
    assert cut is not None
    within, chosen = cut
    assert chosen == "16-20"  # five, counted from 3
    assert len(within.device) == 7  # with one step on either side
    assert len(within.frames) == 1  # main began long before
    study = study_one(within, links_of(within), chosen)
    assert study.window.steps == 5
    assert study.window.ns == 5_000_000
    assert study.devices[0].busy_ns == 5 * 700_000


def test_too_few_marks_to_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "MAX_EVENTS", 10)
    assert window.middle_part(long(tmp_path, 6)) is None
    assert window.middle_part(parse(Made().op("aten::mm", 0, 5).write(tmp_path, "a.json"))) is None


def test_links_are_found_once_for_a_trace(tmp_path: Path) -> None:
    trace = long(tmp_path, 3)
    assert links_of(trace) is links_of(trace)
