"""`with ridgeline.profile()` and `%%ridgeline`, on real torch."""

from pathlib import Path

import pytest
import torch
from torch import nn

import ridgeline
from ridgeline.harness.capture import live
from ridgeline.integrations.block import profile_of_line
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.verdict import LimitCode


def train(steps: int) -> float:
    torch.manual_seed(0)
    model = nn.Linear(16, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = torch.zeros(())
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 16)).pow(2).mean()
        loss.backward()
        optimizer.step()
    return loss.item()


def test_a_block_gives_the_records_of_a_run(tmp_path: Path) -> None:
    plain = train(30)
    with ridgeline.profile("loop", runs_dir=tmp_path, quiet=True) as run:
        assert train(30) == plain
    assert run.summary is not None
    assert run.summary.step.counted == 30
    assert run.summary.efficiency.flops_per_step == 2 * 2 * 8 * 16 * 4
    assert run.directory is not None
    directory = RunDirectory(run.directory)
    assert directory.run().target.kind == "block"
    assert directory.run().status == "finished"
    assert len(directory.steps()) == 30
    assert directory.trace_file().is_file()
    assert len(directory.telemetry()) > 0
    assert live.session is None


def test_a_block_inside_a_block_does_nothing(tmp_path: Path) -> None:
    with ridgeline.profile("outer", runs_dir=tmp_path, trace_steps=0, quiet=True) as outer:
        with ridgeline.profile("inner", runs_dir=tmp_path, quiet=True) as inner:
            train(5)
        train(5)
    assert inner.summary is not None
    assert inner.summary.verdict.reason.code == LimitCode.RECORDED_ELSEWHERE
    assert inner.directory is None
    assert outer.summary is not None
    assert outer.summary.step.counted == 10
    assert len(list(tmp_path.iterdir())) == 1


def test_an_exception_goes_on_and_is_recorded(tmp_path: Path) -> None:
    run = ridgeline.profile("fails", runs_dir=tmp_path, trace_steps=0, quiet=True)

    def block() -> None:
        with run:
            train(4)
            raise ValueError("theirs")

    with pytest.raises(ValueError, match="theirs"):
        block()
    assert run.summary is not None
    assert (run.summary.status, run.summary.why) == ("raised", "ValueError: theirs")


def test_a_second_block_is_another_run(tmp_path: Path) -> None:
    for _ in range(2):
        with ridgeline.profile("again", runs_dir=tmp_path, trace_steps=0, quiet=True) as run:
            train(4)
        assert run.summary is not None
        assert run.summary.step.counted == 4
    assert len(list(tmp_path.iterdir())) == 2


def test_a_cell_is_profiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shells = pytest.importorskip("IPython.core.interactiveshell")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    shell = shells.InteractiveShell.instance()
    try:
        shell.run_line_magic("load_ext", "ridgeline")
        cell = (
            "import torch\nmodel = torch.nn.Linear(4, 4)\n"
            "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
            "for i in range(6):\n    model(torch.ones(2, 4)).sum().backward()\n"
            "    optimizer.step()\n"
        )
        shell.run_cell_magic("ridgeline", "--trace-steps 0 mine", cell)
        assert shell.user_ns["i"] == 5
        assert "6 steps" in capsys.readouterr().err
        (found,) = (tmp_path / ".ridgeline" / "runs").iterdir()
        assert found.name.endswith("-mine")
    finally:
        shells.InteractiveShell.clear_instance()


@pytest.mark.parametrize("line", ["--steps", "--steps many", "--colour"])
def test_an_unknown_option_of_the_magic_is_named(line: str) -> None:
    with pytest.raises(ValueError, match=line.split()[0]):
        profile_of_line(line)
