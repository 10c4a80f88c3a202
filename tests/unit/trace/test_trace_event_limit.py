"""The limit of events: as many as memory has room for, or as many as the user allows."""

import json
from pathlib import Path

import pytest
from decoders import GOOD, Parse
from traces_made import steady

from ridgeline.errors import RidgelineError
from ridgeline.machine import processor
from ridgeline.trace.reading import cache, reader
from ridgeline.trace.study import open_trace, study


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    return steady().write(tmp_path)


def test_a_trace_beyond_the_limit_that_was_asked_for_is_refused(path: Path) -> None:
    events = reader.parse(path).origin.events
    assert open_trace(path, False, events).trace.origin.events == events
    with pytest.raises(RidgelineError, match="max-events"):
        study([path], cache=False, max_events=events - 1)


def test_by_default_the_free_memory_is_the_limit(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events = reader.parse(path).origin.events
    monkeypatch.setattr(reader, "ALWAYS_READ_EVENTS", 100)
    needed = events * reader.BYTES_PER_EVENT / reader.MAX_MEMORY_SHARE
    monkeypatch.setattr(processor, "free_bytes", lambda: int(needed) + 1)
    assert open_trace(path, False).trace.origin.events == events
    monkeypatch.setattr(processor, "free_bytes", lambda: int(needed / 2))
    with pytest.raises(RidgelineError) as error:
        open_trace(path, False)
    assert error.value.exit_code == 4
    assert open_trace(path, False, events).trace.origin.events == events


def test_the_limit_holds_for_a_trace_in_the_cache_too(path: Path) -> None:
    cache.store(reader.parse(path), path)
    assert open_trace(path).trace.origin.from_cache
    with pytest.raises(RidgelineError):
        open_trace(path, max_events=10)


def test_names_of_threads_are_bounded(parse: Parse, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "MAX_NAMES", 3)
    names = [
        {"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": f"t{i}"}}
        for i in range(7, 12)
    ]
    trace = parse(json.dumps({"traceEvents": [GOOD, *names]}).encode())
    assert trace.origin.events == 6
    assert trace.lanes[0].thread == "t7"
    assert [loss.count for loss in trace.origin.losses] == [2]
