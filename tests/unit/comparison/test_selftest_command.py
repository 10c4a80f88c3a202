"""`ridgeline selftest`: its exit codes, formats and refusals, without measuring."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from ridgeline.cli.selftest import command
from ridgeline.comparison import selftest as measuring
from ridgeline.errors import UsageError
from ridgeline.records.selftest import SelfTest
from tests.unit.report.made_up_selftest import bench, selftest


def _run(monkeypatch: pytest.MonkeyPatch, found: SelfTest, *arguments: str) -> Result:
    asked: dict[str, Any] = {}

    def fake(device: object, **options: Any) -> SelfTest:
        asked.update(options, device=str(device))
        return found

    monkeypatch.setattr(measuring, "selftest", fake)
    result = CliRunner().invoke(command, ["--device", "cpu", *arguments], standalone_mode=False)
    result.asked = asked  # type: ignore[attr-defined]
    return result


def test_false_alarms_within_the_limit_exit_0(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run(monkeypatch, selftest())
    assert (result.exception, result.return_value) == (None, 0)
    assert "1 of 34 windows" in result.stdout


def test_too_many_false_alarms_exit_3(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run(monkeypatch, selftest(measured=bench(windows=40, alarms=10)))
    assert result.return_value == 3
    assert "quieter host" in result.stdout


def test_an_interrupt_shows_what_there_is_and_exits_130(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run(monkeypatch, selftest(stopped="interrupted", simulated=None))
    assert result.return_value == 130
    assert "1 of 34 windows" in result.stdout


def test_json_is_one_document_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run(monkeypatch, selftest(), "--json")
    assert json.loads(result.stdout)["schema"] == "ridgeline.selftest/1"


def test_options_reach_the_measuring(monkeypatch: pytest.MonkeyPatch) -> None:
    result = _run(monkeypatch, selftest(), "--budget", "90s", "--seed", "4")
    asked = result.asked  # type: ignore[attr-defined]
    assert (asked["budget_s"], asked["seed"], asked["device"]) == (90.0, 4, "cpu")


@pytest.mark.parametrize("ending", ["json", "md", "csv", "html"])
def test_output_goes_to_the_file(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / f"found.{ending}"
    _run(monkeypatch, selftest(), "-o", str(target))
    assert "identical" in target.read_text() or "measured" in target.read_text()


@pytest.mark.parametrize(
    "arguments", [("--budget", "soon"), ("-o", "found.txt"), ("--device", "tpu")]
)
def test_bad_options_are_refused_before_anything_is_measured(
    arguments: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = _run(monkeypatch, selftest(), *arguments)
    assert isinstance(result.exception, UsageError)
    assert result.asked == {}  # type: ignore[attr-defined]
