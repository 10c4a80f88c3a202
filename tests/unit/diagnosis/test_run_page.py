"""What the page of a run is made from: bounded, and with the lines that findings name."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from ridgeline.diagnosis import run_page
from ridgeline.diagnosis.recorded_run import FileNames
from ridgeline.diagnosis.run_page import NEIGHBOURS, histogram, source_lines, thinned
from ridgeline.records.facts import Place
from ridgeline.records.run import Environment, PythonLine, PythonView, RunFile, Target
from tests.unit.report import made_up_run


@given(st.lists(st.integers(), max_size=200), st.integers(2, 50))
def test_thinned_values_keep_their_order_and_both_ends(values: list[int], most: int) -> None:
    numbered = list(enumerate(values))
    found = thinned(numbered, most)
    assert len(found) == min(len(values), most)
    assert list(found) == sorted(found)
    if values:
        assert (found[0], found[-1]) == (numbered[0], numbered[-1])


def test_a_histogram_counts_every_value_once_and_outliers_apart() -> None:
    values = [1.0, 1.1, 1.2, 1.3, 1.0, 1.1, 1.2, 1.3, 90.0]
    found = histogram(values)
    assert found is not None
    assert sum(found.counts) == 8
    assert found.beyond == 1
    assert found.edges[-1] == pytest.approx(1.3)
    assert len(found.edges) == len(found.counts) + 1
    assert histogram(values[:5]) is None


def test_the_lines_around_a_place_are_shown_with_their_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("".join(f"line {i}\n" for i in range(1, 101)))
    places = [Place("a.py", 50), Place("a.py", 52), Place("a.py", 3), Place("gone.py", 1)]
    first, second = source_lines([tmp_path], places)
    assert (first.file, first.first, first.lines[0]) == ("a.py", 1, "line 1")
    assert len(first.lines) == 3 + NEIGHBOURS
    assert (second.first, second.lines[-1]) == (50 - NEIGHBOURS, f"line {52 + NEIGHBOURS}")


def test_a_place_beyond_the_end_of_a_changed_file_shows_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    assert list(source_lines([tmp_path], [Place("a.py", 900)])) == []


def test_the_page_holds_only_so_many_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_page, "MAX_SOURCE_LINES", 30)
    (tmp_path / "a.py").write_text("x\n" * 1000)
    places = [Place("a.py", number) for number in range(100, 900, 100)]
    assert sum(len(one.lines) for one in source_lines([tmp_path], places)) == 30


def test_sampled_lines_are_named_as_findings_name_them(tmp_path: Path) -> None:
    run = RunFile(
        name="train", target=Target(kind="script", name="train.py"), status="finished",
        environment=Environment(directory=str(tmp_path)),
    )  # fmt: skip
    line = PythonLine(file=str(tmp_path / "train.py"), line=3, function="main")
    summary = replace(made_up_run.summary(), python=PythonView(lines=(line,)))
    found = run_page._with_short_names(summary, FileNames(run, None))
    assert found.python is not None
    assert found.python.lines[0].file == "train.py"
