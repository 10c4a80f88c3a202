"""A file that another user could have written is neither loaded nor shown."""

import os
import stat
from pathlib import Path

import pytest

from ridgeline.machine import cache_folder
from ridgeline.machine.cache_folder import exposed_to_others, seal


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "cache" / "scanner" / "scanner.so"
    path.parent.mkdir(parents=True, mode=0o700)
    path.parents[1].chmod(0o755)
    path.write_bytes(b"code")
    path.chmod(0o755)
    return path


def test_a_file_that_only_its_owner_can_write_is_not_exposed(library: Path) -> None:
    assert exposed_to_others(library) == ""


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("mode", [0o777, 0o775, 0o702])
def test_a_file_or_a_folder_above_it_that_others_can_write_to_is_named(
    library: Path, monkeypatch: pytest.MonkeyPatch, level: int, mode: int
) -> None:
    monkeypatch.setattr(cache_folder, "_is_own_group", lambda group: False)
    place = (library, *library.parents)[level]
    place.chmod(mode)
    assert str(place) in exposed_to_others(library)


def test_a_group_of_this_user_alone_may_write(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_folder, "_is_own_group", lambda group: True)
    library.chmod(0o775)
    assert exposed_to_others(library) == ""


def test_a_sticky_folder_above_is_no_exposure(library: Path) -> None:
    library.parents[1].chmod(0o777 | stat.S_ISVTX)
    assert exposed_to_others(library) == ""


def test_a_file_that_another_user_owns_is_exposed(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: library.stat().st_uid + 1)
    if library.stat().st_uid == 0:  # root is trusted: take a file of somebody else
        os.chown(library, 12345, -1)
    assert exposed_to_others(library) != ""


def test_a_link_and_its_target_are_both_checked(library: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.so"
    link.symlink_to(library)
    assert exposed_to_others(link) == ""
    library.parent.chmod(0o777)
    assert str(library.parent) in exposed_to_others(link)


def test_a_seal_holds_for_one_message_and_one_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "mine"))
    mine = seal(b"answer")
    assert mine == seal(b"answer") != seal(b"another answer")
    key = tmp_path / "mine" / "key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "other"))
    assert seal(b"answer") not in (mine, None)


@pytest.mark.parametrize("harm", ["readable", "short", "no folder"])
def test_without_a_private_key_there_is_no_seal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    home = tmp_path / "cache"
    monkeypatch.setenv("RIDGELINE_CACHE", str(home))
    if harm == "no folder":
        home.write_text("a file where the folder would be")
    else:
        home.mkdir()
        (home / "key").write_bytes(b"k" * (3 if harm == "short" else cache_folder.KEY_BYTES))
        (home / "key").chmod(0o644 if harm == "readable" else 0o600)
    assert seal(b"answer") is None
