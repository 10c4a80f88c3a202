"""The runs kept in a directory, and the one a person means."""

import contextlib
import os
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from msgspec import Struct

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.run_directory import RunDirectory
from ridgeline.records.run_reading import read_whole

LATEST = "latest"
_MOST_NAMED = 5


class _Began(Struct):
    began_at: str = ""


def all_runs(root: Path) -> tuple[RunDirectory, ...]:
    """Every directory in `root`, damaged ones too, newest first; links are left out."""
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise RidgelineError(f"{root} cannot be read: {error.strerror or error}") from error
    runs = [RunDirectory(root / name) for name in names if not name.startswith(".")]
    return tuple(sorted(runs, key=lambda run: (began(run), run.name), reverse=True))


def began(run: RunDirectory) -> float:
    """When it began, in seconds since 1970; of a damaged one when its directory changed."""
    with contextlib.suppress(OSError, RidgelineError, ValueError, OverflowError):
        return datetime.fromisoformat(read_whole(run.run_file, _Began).began_at).timestamp()
    with contextlib.suppress(OSError):
        return os.lstat(run.path).st_mtime
    return 0.0


def find(root: Path, wanted: str) -> RunDirectory:
    """The run `wanted` means: its name, a part of it, "latest", or a path."""
    if os.sep in wanted or wanted in (".", ".."):
        return _at(Path(wanted))
    runs = all_runs(root)
    exact = [run for run in runs if run.name == wanted]
    if wanted == LATEST and runs and not exact:
        return runs[0]
    ends = [run for run in runs if run.name.startswith(wanted) or run.name.endswith(wanted)]
    part = ends or [run for run in runs if wanted in run.name]
    matching = exact or (part if wanted else [])
    if len(matching) == 1:
        return matching[0]
    if matching:
        raise UsageError(
            f"{wanted} could be any of {len(matching)} runs: {_names(matching)}",
            "type more of the name, or: latest",
        )
    if wanted and os.path.lexists(Path(wanted) / "run.json"):
        return _at(Path(wanted))
    if not runs:
        raise RidgelineError(f"there are no runs in {root}", "ridgeline run train.py makes one")
    raise RidgelineError(f"no run in {root} is called {wanted}", f"there are: {_names(runs)}")


def _at(path: Path) -> RunDirectory:
    """A run by its path, or by that of a file in it."""
    folder = path if path.is_dir() else path.parent
    if os.path.lexists(folder / "run.json"):
        return RunDirectory(folder.absolute())
    if not os.path.lexists(path):
        raise RidgelineError(f"there is no run at {path}: no such directory")
    raise RidgelineError(f"{path} is not a run: it has no run.json")


def _names(runs: Sequence[RunDirectory]) -> str:
    more = len(runs) - _MOST_NAMED
    named = ", ".join(run.name for run in runs[:_MOST_NAMED])
    return f"{named} and {more} more" if more > 0 else named
