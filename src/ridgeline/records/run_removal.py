"""Deleting a run: nothing that is not one, nothing outside it, nothing through a link."""

import contextlib
import os
import re
import shutil
import time
from typing import TYPE_CHECKING

from ridgeline.errors import RidgelineError
from ridgeline.records.run_making import HOME

if TYPE_CHECKING:
    from ridgeline.records.run_directory import RunDirectory

_NAMES = ("steps", "telemetry", "trace-rank", "capture-rank", "memory-rank", "python-", ".watch-",
          "run.json", "summary.json", "findings.json", "report.html", "stopping")  # fmt: skip
_OURS = _NAMES + tuple(f".{name}" for name in _NAMES)
"""How our files' names begin; with a dot before it, one that was being written."""
_UNFINISHED = re.compile(rf"\.(?:{'|'.join(map(re.escape, _NAMES))}).*\.(?:[0-9a-f]{{8}}|part)")
"""Names of files that were being written when their writer was killed."""


def remove(run: "RunDirectory") -> int:
    """Bytes freed. Refuses what is not a run; outside `.ridgeline/runs` deletes our own files only,
    because the user's may be beside them."""
    why = refused(run)
    if why:
        raise RidgelineError(f"{run.path} was not removed: {why}")
    before = run.size()
    try:
        if _at_home(run):
            shutil.rmtree(run.path)  # does not follow links, and refuses to begin at one
        else:
            _remove_ours(run)
    except OSError as error:
        raise RidgelineError(
            f"{run.path} was not removed whole: {error.strerror or error}"
        ) from error
    return before - run.size()


def remove_unfinished(run: "RunDirectory", min_age_s: float = 0.0) -> None:
    """Delete files that a killed process left half-written, if they were last changed at least
    `min_age_s` ago. No process may still be writing to the run."""
    for name in _names(run):
        if not _UNFINISHED.fullmatch(name):
            continue
        with contextlib.suppress(OSError):
            if time.time() - os.lstat(run.path / name).st_mtime >= min_age_s:
                os.unlink(run.path / name)


def refused(run: "RunDirectory") -> str:
    """Why this is not a run that may be deleted; "" where it is one. A damaged one is."""
    if run.path.is_symlink():
        return "it is a link"
    if not run.path.is_dir():
        return "there is no such directory"
    with contextlib.suppress(RidgelineError):
        run.run()
        return ""
    strange = sorted(name for name in _names(run) if name != HOME and not name.startswith(_OURS))
    if strange:
        return f"it is not a run: run.json cannot be read, and {strange[0]!r} is not ours"
    if not _at_home(run) and not os.path.lexists(run.run_file):
        return "it is not a run: it has no run.json"
    return ""


def _remove_ours(run: "RunDirectory") -> None:
    for name in _names(run):
        if name.startswith(_OURS) and not (run.path / name).is_dir():
            os.unlink(run.path / name)
    cache = run.path / HOME / "traces"
    if not cache.parent.is_symlink() and not cache.is_symlink() and cache.is_dir():
        shutil.rmtree(cache)
    for folder in (cache.parent, run.path):
        with contextlib.suppress(OSError):  # not empty: what is left is the user's
            os.rmdir(folder)


def _at_home(run: "RunDirectory") -> bool:
    parent = run.path.absolute().parent
    return (parent.parent.name, parent.name) == (HOME, "runs")


def _names(run: "RunDirectory") -> list[str]:
    try:
        return os.listdir(run.path)
    except OSError:
        return []
