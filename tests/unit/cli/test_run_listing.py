"""The table of runs: how each ended, and what a narrow terminal leaves out."""

import io
import re
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from ridgeline.cli.run_listing import listed, show
from ridgeline.records.run import RunFile, Status, Target
from ridgeline.records.run_directory import RunDirectory
from tests.unit.report import made_up_findings, made_up_run

NAME = "1115-010203-train"


def shown(folder: Path, code: int | None, status: Status = "finished", width: int = 100) -> str:
    run = RunDirectory.make(folder, NAME)
    file = RunFile(
        name=NAME, target=Target(kind="script", name="train.py"), status=status, exit_code=code,
        began_at="2026-11-15T01:02:03+00:00",
    )  # fmt: skip
    run.write_whole("run.json", msgspec.json.encode(file))
    out = io.StringIO()
    show(folder, [listed(run)], Console(file=out, width=width), now=1.8e9)
    return out.getvalue()


@pytest.mark.parametrize(
    ("code", "status", "said"),
    [(7, "finished", "exit 7"), (0, "finished", "finished"), (None, "finished", "finished"),
     (1, "raised", "raised")],
)  # fmt: skip
def test_a_program_that_left_with_a_code_of_its_own_shows_it(
    tmp_path: Path, code: int | None, status: Status, said: str
) -> None:
    assert f" {said} " in shown(tmp_path, code, status)


@pytest.mark.parametrize("width", [40, 50, 60])
def test_a_narrow_terminal_loses_columns_not_words(tmp_path: Path, width: int) -> None:
    header, row = shown(tmp_path, 0, width=width).splitlines()[:2]
    assert header.split()[0] == "run"
    assert {"status", "steps", "limit"} <= set(header.split())
    assert "began" not in header or "days ago" in row
    assert "finished" in row
    assert NAME in row or width == 40


def test_a_wide_one_has_all_columns(tmp_path: Path) -> None:
    header = shown(tmp_path, 0).splitlines()[0]
    columns = ["run", "began", "status", "steps", "limit", "first finding", "size"]
    assert re.split(r"  +", header.strip()) == columns


def test_the_first_finding_stands_beside_the_limit(tmp_path: Path) -> None:
    run = RunDirectory.make(tmp_path, NAME)
    file = RunFile(name=NAME, target=Target(kind="script", name="train.py"), status="finished")
    run.write_whole("run.json", msgspec.json.encode(file))
    summary = msgspec.structs.replace(made_up_run.summary(), findings=made_up_findings.findings())
    run.write_whole("summary.json", msgspec.json.encode(summary))
    line = listed(run)
    assert (line.finding, line.findings) == ("loader-starves", 4)
    out = io.StringIO()
    show(tmp_path, [line], Console(file=out, width=120), now=1.8e9)
    assert "input-bound  loader-starves +3" in out.getvalue()
