"""Read once: the Parquet cache, its key, and what damage to it does."""

import os
import pwd
from dataclasses import fields
from pathlib import Path

import msgspec
import numpy as np
import pytest
from traces_made import Made

from ridgeline.trace.reading import cache
from ridgeline.trace.reading.reader import parse
from ridgeline.trace.reading.tables import TABLES
from ridgeline.trace.study import study
from ridgeline.trace.trace import Trace


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("RIDGELINE_CACHE", str(tmp_path / "cache"))
    made = Made(distributedInfo={"rank": 3, "world_size": 8, "backend": "nccl"})
    made.frame('na"me\n\\ é.py(3): f', 0, 100).span("ProfilerStep#3", 0, 100)
    made.op("aten::mm", 5, 20, **{"Input Dims": [[2, 3], [3, 4]], "Input type": ["float", "float"]})
    made.launch("gemm", 10, 20.125, 30.5, 7, grid=[1, 2, 3]).allocation(12, 512, 2048)
    return made.write(tmp_path, "it's a [trace].json.gz")


def equal(one: Trace, other: Trace) -> bool:
    for name in TABLES:
        a, b = getattr(one, name), getattr(other, name)
        for field in fields(a):
            if not np.array_equal(getattr(a, field.name), getattr(b, field.name)):
                return False
    return (list(one.texts), one.lanes, one.metadata) == (
        list(other.texts), other.lanes, other.metadata,
    )  # fmt: skip


def test_a_trace_comes_back_from_the_cache_as_it_was_read(path: Path) -> None:
    read = parse(path)
    assert cache.find(path) is None
    assert cache.store(read, path) is not None
    entry = cache.find(path)
    assert entry is not None
    again = entry.trace(path)
    assert again is not None
    assert equal(read, again)
    assert again.origin == msgspec.structs.replace(read.origin, from_cache=True)
    assert entry.folder.parent == path.parent / ".ridgeline" / "traces"


def test_other_content_is_not_served_the_old_answer(path: Path) -> None:
    cache.store(parse(path), path)
    content = bytearray(path.read_bytes())
    content[-9] ^= 1
    stamp = path.stat()
    path.write_bytes(content)
    os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert cache.find(path) is None


def test_the_same_content_touched_or_copied_is_still_known(path: Path) -> None:
    cache.store(parse(path), path)
    os.utime(path, ns=(1, 1))
    assert cache.find(path) is not None


def test_a_folder_that_cannot_be_written_uses_the_cache_folder(path: Path) -> None:
    (path.parent / ".ridgeline").write_text("a file where the folder would be")
    entry = cache.store(parse(path), path)
    assert entry is not None
    assert entry.folder.parent == path.parent / "cache" / "traces"
    assert cache.find(path) is not None


@pytest.mark.parametrize("file", ["texts.parquet", "ops.parquet"])
@pytest.mark.parametrize("harm", ["cut", "junk", "gone", "forged"])
def test_a_damaged_cache_is_as_if_it_were_not_there(path: Path, harm: str, file: str) -> None:
    entry = cache.store(parse(path), path)
    assert entry is not None
    victim = entry.folder / file
    if harm == "cut":
        victim.write_bytes(victim.read_bytes()[:40])
    elif harm == "junk":
        victim.write_bytes(b"PAR1" + os.urandom(400) + b"PAR1")
    elif harm == "gone":
        victim.unlink()
    else:
        (entry.folder / "device.parquet").rename(victim)
    found = cache.find(path)
    assert found is None or found.trace(path) is None


def test_a_second_question_is_answered_from_the_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MIN_TEXT_BYTES", 0)
    first, (read,) = study([path])
    again, (kept,) = study([path])
    narrowed, _ = study([path], steps="3")
    assert not read.origin.from_cache
    assert kept.origin.from_cache
    assert again == first
    assert narrowed.window.basis == "step 3"
    assert equal(read, kept)


def test_answers_are_kept_beside_and_damaged_ones_forgotten(path: Path) -> None:
    entry = cache.store(parse(path), path)
    assert entry is not None
    entry.remember("study-x", parse(path).metadata)
    kind = type(parse(path).metadata)
    assert entry.answer("study-x", kind) == parse(path).metadata
    (entry.folder / "study-x.json").write_text("{")
    assert entry.answer("study-x", kind) is None


@pytest.mark.parametrize("forged", ["plain", "edited", "of another question", "of another trace"])
def test_an_answer_that_this_user_did_not_seal_is_not_trusted(path: Path, forged: str) -> None:
    metadata = parse(path).metadata
    entry = cache.store(parse(path), path)
    assert entry is not None
    entry.remember("study-x", metadata)
    file = entry.folder / "study-x.json"
    if forged == "plain":
        file.write_bytes(msgspec.json.encode(metadata))
    elif forged == "edited":
        file.write_bytes(file.read_bytes().replace(b"nccl", b"gloo"))
    elif forged == "of another question":
        entry.remember("study-y", metadata)
        (entry.folder / "study-y.json").replace(file)
    else:
        other = Made().launch("gemm", 10, 20, 30, 7).write(path.parent, "other.json")
        beside = cache.store(parse(other), other)
        assert beside is not None
        beside.remember("study-x", metadata)
        (beside.folder / "study-x.json").replace(file)
    assert entry.answer("study-x", type(metadata)) is None


def test_a_cache_that_came_with_the_trace_is_not_trusted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user's key sealed it; unpacked from an archive, its files belong to this user."""
    assert cache.store(parse(path), path) is not None
    assert cache.find(path) is not None
    monkeypatch.setenv("RIDGELINE_CACHE", str(path.parent / "elsewhere"))
    assert cache.find(path) is None


def test_a_user_without_a_home_reads_traces_without_a_cache(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container's random user has neither HOME nor an entry in the passwd file."""

    def unknown(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CACHE_HOME", "RIDGELINE_CACHE"):
        monkeypatch.delenv(name, raising=False)
    (path.parent / ".ridgeline").write_text("a file where the folder would be")
    monkeypatch.setattr(cache, "MIN_TEXT_BYTES", 0)
    study([path])
    found, _ = study([path])
    assert found.events == parse(path).origin.events
    assert cache.store(parse(path), path) is None
