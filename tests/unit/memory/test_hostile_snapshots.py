"""A snapshot never runs code, and never takes the machine."""

import base64
import gzip
import json
import pickle
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ridgeline.errors import RidgelineError
from ridgeline.memory import snapshot as snapshot_module
from ridgeline.memory import unpickling
from ridgeline.memory.snapshot import read_snapshot
from tests.unit.memory import hostile_pickles
from tests.unit.memory.hostile_pickles import bombs, hostile, its_own_event, mutants, snapshot_of
from tests.unit.memory.simulated_allocator import snapshot, trained

MIN_HOSTILE = 300
EVENT = {"action": "alloc", "addr": 512, "size": 1, "stream": 0, "time_us": 1, "frames": []}


def audited(files: list[bytes]) -> dict[str, Any]:
    """Load the files in one process with an audit hook; return what came of each."""
    lines = b"".join(base64.b64encode(file) + b"\n" for file in files)
    done = subprocess.run(
        [sys.executable, "-I", hostile_pickles.__file__, unpickling.__file__],
        input=lines,
        capture_output=True,
        check=True,
        timeout=120,
    )
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def test_every_hostile_pickle_is_refused_and_nothing_is_imported_opened_or_run(
    tmp_path: Path,
) -> None:
    canary = tmp_path / "canary"
    named = dict(hostile(f"touch {canary}"))
    assert len(named) >= MIN_HOSTILE
    found = audited(list(named.values()))
    not_refused = [n for n, code in zip(named, found["answers"], strict=True) if code is None]
    assert not_refused == []
    assert found["events"] == []
    assert not canary.exists()


def test_the_audit_hook_of_these_tests_sees_a_pickle_that_runs() -> None:
    code = (
        "import sys, pickle; seen = []; sys.addaudithook(lambda e, a: seen.append(e)); "
        r"pickle.loads(b'\x80\x04cos\ngetpid\n)R.'); print('pickle.find_class' in seen)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True"


@pytest.mark.parametrize("name", ["reduce os.system", "inst system", "gzip eval", "persid"])
def test_a_hostile_file_gets_one_sentence(name: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    file = tmp_path / "x.pickle"
    file.write_bytes(dict(hostile(f"touch {canary}"))[name])
    with pytest.raises(RidgelineError) as raised:
        read_snapshot(file)
    assert "\n" not in raised.value.message
    assert not canary.exists()


@pytest.mark.parametrize("name", [name for name, _ in bombs()])
def test_a_bomb_is_refused_soon(name: str, tmp_path: Path) -> None:
    file = tmp_path / "x.pickle"
    file.write_bytes(dict(bombs())[name])
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with pytest.raises(RidgelineError):
        read_snapshot(file)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 10


def test_a_snapshot_that_is_its_own_event_has_no_events(tmp_path: Path) -> None:
    file = tmp_path / "x.pickle"
    file.write_bytes(its_own_event())
    read = read_snapshot(file)
    assert read.events_of_devices == [0]
    assert read.damaged == 2


def test_a_gzip_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "MIN_BOMB_BYTES", 1 << 20)
    file = tmp_path / "x.pickle.gz"
    file.write_bytes(gzip.compress(b"\x80\x04" + bytes(20 << 20)))
    with pytest.raises(RidgelineError, match="unpacks"):
        read_snapshot(file)


def test_mutants_are_read_or_refused_with_a_code() -> None:
    good = pickle.dumps(snapshot(trained(1, layers=1).memory), protocol=4)
    codes = audited(list(mutants(good, 300)))["answers"]
    assert len(codes) == 300
    assert len({code for code in codes if code is not None}) >= 3


def test_the_child_has_no_right_to_write_a_file_or_start_a_process() -> None:
    code = (
        "import resource, runpy, sys; "
        f"m = runpy.run_path({unpickling.__file__!r}); m['limit_process'](1 << 30, 5); "
        "print([resource.getrlimit(k)[1] for k in (resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC, "
        "resource.RLIMIT_CORE, resource.RLIMIT_CPU, resource.RLIMIT_AS)])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [0, 0, 0, 5, 1 << 30]


def test_more_is_not_read_than_the_person_allows(tmp_path: Path) -> None:
    file = tmp_path / "x.pickle"
    file.write_bytes(snapshot_of(*[dict(EVENT) for _ in range(1000)]))
    assert read_snapshot(file, max_bytes=1 << 20).events_of_devices == [1000]
    with pytest.raises(RidgelineError, match="--max-bytes"):
        read_snapshot(file, max_bytes=1000)


def test_a_reader_that_dies_is_no_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_module, "MIN_MEMORY_BYTES", 1 << 20)
    monkeypatch.setattr(snapshot_module, "MEMORY_PER_BYTE", 0)
    file = tmp_path / "x.pickle"
    file.write_bytes(snapshot_of(dict(EVENT)))
    with pytest.raises(RidgelineError):
        read_snapshot(file)


def test_an_empty_environment_is_enough_for_the_child(tmp_path: Path) -> None:
    file = tmp_path / "x.pickle"
    file.write_bytes(snapshot_of(dict(EVENT)))
    assert read_snapshot(file).events_of_devices == [1]
