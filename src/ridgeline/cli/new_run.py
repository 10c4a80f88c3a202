"""A run's directory, made before the program starts; ranks of one job share one."""

import contextlib
import os
import time
from datetime import datetime
from pathlib import Path

from ridgeline.cli.target import Given
from ridgeline.errors import RidgelineError
from ridgeline.harness.capture.redaction import redacted, redacted_text
from ridgeline.integrations.run_lifecycle import begin_run
from ridgeline.machine.cache_folder import folder
from ridgeline.records.run import Settings, Target
from ridgeline.records.run_directory import RunDirectory, restarted_name, run_name, runs_root

_LONGEST_CODE = 200


def new_run(
    given: Given, settings: Settings, runs_dir: Path | None, own_dir: Path | None = None
) -> tuple[RunDirectory, int]:
    """Return the run's directory, with run.json written, and this process's rank. `own_dir` is the
    run's directory if the caller has already made it; otherwise one is made in `runs_dir`. If
    `.ridgeline` cannot be made, the run is kept in the cache folder, and the verdict names that
    place."""
    rank = _number("RANK")
    world = max(_number("WORLD_SIZE", 1), 1)
    name = own_dir.name if own_dir is not None else _name(given, world)
    name = restarted_name(name, _number("TORCHELASTIC_RESTART_COUNT") if world > 1 else 0)
    root = runs_dir if runs_dir is not None else runs_root()
    if own_dir is not None:
        runs_dir = root = own_dir.parent
    try:
        directory = RunDirectory.make(root, name, shared=world > 1 or own_dir is not None)
    except (OSError, RidgelineError):
        if runs_dir is not None:
            raise
        directory = RunDirectory.make(folder() / "runs", name, shared=world > 1)
    # A job of several machines keeps one directory a machine: its first local rank speaks.
    if _number("LOCAL_RANK") == 0:
        try:
            begin_run(directory, _target(given), settings, world)
        except OSError:
            with contextlib.suppress(OSError):
                directory.path.rmdir()  # an empty folder would be listed as a damaged run
            raise
    else:
        _wait_for(directory.run_file)
    return directory, rank


def _name(given: Given, world: int) -> str:
    """Return the name of the run, such as 1115-120301-train. All ranks derive the same name from
    the time at which their common parent began."""
    if world == 1:
        return run_name(given.kind, given.name, datetime.now())
    name = run_name(given.kind, given.name, datetime.fromtimestamp(_parent_began()))
    several = _number("GROUP_WORLD_SIZE", 1) > 1
    return f"{name}-node{_number('GROUP_RANK')}" if several else name


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
