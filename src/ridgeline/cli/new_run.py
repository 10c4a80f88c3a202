"""A run's directory, made before the program starts; ranks of one job share one."""

import contextlib
import os
import re
import time
from datetime import datetime
from pathlib import Path

from ridgeline.capture.redaction import redacted, redacted_text
from ridgeline.cli.target import Given
from ridgeline.errors import RidgelineError
from ridgeline.integrations.beginning import begun
from ridgeline.machine.cache import folder
from ridgeline.records.run import Settings, Target
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_making import runs_root

_LONGEST_NAME = 40
_LONGEST_CODE = 200


def new_run(given: Given, settings: Settings, runs_dir: Path | None) -> tuple[RunDirectory, int]:
    """The directory with its run.json, and this process's rank. Where `.ridgeline` cannot be made
    the run is kept in the cache folder, and the place is said with the verdict."""
    rank = _number("RANK")
    world = max(_number("WORLD_SIZE", 1), 1)
    name = run_name(given, world)
    root = runs_dir if runs_dir is not None else runs_root()
    try:
        directory = RunDirectory.make(root, name, shared=world > 1)
    except (OSError, RidgelineError):
        if runs_dir is not None:
            raise
        directory = RunDirectory.make(folder() / "runs", name, shared=world > 1)
    # A job of several machines keeps one directory a machine: its first local rank speaks.
    if _number("LOCAL_RANK") == 0:
        try:
            begun(directory, _target(given), settings, world)
        except OSError:
            with contextlib.suppress(OSError):
                directory.path.rmdir()  # an empty folder would be listed as a damaged run
            raise
    else:
        _wait_for(directory.run_file)
    return directory, rank


def run_name(given: Given, world: int) -> str:
    """1115-120301-train. Ranks derive the same from when their common parent began."""
    stem = {"script": Path(given.name).stem, "module": given.name, "code": "code"}.get(given.kind)
    if stem in ("__main__", ""):
        stem = Path(given.name).absolute().parent.name
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem or "program").strip("-.")[:_LONGEST_NAME]
    at = datetime.now()
    again = node = ""
    if world > 1:
        at = datetime.fromtimestamp(_parent_began())
        restarts = _number("TORCHELASTIC_RESTART_COUNT")
        again = f"-restart{restarts}" if restarts else ""
        node = f"-node{_number('GROUP_RANK')}" if _number("GROUP_WORLD_SIZE", 1) > 1 else ""
    return f"{at:%m%d-%H%M%S}-{word or 'program'}{node}{again}"


def _target(given: Given) -> Target:
    code = given.kind == "code"
    return Target(
        kind=given.kind,
        name=redacted_text(given.name[:_LONGEST_CODE]) if code else given.name,
        arguments=redacted(given.arguments),
    )


def _wait_for(file: Path) -> None:
    """Another rank writes it, in the same moment."""
    end = time.monotonic() + 10
    while not file.exists() and time.monotonic() < end:
        time.sleep(0.01)


def _parent_began() -> float:
    import psutil

    return float(psutil.Process(os.getppid()).create_time())


def _number(name: str, default: int = 0) -> int:
    try:
        return int(os.environ.get(name, default))
    except ValueError:
        return default
