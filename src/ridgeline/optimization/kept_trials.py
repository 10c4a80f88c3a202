"""Trials of earlier calls: a second call for the same program continues where the first ended.

The n-th trial of a plan is the n-th that was kept, so that the search repeats what it did until it
asks for a trial that was not run. Any change of the program's source, its arguments, torch or the
machine makes it another program. Data files are not looked at.
"""

import hashlib
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from ridgeline.harness.trials.trial_process import Outcome
from ridgeline.optimization.launcher import script_of
from ridgeline.records.run import Target
from ridgeline.records.trial import Plan

RECORD_VERSION = "8"
"""Changes whenever a trial notes something new, so that older trials are not used."""
MAX_SOURCE_FILES = 2_000
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_ALLOC_CONF")


class KeptTrials:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._taken: dict[str, int] = {}

    def take(self, plan: Plan) -> Outcome | None:
        """Return the next trial of this plan; None if there is none."""
        if self._folder is None:
            return None
        name = _file_name(plan)
        kept, number = _read(self._folder / name), self._taken.get(name, 0)
        if number >= len(kept):
            return None
        self._taken[name] = number + 1
        return kept[number]

    def forget(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._taken = {}

    def put(self, plan: Plan, outcome: Outcome) -> None:
        """Keep an outcome. Failures are kept too: what fails or hangs is not tried again. What the
        budget ended is not kept, because it tells nothing."""
        if self._folder is None or outcome.cut:
            return
        path = self._folder / _file_name(plan)
        before = _read(path)
        self._taken[path.name] = len(before) + 1
        temporary = path.with_suffix(".part")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(msgspec.msgpack.encode([*before, outcome]))
            temporary.replace(path)
        except OSError:  # a full disk costs the next call time, not this one its answer
            temporary.unlink(missing_ok=True)


def _file_name(plan: Plan) -> str:
    text = msgspec.json.encode(plan, order="deterministic")
    return hashlib.sha256(text).hexdigest()[:16] + ".msgpack"


def _read(path: Path) -> list[Outcome]:
    """Return what was kept in a file. It is not JSON, which has no nan: a loss that broke would
    come back as one that was not seen."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=list[Outcome])
    except (OSError, msgspec.DecodeError):
        return []


def identity(target: Target) -> str:
    """Return a short name for a program on this machine, which changes with its source."""
    parts = [RECORD_VERSION, target.kind, target.name, *target.arguments, os.getcwd()]
    parts += [platform.node(), sys.version, _version("torch"), _version("ridgeline"), _devices()]
    parts += [f"{name}={os.environ.get(name, '')}" for name in _VARIABLES]
    digest = hashlib.sha256("\0".join(parts).encode())
    script = script_of(target)
    home = Path(script.name).resolve().parent if script is not None else Path.cwd()
    for file in _sources(home):
        try:
            digest.update(f"{file}\0{file.stat().st_size}\0".encode())
            digest.update(file.read_bytes())
        except OSError:
            continue
    return digest.hexdigest()[:12]


def _sources(home: Path) -> Iterator[Path]:
    """Return the Python files under the program's folder, without the copies that we wrote."""
    count = 0
    for folder, inside, names in os.walk(home):
        inside[:] = sorted(
            name
            for name in inside
            if not name.startswith(".") and name not in _SKIPPED
            and not (Path(folder) / name / "pyvenv.cfg").exists()
        )  # fmt: skip
        for name in sorted(names):
            if name.endswith(".py") and not name.startswith("optimized_"):
                yield Path(folder) / name
                count += 1
                if count >= MAX_SOURCE_FILES:
                    return


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return ""


def _devices() -> str:
    try:
        return "".join(sorted(path.name for path in Path("/proc/driver/nvidia/gpus").iterdir()))
    except OSError:
        return ""
