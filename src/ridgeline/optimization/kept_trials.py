"""Trials of earlier calls: a second one of the same program goes on where the first ended.

The n-th trial of a plan is the n-th that was kept, so the search takes the way it took before until
it asks for one that was not run. Nothing is kept of another program: any change of its source, its
arguments, torch or the machine is another one. Data files are not looked at.
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

RECORDED = "6"
"""What a trial notes: those that noted less are not gone on from."""
MOST_FILES = 2_000
_SKIPPED = {"__pycache__", "node_modules", "site-packages"}
_VARIABLES = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTORCH_ALLOC_CONF")


class KeptTrials:
    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._taken: dict[str, int] = {}

    def take(self, plan: Plan) -> Outcome | None:
        """The next one of this plan."""
        if self._folder is None:
            return None
        name = self._name(plan)
        try:
            kept = _decoded(self._folder / name)
        except (OSError, msgspec.DecodeError):
            return None
        number = self._taken.get(name, 0)
        if number >= len(kept):
            return None
        self._taken[name] = number + 1
        return kept[number]

    def forget(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._taken = {}

    def put(self, plan: Plan, outcome: Outcome) -> None:
        """Failures too: what fails, or hangs, is not tried again. But what the budget ended tells
        nothing."""
        if self._folder is None or outcome.cut:
            return
        name = self._name(plan)
        path = self._folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            before = _decoded(path)
        except (OSError, msgspec.DecodeError):
            before = []
        self._taken[name] = len(before) + 1
        temporary = path.with_suffix(".part")
        try:
            temporary.write_bytes(msgspec.msgpack.encode([*before, outcome]))
            temporary.replace(path)
        except OSError:  # a full disk costs the next call time, not this one its answer
            temporary.unlink(missing_ok=True)

    def _name(self, plan: Plan) -> str:
        text = msgspec.json.encode(plan, order="deterministic")
        return hashlib.sha256(text).hexdigest()[:16] + ".msgpack"


def _decoded(path: Path) -> list[Outcome]:
    """JSON has no nan: a loss that broke would come back as one that was not seen."""
    return msgspec.msgpack.decode(path.read_bytes(), type=list[Outcome])


def identity(target: Target) -> str:
    """Of a program on this machine."""
    parts = [RECORDED, target.kind, target.name, *target.arguments, os.getcwd(), platform.node()]
    parts += [sys.version, _version("torch"), _version("ridgeline"), _devices()]
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
    """Python files under the program's folder; what we wrote there is not its own."""
    found = 0
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
                found += 1
                if found >= MOST_FILES:
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
