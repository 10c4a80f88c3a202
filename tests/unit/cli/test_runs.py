"""The table of runs: how each ended, and what a narrow terminal leaves out."""

import re
from pathlib import Path

import msgspec
import pytest

from ridgeline.records.run import RunFile, Status, Target
from ridgeline.records.run_directory import RunDirectory
from ridgeline.report.views.runs import RunLine, data, document, run_line
from tests.unit.report import made_up_findings, made_up_run
from tests.unit.report.made_up_trace import NASTY
from tests.unit.report.rendered import at_terminal, bare_page

NAME = "1115-010203-train"
BEGAN = "2026-11-15T01:02:03+00:00"
NOW_S = 1.8e9


def made(folder: Path, code: int | None = 0, status: Status = "finished") -> RunDirectory:
    run = RunDirectory.make(folder, NAME)
    file = RunFile(
        name=NAME, target=Target(kind="script", name="train.py"), status=status, exit_code=code,
        began_at=BEGAN,
    )  # fmt: skip
    run.write_whole("run.json", msgspec.json.encode(file))
    return run


def shown(*lines: RunLine, width: int = 100) -> list[str]:
    return at_terminal(document(".ridgeline/runs", lines, NOW_S), width).splitlines()


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [(7, "finished", "exit 7"), (0, "finished", "finished"), (None, "finished", "finished"),
     (1, "raised", "raised")],
)  # fmt: skip
def test_the_exit_code_of_a_program_is_shown(
    tmp_path: Path, code: int | None, status: Status, words: str
) -> None:
    assert f" {words} " in shown(run_line(made(tmp_path, code, status)))[4]


@pytest.mark.parametrize("width", [40, 50, 60])
def test_a_narrow_terminal_drops_columns_but_no_words(tmp_path: Path, width: int) -> None:
    run = made(tmp_path)
    run.write_whole("summary.json", msgspec.json.encode(made_up_run.summary()))
    header, row = shown(run_line(run), width=width)[3:5]
    assert header.split()[0] == "run"
    assert {"status", "limit"} <= set(header.split())
    assert "size" not in header
    assert "finished" in row
    assert row.split()[0].startswith(NAME[:8])  # the beginning of a name is enough to name a run


def test_a_wide_terminal_has_all_columns(tmp_path: Path) -> None:
    summary = msgspec.structs.replace(made_up_run.summary(), findings=made_up_findings.findings())
    run = made(tmp_path)
    run.write_whole("summary.json", msgspec.json.encode(summary))
    lines = shown(run_line(run))
    assert lines[1].startswith(" 1 run, ")
    assert lines[1].endswith(" in .ridgeline/runs")
    columns = ["run", "began", "status", "steps", "limit", "first finding", "size"]
    assert re.split(r"  +", lines[3].strip()) == columns


def test_the_first_finding_stands_beside_the_limit(tmp_path: Path) -> None:
    run = made(tmp_path)
    summary = msgspec.structs.replace(made_up_run.summary(), findings=made_up_findings.findings())
    run.write_whole("summary.json", msgspec.json.encode(summary))
    line = run_line(run)
    assert (line.finding, line.findings) == ("loader-starves", 4)
    assert "input-bound  loader-starves +3" in shown(line, width=120)[4]


@pytest.mark.parametrize(
    ("began_at", "age"),
    [("2027-01-15T07:59:30+00:00", "just now"), ("2027-01-15T07:55:00+00:00", "5 min ago"),
     ("2027-01-14T08:00:00+00:00", "24 h ago"), (BEGAN, "61 days ago"),
     ("2027-01-15T09:00:00+00:00", "—"), ("yesterday", "—"), ("", "—")],
)  # fmt: skip
def test_the_age_of_a_run_is_rounded_down_and_unknown_in_the_future(
    began_at: str, age: str
) -> None:
    old = RunLine(name="old", path="old", status="finished", began_at=BEGAN)
    line = RunLine(name="a", path="a", status="finished", began_at=began_at)
    assert f"  {age}  " in shown(old, line)[5]


def test_a_damaged_run_says_why_and_stops_no_other(tmp_path: Path) -> None:
    run = made(tmp_path)
    run.run_file.write_bytes(b"")
    line = run_line(run)
    assert (line.status, line.damaged) == ("damaged", "run.json is damaged: it is empty")
    fine = RunLine(name="fine", path="fine", status="finished", began_at=BEGAN)
    text = "\n".join(shown(line, fine))
    assert line.damaged in text
    assert "fine" in text


@pytest.mark.parametrize("nasty", NASTY)
def test_markup_in_names_is_printed_as_text(nasty: str) -> None:
    line = RunLine(name=nasty, path=nasty, status="damaged", damaged=nasty, finding=nasty)
    text = "\n".join(shown(line, width=200))
    assert not {"\x1b", "\x9b", "\u202e", "\x07"} & set(text)
    assert "<script>" not in bare_page(document(nasty, [line], NOW_S))


def test_the_data_have_every_field(tmp_path: Path) -> None:
    line = run_line(made(tmp_path))
    found = data("/there/runs", [line])
    assert (found["schema"], found["root"]) == ("ridgeline.runs/1", "/there/runs")
    assert found["bytes_on_disk"] == line.bytes_on_disk > 0
    assert found["runs"][0]["began_at"] == BEGAN
