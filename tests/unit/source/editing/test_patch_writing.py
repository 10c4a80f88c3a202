"""The copy is written whole or not at all, and never over what is not ours."""

import os
from pathlib import Path

import pytest

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.edit import Patched, Top
from ridgeline.source.editing import patched, write_copy

OLD = b"\xef\xbb\xbfx = 1\r\n"


@pytest.fixture
def original(tmp_path: Path) -> Path:
    path = tmp_path / "train.py"
    path.write_bytes(OLD)
    path.chmod(0o750)
    return path


@pytest.fixture
def result(original: Path) -> Patched:
    edit = Top(file=str(original), where="start", text="import new", why="w")
    return patched(str(original), OLD, [edit])


def test_the_copy_has_the_bytes_and_the_permissions(original: Path, result: Patched) -> None:
    copy = original.parent / "optimized_train.py"
    write_copy(result, copy)
    assert copy.read_bytes() == b"\xef\xbb\xbf# ridgeline: w\r\nimport new\r\nx = 1\r\n"
    assert copy.stat().st_mode & 0o777 == 0o750
    assert original.read_bytes() == OLD
    assert sorted(os.listdir(original.parent)) == ["optimized_train.py", "train.py"]


def test_a_copy_of_ours_is_written_again_and_a_file_of_theirs_is_not(
    original: Path, result: Patched
) -> None:
    copy = original.parent / "copy.py"
    write_copy(result, copy)
    write_copy(result, copy)
    copy.write_text("mine = 1\n")
    with pytest.raises(UsageError, match="was not written by Ridgeline"):
        write_copy(result, copy)
    assert copy.read_text() == "mine = 1\n"
    write_copy(result, copy, overwrite=True)
    assert b"import new" in copy.read_bytes()


def test_the_original_is_never_written_to(original: Path, result: Patched) -> None:
    link, hard = original.parent / "link.py", original.parent / "hard.py"
    link.symlink_to(original)
    hard.hardlink_to(original)
    for target in (original, link, hard):
        with pytest.raises(UsageError, match="is the original"):
            write_copy(result, target, overwrite=True)
    assert original.read_bytes() == OLD


def test_an_original_behind_a_link_is_left(original: Path) -> None:
    link = original.parent / "link.py"
    link.symlink_to(original)
    made = patched(str(link), OLD, [Top(file="f", where="start", text="import new", why="w")])
    with pytest.raises(UsageError):
        write_copy(made, original)
    write_copy(made, original.parent / "copy.py")
    assert original.read_bytes() == OLD
    assert link.is_symlink()


def test_a_failure_leaves_what_was_there(
    original: Path, result: Patched, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = original.parent / "copy.py"
    write_copy(result, copy)
    before = copy.read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RidgelineError, match="cannot be written: no space left on device"):
        write_copy(result, copy)
    assert copy.read_bytes() == before
    assert sorted(os.listdir(original.parent)) == ["copy.py", "train.py"]


def test_places_that_take_no_file_are_refused_in_a_sentence(
    original: Path, result: Patched
) -> None:
    for target in (original.parent, original.parent / "none" / "copy.py", original / "copy.py"):
        with pytest.raises(RidgelineError):
            write_copy(result, target)
