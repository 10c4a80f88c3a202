"""What the watcher says when a run is over."""

from pathlib import Path

import msgspec
import pytest

from ridgeline.cli import watcher
from ridgeline.harness.capture.watching import Ending
from ridgeline.integrations import run_lifecycle
from ridgeline.records.run import RunFile, Settings, Target
from ridgeline.records.run_directory import RunDirectory
from tests.unit.report import made_up_run


@pytest.mark.parametrize("quiet", [False, True])
def test_with_an_output_file_one_line_names_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    quiet: bool,
) -> None:
    output = tmp_path / "result.json"
    run = RunFile(
        name="a",
        target=Target(kind="script", name="train.py"),
        settings=Settings(output=str(output), quiet=quiet),
    )
    (tmp_path / "run.json").write_bytes(msgspec.json.encode(run))
    monkeypatch.setattr(run_lifecycle, "finish_run", lambda *given: made_up_run.summary())
    watcher.conclude_and_report(RunDirectory(tmp_path), Ending(kind="goodbye", at_ns=1))
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", "" if quiet else f"wrote {output}\n")
    assert output.exists()
