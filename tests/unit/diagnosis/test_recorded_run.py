"""One name for each file in a report."""

from pathlib import Path

import pytest

from ridgeline.diagnosis.recorded_run import FileNames
from ridgeline.records.run import Capture, Environment, LoaderSeen, RunFile, Target


def names(folder: str, script: str, *places: str) -> FileNames:
    run = RunFile(
        name="a",
        target=Target(kind="script", name=script),
        environment=Environment(directory=folder),
    )
    loaders = tuple(LoaderSeen(batches=1, place=place) for place in places)
    return FileNames(run, Capture(rank=0, world=1, loaders=loaders))


def test_bare_and_whole_names_of_a_script_in_a_folder_are_one() -> None:
    found = names("/home/u", "src/train.py", "/home/u/src/train.py:12", "/home/u/src/data/io.py:3")
    assert found.shown("train.py") == found.shown("/home/u/src/train.py") == "src/train.py"
    assert found.shown("data/io.py") == "src/data/io.py"
    assert found.place("train.py:12") == "src/train.py:12"


def test_a_script_elsewhere_keeps_its_whole_path_in_every_finding() -> None:
    found = names("/tmp/run", "/work/train.py")
    assert found.shown("train.py") == found.shown("/work/train.py") == "/work/train.py"


def test_in_its_own_folder_it_is_bare() -> None:
    found = names("/home/u", "train.py", "/home/u/train.py:1")
    assert found.shown("train.py") == found.shown("/home/u/train.py") == "train.py"
    assert found.short("pin_memory=False at /home/u/train.py:1, /x/home/u/y") == (
        "pin_memory=False at train.py:1, /x/home/u/y"
    )


def test_a_run_in_the_users_own_directory_finds_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is written with ~ in the record, and most programs lie there."""
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work" / "src").mkdir(parents=True)
    (tmp_path / "work" / "src" / "net.py").touch()
    found = names("~/work", "src/train.py", f"{tmp_path}/work/src/data.py:3")
    assert found.shown("net.py") == "src/net.py"
    assert found.shown("data.py") == "src/data.py"
    assert found.short(f"made at {tmp_path}/work/src/data.py:3") == "made at src/data.py:3"


def test_a_file_nobody_named_is_looked_for_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "src" / "models").mkdir(parents=True)
    (tmp_path / "src" / "models" / "net.py").touch()
    found = names(str(tmp_path), "src/train.py")
    assert found.shown("models/net.py") == "src/models/net.py"
    assert found.shown("models/other.py") == "models/other.py"
    assert found.shown("") == ""
