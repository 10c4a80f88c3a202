"""Kept ceilings: round trip, damage, read-only homes, merging."""

import pwd
from pathlib import Path

import msgspec
import pytest

from ridgeline.machine import cache_folder, ceiling_cache
from ridgeline.machine.ceiling_cache import Entry, Key, Refusal
from ridgeline.records.facts import because
from ridgeline.records.machine import Ceiling, Disturbance

KEY = Key(kind="cpu", name="A CPU @ 2 GHz", driver="", torch="2.13.0", cores=2, threads=2)


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ceiling_cache, "_in_process", {})


def _product(dtype: str, value: float) -> Ceiling:
    return Ceiling(quantity="matmul", value=value, unit="FLOP/s", source="measured", dtype=dtype)


def _forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a new process knows."""
    monkeypatch.setattr(ceiling_cache, "_in_process", {})


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_stored_ceilings_are_loaded_by_the_next_process(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Entry(
        key=KEY, ceilings=(_product("float32", 1e11),), conditions=(because(Disturbance.POWERSAVE),)
    )
    ceiling_cache.store(entry)
    _forget(monkeypatch)
    assert ceiling_cache.load(KEY) == entry


def test_storing_leaves_no_temporary_file(tmp_path: Path) -> None:
    ceiling_cache.store(Entry(key=KEY))
    assert [path.suffix for path in _files(tmp_path)] == [".json"]


@pytest.mark.parametrize(
    "changed",
    [{"torch": "2.6.0"}, {"threads": 1}, {"driver": "570"}, {"uuid": "x"}, {"cores": 64}],
)
def test_another_driver_torch_device_or_thread_count_starts_afresh(
    changed: dict[str, object],
) -> None:
    ceiling_cache.store(Entry(key=KEY))
    assert ceiling_cache.load(msgspec.structs.replace(KEY, **changed)) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"key": 3}', b"\xff\xfe\x00"])
def test_a_damaged_file_is_ignored_and_replaced(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ceiling_cache.store(Entry(key=KEY))
    _files(tmp_path)[0].write_bytes(content)
    _forget(monkeypatch)
    assert ceiling_cache.load(KEY) is None
    ceiling_cache.store(Entry(key=KEY))
    _forget(monkeypatch)
    assert ceiling_cache.load(KEY) is not None


def test_a_home_that_cannot_be_written_still_serves_this_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A file where the folder should be fails for root too, which a read-only mode does not.
    (tmp_path / "blocked").write_text("")
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "blocked"))
    entry = ceiling_cache.store(Entry(key=KEY, ceilings=(_product("float32", 1.0),)))
    assert ceiling_cache.load(KEY) == entry
    _forget(monkeypatch)
    assert ceiling_cache.load(KEY) is None


def test_a_partial_measurement_keeps_the_other_dtypes() -> None:
    ceiling_cache.store(
        Entry(key=KEY, ceilings=(_product("float32", 1.0), _product("bfloat16", 2.0)))
    )
    whole = ceiling_cache.store(Entry(key=KEY, ceilings=(_product("float32", 3.0),)))
    assert {c.dtype: c.value for c in whole.ceilings} == {"float32": 3.0, "bfloat16": 2.0}


def test_a_disturbed_measurement_does_not_lower_a_ceiling() -> None:
    place = ("matmul", "float32")
    ceiling_cache.store(Entry(key=KEY, ceilings=(_product("float32", 2.0),)))
    whole = ceiling_cache.store(
        Entry(key=KEY, ceilings=(_product("float32", 1.0),), disturbed=(("matmul", "float32"),))
    )
    assert [c.value for c in whole.ceilings] == [2.0]
    assert whole.disturbed == ()
    whole = ceiling_cache.store(
        Entry(key=KEY, ceilings=(_product("float32", 3.0),), disturbed=(("matmul", "float32"),))
    )
    assert [c.value for c in whole.ceilings] == [3.0]
    assert whole.disturbed == (place,)
    whole = ceiling_cache.store(Entry(key=KEY, ceilings=(_product("float32", 2.5),)))
    assert [c.value for c in whole.ceilings] == [2.5]
    assert whole.disturbed == ()


def test_a_dtype_that_works_now_is_no_longer_refused() -> None:
    ceiling_cache.store(Entry(key=KEY, refusals=(Refusal("float8", "no"), Refusal("tf32", "no"))))
    whole = ceiling_cache.store(Entry(key=KEY, ceilings=(_product("float8", 1.0),)))
    assert [r.dtype for r in whole.refusals] == ["tf32"]


def test_a_refused_dtype_loses_the_ceiling_it_had() -> None:
    ceiling_cache.store(Entry(key=KEY, ceilings=(_product("float8", 1.0),)))
    whole = ceiling_cache.store(Entry(key=KEY, refusals=(Refusal("float8", "no"),)))
    assert whole.ceilings == ()


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_folder.folder().name == "cache"
    monkeypatch.delenv("RIDGELINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder.folder() == Path("/x/ridgeline")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder.folder().parts[-2:] == (".cache", "ridgeline")


def test_a_user_without_a_home_has_a_folder_that_cannot_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def unknown(user: int) -> None:
        raise KeyError(user)

    for name in ("RIDGELINE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(NotADirectoryError):
        cache_folder.folder().mkdir(parents=True)
