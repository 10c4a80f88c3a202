"""What analyses share is computed once for a trace and its arguments."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ridgeline.trace.trace import Trace, once_per_trace
from tests.unit.trace.traces_made import Made

CALLS: list[str] = []


@once_per_trace
def _counted(trace: Trace, name: str, rows: NDArray[np.int64] | None = None) -> list[str]:
    CALLS.append(name)
    return [name]


def _trace(folder: Path) -> Trace:
    return Made().op("aten::mm", 0, 10).trace(folder)


def test_a_result_is_kept_for_the_same_trace_and_arguments(tmp_path: Path) -> None:
    CALLS.clear()
    trace = _trace(tmp_path)
    assert _counted(trace, "a") is _counted(trace, "a")
    _counted(trace, "b")
    _counted(_trace(tmp_path), "a")
    assert CALLS == ["a", "b", "a"]


def test_an_array_is_the_same_argument_only_if_it_is_the_same_object(tmp_path: Path) -> None:
    CALLS.clear()
    trace, rows = _trace(tmp_path), np.arange(3)
    assert _counted(trace, "a", rows) is _counted(trace, "a", rows)
    _counted(trace, "a", np.arange(3))
    assert CALLS == ["a", "a"]


def test_named_and_unnamed_arguments_are_told_apart(tmp_path: Path) -> None:
    CALLS.clear()
    trace = _trace(tmp_path)
    assert _counted(trace, name="a") == ["a"]
    assert _counted(trace, "b") == ["b"]
    assert CALLS == ["a", "b"]
