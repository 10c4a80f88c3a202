"""The marked copy of a trace is the trace, and opens whatever state the original is in."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.records.facts import Check
from ridgeline.records.finding import Finding
from ridgeline.records.trace import Gap, Idle, Place, TraceStudy, Window
from ridgeline.trace.exports.perfetto import annotate, mark
from ridgeline.trace.study import study
from tests.unit.trace.traces_made import Made

EPOCH_US = 1_700_000_000_000_000


def made_study(*gaps: Gap) -> TraceStudy:
    window = Window(start_ns=EPOCH_US * 1000, end_ns=EPOCH_US * 1000 + 10**6, basis="made up")
    checks = (Check(id="x", severity="warning", claim='odd "name"\n', affects=("idle",)),)
    return TraceStudy(files=("x",), events=1, label="x", window=window,
                      idle=Idle(top=gaps), validation=checks)  # fmt: skip


def gap(start_ns: int = EPOCH_US * 1000 + 123, device: int = 0) -> Gap:
    return Gap(device=device, start_ns=start_ns, dur_ns=4567, cause="input", before="k1",
               after="k2 \x1b\ud800", host="next", place=Place(file="d.py", line=41))  # fmt: skip


def source() -> Made:
    trace = Made(distributedInfo={"rank": 3})
    for i in range(5):
        trace.launch(f"k{i}", EPOCH_US + 100 * i, EPOCH_US + 100 * i + 20, 10, i + 1)
    return trace


def copied(path: Path, *gaps: Gap, out: str = "o.perfetto.json") -> dict[str, Any]:
    target = path.parent / out
    annotate(path, made_study(*gaps), target, headline="idle")
    data = target.read_bytes()
    found = json.loads(gzip.decompress(data) if out.endswith(".gz") else data)
    assert isinstance(found, dict)
    return found


def theirs(document: dict[str, Any]) -> list[Any]:
    return [e for e in document["traceEvents"] if e.get("pid") != "ridgeline"]


def ours(document: dict[str, Any], ph: str) -> list[Any]:
    events = document["traceEvents"]
    return [e for e in events if e.get("pid") == "ridgeline" and e["ph"] == ph]


@pytest.mark.parametrize("out", ["o.perfetto.json", "o.perfetto.json.gz"])
@pytest.mark.parametrize("name", ["made.json", "made.json.gz"])
def test_the_copy_is_the_trace_and_our_track(tmp_path: Path, name: str, out: str) -> None:
    trace = source()
    document = copied(trace.write(tmp_path, name), gap(), out=out)
    assert theirs(document) == trace.document()["traceEvents"]
    assert document["distributedInfo"] == {"rank": 3}
    assert document["traceName"] == "made.json"
    (span,) = ours(document, "X")
    assert span["name"] == "idle: input"
    assert span["tid"] == "idle causes (device 0)"
    assert span["args"]["place"] == "d.py:41"
    assert (span["args"]["before"], span["dur"]) == ("k1", 4.567)
    names = [e["args"]["name"] for e in ours(document, "M") if e["name"] == "thread_name"]
    assert names == ["findings", "steps", "idle causes (device 0)"]
    findings = [e["name"] for e in ours(document, "i")]
    assert findings == ["idle", 'warning: odd "name"\n']


def test_what_holds_it_back_stands_on_the_findings_row(tmp_path: Path) -> None:
    path, out = source().write(tmp_path), tmp_path / "o.json"
    found = Finding(rule="item-sync", claim="it waits", share_pct=9.0, file="t.py", line=7)
    annotate(path, made_study(gap()), out, findings=(found,))
    mark = next(e for e in ours(json.loads(out.read_text()), "i") if e["name"] == "1: it waits")
    assert mark["tid"] == "findings"
    assert (mark["args"]["rule"], mark["args"]["place"]) == ("item-sync", "t.py:7")


def test_times_are_exact_in_the_files_own_microseconds(tmp_path: Path) -> None:
    path = source().write(tmp_path)
    annotate(path, made_study(gap()), tmp_path / "o.json")
    assert f'"ts": {EPOCH_US}.123' in (tmp_path / "o.json").read_text()


def test_each_device_has_a_row(tmp_path: Path) -> None:
    document = copied(source().write(tmp_path), gap(device=0), gap(device=3))
    assert {e["tid"] for e in ours(document, "X")} == {
        "idle causes (device 0)",
        "idle causes (device 3)",
    }


def test_metadata_before_or_after_an_array_alone_or_indented(tmp_path: Path) -> None:
    events = source().events
    path = tmp_path / "t.json"
    for text in (
        json.dumps({"traceEvents": events, "after": [1.5, "x"]}),
        json.dumps({"after": [1.5, "x"], "traceEvents": events}, indent=4),
        json.dumps(events),
    ):
        path.write_text(text)
        document = copied(path, gap())
        assert theirs(document) == events
        assert document.get("after", [1.5, "x"]) == [1.5, "x"]


def test_a_trace_cut_off_anywhere_is_closed(tmp_path: Path) -> None:
    text = json.dumps(source().document())
    path = tmp_path / "t.json"
    whole = source().events
    begins = text.index("[", text.index('"traceEvents"'))
    for cut in range(begins + 1, len(text), 37):
        path.write_text(text[:cut])
        kept = theirs(copied(path, gap()))
        assert kept == whole[: len(kept)]


def test_damage_costs_the_damaged_event_alone(tmp_path: Path) -> None:
    lines = [json.dumps(e) for e in source().events]
    path = tmp_path / "t.json"
    for bad in (
        '{"ph": "X", "name": "tab\there", "ts": 5, "dur": 1, "pid": 1, "tid": 1}',
        '{"ph": "X", "name": "quo"te", "ts": 5, "dur": 1, "pid": 1, "tid": 1}',
        '{"ph": "X", "name": "bad \\x escape", "ts": 5, "dur": 1, "pid": 1, "tid": 1}',
        '{"ph": "X", "name": NaN, "ts": 5',
        "null",
    ):
        path.write_text('{"traceEvents": [' + ",\n".join([*lines[:4], bad, *lines[4:]]) + "]}")
        kept = theirs(copied(path, gap()))
        for event in source().events:
            assert event in kept


def test_numbers_that_are_none_become_null(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    events = json.dumps(source().events).replace('"correlation": 3', '"occupancy": NaN')
    path.write_text(f'{{"x": [1e999, -Infinity, 1.5], "traceEvents": {events}}}')
    target = tmp_path / "o.json"
    annotate(path, made_study(), target)

    def never(text: str) -> None:
        raise AssertionError(text)

    document = json.loads(target.read_text(), parse_constant=never)
    assert document["x"] == [None, None, 1.5]
    kept = theirs(document)
    assert len(kept) == len(source().events)
    assert [e["args"]["occupancy"] for e in kept if "occupancy" in e["args"]] == [None, None]


def test_broken_text_becomes_readable_text(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    text = json.dumps({"traceEvents": source().events}).encode()
    path.write_bytes(text.replace(b'"k0"', b'"k\xff\xfe"'))
    names = [e["name"] for e in theirs(copied(path))]
    assert "k\ufffd\ufffd" in names


def test_an_empty_trace_can_be_marked(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    path.write_text('{"traceEvents": []}')
    assert theirs(copied(path)) == []


def test_every_gap_of_a_real_study_is_marked(tmp_path: Path) -> None:
    path = source().write(tmp_path)
    found, traces = study([path], cache=False)
    mark(traces[0], found, tmp_path / "o.perfetto.json")
    document = json.loads((tmp_path / "o.perfetto.json").read_text())
    spans = [e for e in ours(document, "X") if e["name"].startswith("idle: ")]
    assert len(spans) == 4
    assert sum(e["dur"] for e in spans) * 1000 == pytest.approx(found.idle.total_ns)


def test_a_target_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    path = source().write(tmp_path)
    with pytest.raises(RidgelineError, match="could not be written"):
        annotate(path, made_study(), tmp_path / "none" / "o.json")
    assert [p.name for p in tmp_path.iterdir()] == ["made.json"]
