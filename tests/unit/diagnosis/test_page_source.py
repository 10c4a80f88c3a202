"""The lines of source on a page: bounded, Python only, and never what a trace points at."""

import os
from pathlib import Path

import pytest

from ridgeline.diagnosis import run_page as module
from ridgeline.diagnosis.run_page import named_places, source_lines
from ridgeline.records.facts import Place
from ridgeline.records.finding import Finding, Findings
from ridgeline.records.timeline import Timeline, TimelineLane, Work
from ridgeline.records.trace import Place as FunctionPlace


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
