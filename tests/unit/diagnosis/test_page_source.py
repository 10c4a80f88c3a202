"""The lines of source and the timeline on a page: bounded, Python only, and what can be read."""

import os
from pathlib import Path

import pytest

from ridgeline.diagnosis import run_page as module
from ridgeline.diagnosis.recorded_run import Attempts, RunRead
from ridgeline.diagnosis.run_page import named_places, run_timeline, source_lines
from ridgeline.records.facts import Place
from ridgeline.records.finding import Finding, Findings
from ridgeline.records.run import RunFile, Step, Target
from ridgeline.records.timeline import Timeline, TimelineLane, Work
from ridgeline.records.trace import Place as FunctionPlace
from tests.unit.trace.traces_made import Made


def test_lines_around_a_place_are_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("\n".join(f"line {i}" for i in range(1, 101)))
    found = list(
        source_lines([tmp_path], [Place("a.py", 20), Place("a.py", 25), Place("a.py", 80)])
    )
    assert [(part.first, part.first + len(part.lines) - 1) for part in found] == [(8, 37), (68, 92)]
    assert found[0].lines[0] == "line 8"


def test_a_file_is_looked_for_in_every_folder(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.py").write_text("x = 1")
    (found,) = source_lines([tmp_path, tmp_path / "b"], [Place("a.py", 1)])
    assert found.lines == ("x = 1",)


@pytest.mark.parametrize("name", ["passwd", "key.pem", ".env", "a.pyc"])
def test_only_python_is_shown(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("secret")
    assert list(source_lines([tmp_path], [Place(name, 1), Place(str(tmp_path / name), 1)])) == []


def test_what_is_no_file_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "folder.py").mkdir()
    places = [Place("pipe.py", 1), Place("folder.py", 1), Place("nowhere.py", 1), Place("\0.py", 1)]
    assert list(source_lines([tmp_path], places)) == []


def test_long_lines_and_many_lines_are_cut(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x" * 100_000 + "\n" * 5_000)
    places = [Place("a.py", line) for line in range(1, 5_000, 10)]
    found = list(source_lines([tmp_path], places))
    assert sum(len(part.lines) for part in found) == module.MAX_SOURCE_LINES
    assert max(len(line) for part in found for line in part.lines) == module.MAX_LINE_LENGTH


def test_findings_come_before_the_events_with_the_most_time() -> None:
    works = tuple(
        Work(name=f"f{i}", kind="other", place=FunctionPlace(file="a.py", line=i)) for i in (1, 2)
    )
    lane = TimelineLane(
        kind="host", start_ns=(0, 10, 20), length_ns=(5, 6, 7), depth=(0, 0, 0), work=(0, 1, 1)
    )
    shown = Timeline(length_ns=27, works=works, lanes=(lane,))
    findings = Findings(findings=(Finding(rule="r", claim="c", file="z.py", line=9),))
    assert named_places(findings, shown) == [Place("z.py", 9), Place("a.py", 2), Place("a.py", 1)]


def test_a_damaged_trace_of_one_rank_costs_that_rank_alone(tmp_path: Path) -> None:
    good = [
        Made(distributedInfo={"rank": rank, "world_size": 3})
        .launch("kernel", 10, 30, 100, 1)
        .write(tmp_path, f"trace-rank{rank}.json.gz")
        for rank in (0, 2)
    ]
    bad = tmp_path / "trace-rank1.json.gz"
    bad.write_bytes(b"no trace at all")
    attempts = Attempts()
    run = RunFile(name="r", target=Target(kind="script", name="train.py"))
    read = RunRead(run=run, trace_files=(good[0], bad, good[1]))
    found = run_timeline(read, attempts)
    assert found is not None
    assert {lane.rank for lane in found.lanes} == {"rank 0", "rank 2"}
    assert len(attempts.failures) == 1


def test_steps_have_the_numbers_of_the_run(tmp_path: Path) -> None:
    made = Made()
    for number in (0, 1):
        made.span(f"ProfilerStep#{number}", 1_000 * number, 900)
        made.op("aten::mm", 1_000 * number + 10, 500)
    steps = tuple(
        Step(index=index, start_ns=index, dur_ns=1, window=window)
        for index, window in enumerate(("settle", "light", "traced", "traced", "light"))
    )
    run = RunFile(name="r", target=Target(kind="script", name="train.py"))
    read = RunRead(run=run, steps=steps, trace_files=(made.write(tmp_path),))
    found = run_timeline(read, Attempts())
    assert found is not None
    (marks,) = [lane for lane in found.lanes if lane.kind == "steps"]
    assert [found.works[work].name for work in marks.work] == ["2", "3"]
