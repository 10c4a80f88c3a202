"""`ridgeline hardware` and what it writes."""

import csv
import io
import json
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from ridgeline.cli.hardware import command
from ridgeline.errors import RidgelineError, UsageError
from ridgeline.machine import ceiling_cache, survey
from ridgeline.machine.datasheet import match
from ridgeline.records.facts import because
from ridgeline.records.machine import Ceiling, Device, Disturbance, Machine
from ridgeline.report.renderers import csv as csv_renderer
from ridgeline.report.renderers import markdown, terminal
from ridgeline.report.views import hardware as view


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ceiling_cache, "_in_process", {})


def _h200() -> Machine:
    row = match("NVIDIA H200")
    assert row is not None
    measured = (
        Ceiling(
            quantity="matmul", value=784e12, unit="FLOP/s", source="measured", dtype="bfloat16"
        ),
        Ceiling(quantity="copy", value=4.26e12, unit="B/s", source="measured"),
        Ceiling(quantity="triad", value=4.2e12, unit="B/s", source="measured"),
        Ceiling(quantity="launch", value=3.4e-6, unit="s", source="measured"),
    )
    device = Device(
        kind="cuda",
        index=1,
        name="NVIDIA H200",
        memory_bytes=140 << 30,
        driver="570.1",
        architecture="sm_90",
        cores=132,
        ceilings=(*measured, *row.ceilings()),
    )
    return Machine(
        system="Linux",
        python="3.12",
        torch="2.11",
        devices=(device,),
        conditions=(because(Disturbance.NO_ROOM, dtype="float64"),),
    )


def test_a_row_has_both_sources_their_ratio_and_the_ridge() -> None:
    found = {(row.quantity, row.dtype): row for row in view.ceiling_rows(_h200().devices[0])}
    bfloat16 = found["matmul", "bfloat16"]
    assert bfloat16.share == pytest.approx(784 / 989.4)
    assert bfloat16.ridge == pytest.approx(784 / 4.26)
    assert found["matmul", "float8"].measured is None
    assert found["triad", ""].share == pytest.approx(4.2 / 4.8)
    assert found["launch", ""].share is None


def test_the_terminal_shows_measured_beside_datasheet() -> None:
    from rich.console import Console

    console = Console(file=io.StringIO(), width=140)
    terminal.render(view.document(_h200(), {"cuda:1": ("tf32: because",)}), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    line = next(line for line in text.splitlines() if "bfloat16" in line)
    assert line.split()[:8] == ["bfloat16", "784", "TFLOP/s", "989", "TFLOP/s", "79.2", "%", "184"]
    assert "tf32: because" in text
    assert "no room on the device for a float64 product" in text
    assert "\x1b" not in text


def test_every_format_carries_the_same_rows() -> None:
    machine = _h200()
    document = view.data(machine, {"cuda:1": ("tf32: because",)})
    assert document["schema"] == "ridgeline.hardware/1"
    assert document["devices"][0]["left_out"] == ["tf32: because"]
    assert document["devices"][0]["ridge_flop_per_byte"]["bfloat16"] == pytest.approx(784 / 4.26)
    lines = list(csv.DictReader(io.StringIO(csv_renderer.render(view.figures(machine)))))
    assert len(lines) == len(view.ceiling_rows(machine.devices[0]))
    assert float(lines[0]["measured"]) == 784e12
    assert markdown.render(view.document(machine, {})).count("| bfloat16 |") == 1


def test_json_is_one_document_and_nothing_else() -> None:
    result = CliRunner().invoke(command, ["--json"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert document["devices"][0]["label"] == "cpu"
    assert document["devices"][0]["left_out"]


def test_without_ceilings_the_next_command_is_printed() -> None:
    result = CliRunner().invoke(command, ["--device", "cpu"])
    assert result.exit_code == 0
    assert "ridgeline hardware --measure --device cpu" in result.stdout
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize("ending", ["json", "md", "csv"])
def test_output_goes_to_the_file_whole(ending: str, tmp_path: Path) -> None:
    target = tmp_path / f"machine.{ending}"
    assert CliRunner().invoke(command, ["-o", str(target)]).exit_code == 0
    assert target.read_text()
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == [target.name]


def test_an_unknown_ending_is_refused_before_anything_runs(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["--measure", "-o", str(tmp_path / "x.docx")])
    assert isinstance(result.exception, UsageError)


def test_a_folder_that_is_not_there_gets_a_sentence(tmp_path: Path) -> None:
    result = CliRunner().invoke(command, ["-o", str(tmp_path / "none" / "x.json")])
    assert isinstance(result.exception, RidgelineError)
    assert "there is no folder" in result.exception.message


def test_measuring_keeps_the_ceilings_for_the_next_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey, "measure", partial(survey.measure, budget_s=0.5))
    first = CliRunner().invoke(command, ["--measure", "--device", "cpu"])
    assert first.exit_code == 0
    assert "ridgeline model" in first.stdout
    again = json.loads(CliRunner().invoke(command, ["--json", "--device", "cpu"]).stdout)
    measured = {c["dtype"] for c in again["devices"][0]["ceilings"]}
    assert {"float64", "float32", "bfloat16"} <= measured
