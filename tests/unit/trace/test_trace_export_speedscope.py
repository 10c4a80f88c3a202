"""A trace opened in speedscope shows the same spans."""

import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.records.trace import TraceStudy
from ridgeline.trace.exports import speedscope as module
from ridgeline.trace.exports.speedscope import speedscope
from ridgeline.trace.study import study
from tests.unit.trace.traces_made import HOST, WORKER, Made


def made(folder: Path, trace: Made) -> dict[str, Any]:
    path = trace.write(folder)
    found: TraceStudy
    found, traces = study([path], cache=False)
    document = speedscope(traces[0], found)
    json.dumps(document)
    return document


def spans(document: dict[str, Any], profile: dict[str, Any]) -> list[tuple[str, int, int]]:
    """As speedscope reads them; fails where events are out of order or not nested."""
    names = [frame["name"] for frame in document["shared"]["frames"]]
    stack: list[tuple[int, int]] = []
    found, last = [], 0
    for event in profile["events"]:
        assert event["at"] >= last
        last = event["at"]
        if event["type"] == "O":
            stack.append((event["frame"], event["at"]))
        else:
            frame, start = stack.pop()
            assert frame == event["frame"]
            found.append((names[frame], start, event["at"]))
    assert stack == []
    assert profile["startValue"] <= profile["events"][0]["at"]
    assert last <= profile["endValue"]
    return found


def simple() -> Made:
    return (
        Made()
        .frame("train.py(63): step", 1_700_000_000_000_000, 100)
        .op("aten::add", 1_700_000_000_000_010, 20)
        .launch("k", 1_700_000_000_000_012, 1_700_000_000_000_030, 7, 1)
        .op("aten::mul", 1_700_000_000_000_005, 3, tid=WORKER)
    )


def test_a_profile_a_thread_and_a_stream(tmp_path: Path) -> None:
    document = made(tmp_path, simple())
    assert document["$schema"] == "https://www.speedscope.app/file-format-schema.json"
    by_size = {len(p["events"]) // 2: p for p in document["profiles"]}
    assert sorted(len(p["events"]) for p in document["profiles"]) == [2, 2, 6]
    host = spans(document, by_size[3])
    assert host == [
        ("cudaLaunchKernel", 12_000, 17_000),
        ("aten::add", 10_000, 30_000),
        ("train.py(63): step", 0, 100_000),
    ]
    assert {p["unit"] for p in document["profiles"]} == {"nanoseconds"}
    assert any("device 0 stream 7" in p["name"] for p in document["profiles"])


def test_a_python_function_carries_its_file_and_line(tmp_path: Path) -> None:
    frames = made(tmp_path, simple())["shared"]["frames"]
    frame = next(f for f in frames if f["name"].startswith("train.py"))
    assert (frame["file"], frame["line"]) == ("train.py", 63)


def test_a_span_that_outlives_its_parent_ends_with_it(tmp_path: Path) -> None:
    document = made(tmp_path, Made().op("outer", 0, 10).op("inner", 5, 10, tid=HOST))
    (profile,) = document["profiles"]
    assert spans(document, profile) == [("inner", 5_000, 10_000), ("outer", 0, 10_000)]


def test_a_row_is_bounded_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SPANS", 3)
    trace = Made()
    for i in range(10):
        trace.op(f"op{i}", 100 * i, i + 1)
    document = made(tmp_path, trace)
    (profile,) = document["profiles"]
    assert [name for name, _, _ in spans(document, profile)] == ["op7", "op8", "op9"]
    assert "without its 7 shortest spans" in profile["name"]


def test_a_trace_without_spans_is_an_empty_file(tmp_path: Path) -> None:
    assert made(tmp_path, Made())["profiles"] == []
