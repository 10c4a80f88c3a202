"""The run a person means."""

from pathlib import Path

import msgspec
import pytest

from ridgeline.errors import RidgelineError
from ridgeline.records.run import RunFile, Target
from ridgeline.records.run_directory import RunDirectory, runs_root
from ridgeline.records.runs import all_runs, find

NAMES = {
    "1230-235900-train": "2025-12-30T23:59:00+00:00",
    "0102-080000-train": "2026-01-02T08:00:00+00:00",
    "0102-090000-eval": "2026-01-02T11:00:00+02:00",
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = runs_root(tmp_path)
    for name, began_at in NAMES.items():
        run = RunDirectory.make(folder, name)
        file = RunFile(name=name, target=Target(kind="script", name="x.py"), began_at=began_at)
        run.write_whole("run.json", msgspec.json.encode(file))
    return folder


def test_the_newest_comes_first_over_the_turn_of_the_year(root: Path) -> None:
    names = [run.name for run in all_runs(root)]
    assert names == ["0102-090000-eval", "0102-080000-train", "1230-235900-train"]
    assert find(root, "latest").name == "0102-090000-eval"


def test_damaged_runs_are_listed_but_not_links_and_files(root: Path) -> None:
    (root / "broken").mkdir()
    (root / "broken" / "run.json").write_bytes(b"{")
    (root / "link").symlink_to(root / "broken")
    (root / "file").write_text("")
    (root / ".temporary").mkdir()
    assert {run.name for run in all_runs(root)} == {*NAMES, "broken"}


@pytest.mark.parametrize("wanted", ["0102-090000-eval", "0102-09", "eval", "-eval"])
def test_a_run_is_found_by_its_name_or_a_unique_beginning_or_end(root: Path, wanted: str) -> None:
    assert find(root, wanted).name == "0102-090000-eval"


def test_an_exact_name_wins_over_longer_ones(root: Path) -> None:
    RunDirectory.make(root, "0102-090000-eval-2")
    assert find(root, "0102-090000-eval").name == "0102-090000-eval"


def test_an_ambiguous_name_is_an_error_that_lists_the_runs(root: Path) -> None:
    with pytest.raises(RidgelineError, match="2 runs: 0102-080000-train, 1230-235900-train"):
        find(root, "train")


@pytest.mark.parametrize("wanted", ["nothing", "", "*", "0102-080000-train2"])
def test_an_unknown_name_is_an_error_that_lists_the_runs(root: Path, wanted: str) -> None:
    with pytest.raises(RidgelineError) as caught:
        find(root, wanted)
    assert "0102-090000-eval" in caught.value.hint


def test_an_error_names_the_newest_five_runs(root: Path) -> None:
    for number in range(20):
        RunDirectory.make(root, f"9999-{number}")
    with pytest.raises(RidgelineError, match="15 more"):
        find(root, "9999")


def test_a_path_to_a_run_or_to_a_file_in_it(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = root / "0102-090000-eval"
    monkeypatch.chdir(tmp_path)
    for wanted in (str(path), f"{path}/", f"{path}/run.json", ".ridgeline/runs/0102-090000-eval"):
        assert find(tmp_path / "no-root", wanted).path == path
    monkeypatch.chdir(path)
    assert find(tmp_path / "no-root", ".").path == path


@pytest.mark.parametrize("wanted", ["./nothing", "/nothing/at/all", "./a.py", "."])
def test_a_path_without_a_run_is_an_error(
    root: Path, tmp_path: Path, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.py").write_text("")
    with pytest.raises(RidgelineError, match=r"no run|not a run"):
        find(root, wanted)


def test_without_runs_the_error_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(RidgelineError, match="no runs in") as caught:
        find(runs_root(tmp_path), "latest")
    assert "ridgeline run" in caught.value.hint
    assert all_runs(runs_root(tmp_path)) == ()
