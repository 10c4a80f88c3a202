"""The runs kept in a directory: how they are listed, found by a name, annotated, and removed."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import Sequence
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path

import msgspec
from msgspec import Struct

from ridgeline.errors import RidgelineError, UsageError
from ridgeline.records.run_directory import HOME, NewerSchema, RunDirectory, read_whole

LATEST = "latest"
_MAX_LISTED_RUNS = 5


class _Began(Struct):
    began_at: str = ""


def all_runs(root: Path) -> tuple[RunDirectory, ...]:
    """Return every run in `root`, damaged ones included, newest first. Links are skipped."""
    try:
        with os.scandir(root) as entries:
            names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise RidgelineError(f"{root} cannot be read: {error.strerror or error}") from error
    runs = [RunDirectory(root / name) for name in names if not name.startswith(".")]
    return tuple(sorted(runs, key=lambda run: (began(run), run.name), reverse=True))


def shown_folder(folder: Path) -> str:
    """Return a folder as a person would type it here: relative to the working directory if it is
    below."""
    with contextlib.suppress(OSError, ValueError):
        return str(folder.relative_to(Path.cwd()))
    return str(folder)


def began(run: RunDirectory) -> float:
    """Return when a run began, in seconds since 1970. For a damaged run this is the time when its
    directory was last changed."""
    with contextlib.suppress(OSError, RidgelineError, ValueError, OverflowError):
        return datetime.fromisoformat(read_whole(run.run_file, _Began).began_at).timestamp()
    with contextlib.suppress(OSError):
        return os.lstat(run.path).st_mtime
    return 0.0


def find(root: Path, wanted: str) -> RunDirectory:
    """Return the run that `wanted` names: by its name, by a part of it, by "latest" or by a
    path."""
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
    near = _nearest(wanted, runs)
    hint = f"did you mean: {_names(near)}" if near else f"there are: {_names(runs)}"
    raise RidgelineError(f"no run in {root} is called {wanted}", hint)


def _at(path: Path) -> RunDirectory:
    """Return the run at `path`, which may also be a file in the run's directory."""
    folder = path if path.is_dir() else path.parent
    if os.path.lexists(folder / "run.json"):
        return RunDirectory(folder.absolute())
    if not os.path.lexists(path):
        raise RidgelineError(f"there is no run at {path}: no such directory")
    raise RidgelineError(f"{path} is not a run: it has no run.json")


def _nearest(wanted: str, runs: Sequence[RunDirectory]) -> list[RunDirectory]:
    """Return the runs whose names are most like `wanted`. The program's part of a name counts too:
    "trian.py" is near 1115-120301-train."""
    programs = {run.name: run.name.split("-", 2)[-1] for run in runs}
    word = os.path.splitext(wanted)[0]
    near = [
        *get_close_matches(wanted, programs, _MAX_LISTED_RUNS),
        *get_close_matches(word, programs.values(), _MAX_LISTED_RUNS),
    ]
    return [run for run in runs if run.name in near or programs[run.name] in near]


def _names(runs: Sequence[RunDirectory]) -> str:
    more = len(runs) - _MAX_LISTED_RUNS
    named = ", ".join(run.name for run in runs[:_MAX_LISTED_RUNS])
    return f"{named} and {more} more" if more > 0 else named


NOTES_FILE = "run-notes.json"
MAX_TAGS, MAX_TAG_LENGTH, MAX_NOTES_LENGTH = 16, 40, 4000
"""Tags of a run, characters of a tag, and characters of the notes: what a table has room for."""


class RunNotes(Struct, frozen=True, kw_only=True):
    """What a person wrote about a run, in a file of its own that no run ever writes."""

    schema: int = 1
    tags: tuple[str, ...] = ()
    text: str = ""


def notes_of(run: RunDirectory) -> RunNotes:
    """Return the notes of a run; empty ones if there are none. Raise RidgelineError if they cannot
    be read."""
    try:
        return read_whole(run.path / NOTES_FILE, RunNotes)
    except FileNotFoundError:
        return RunNotes()


def write_notes(run: RunDirectory, tags: Sequence[str], text: str) -> RunNotes:
    """Replace the notes of a run, and return them as they were written: without blanks around them,
    and each tag once. Raise RidgelineError if they are too long or cannot be written."""
    kept = tuple(dict.fromkeys(tag for tag in (" ".join(tag.split()) for tag in tags) if tag))
    text = "\n".join(line.rstrip() for line in text.splitlines()).strip()
    if len(kept) > MAX_TAGS or any(len(tag) > MAX_TAG_LENGTH for tag in kept):
        raise UsageError(f"a run has at most {MAX_TAGS} tags of {MAX_TAG_LENGTH} characters")
    if len(text) > MAX_NOTES_LENGTH:
        raise UsageError(f"notes have at most {MAX_NOTES_LENGTH:,} characters")
    with contextlib.suppress(FileNotFoundError):
        _refuse_newer_notes(run)
    notes = RunNotes(tags=kept, text=text)
    try:
        run.write_whole(NOTES_FILE, msgspec.json.encode(notes))
    except (OSError, UnicodeEncodeError) as error:
        why = getattr(error, "strerror", None) or "some characters are no text"
        raise RidgelineError(f"the notes of {run.name} could not be written: {why}") from error
    return notes


def _refuse_newer_notes(run: RunDirectory) -> None:
    """Raise NewerSchema if a newer version wrote the notes: what it added would be lost."""
    try:
        read_whole(run.path / NOTES_FILE, RunNotes)
    except NewerSchema:
        raise
    except RidgelineError:
        pass  # the file is damaged: writing it again is the repair


_NAMES = ("steps", "telemetry", "trace-rank", "capture-rank", "memory-rank", "oom-rank",
          "allocations-rank", "memory.json", "python-", ".watch-", "run.json", "summary.json",
          "findings.json", "case.msgpack", "report.html", "stopping", NOTES_FILE)  # fmt: skip
_OURS = _NAMES + tuple(f".{name}" for name in _NAMES)
"""Beginnings of the names of our files. A file that was being written has a dot in front."""
_UNFINISHED = re.compile(rf"\.(?:{'|'.join(map(re.escape, _NAMES))}).*\.(?:[0-9a-f]{{8}}|part)")
"""Names of files that were being written when their writer was killed."""


def is_record(run: RunDirectory, path: Path) -> bool:
    """Return whether a file is part of what a run recorded, and may not be written over."""
    inside = path.absolute().parent.resolve() == run.path.resolve()
    return inside and path.name != "report.html" and path.name.startswith(_OURS)


def remove(run: RunDirectory) -> int:
    """Delete a run and return how many bytes that freed. Raise RidgelineError if it is not a run.
    Outside `.ridgeline/runs` only our own files are deleted, because the user's files may be beside
    them."""
    reason = refused(run)
    if reason:
        raise RidgelineError(f"{run.path} was not removed: {reason}")
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


def remove_unfinished(run: RunDirectory, min_age_s: float = 0.0) -> None:
    """Delete files that a killed process left half-written, if they were last changed at least
    `min_age_s` ago. No process may still be writing to the run."""
    for name in _file_names(run):
        if not _UNFINISHED.fullmatch(name):
            continue
        with contextlib.suppress(OSError):
            if time.time() - os.lstat(run.path / name).st_mtime >= min_age_s:
                os.unlink(run.path / name)


def refused(run: RunDirectory) -> str:
    """Return why a directory may not be deleted as a run; "" if it may. A damaged run may be."""
    if run.path.is_symlink():
        return "it is a link"
    if not run.path.is_dir():
        return "there is no such directory"
    with contextlib.suppress(RidgelineError):
        run.run()
        return ""
    foreign = sorted(
        name for name in _file_names(run) if name != HOME and not name.startswith(_OURS)
    )
    if foreign:
        return f"it is not a run: run.json cannot be read, and {foreign[0]!r} is not ours"
    if not _at_home(run) and not os.path.lexists(run.run_file):
        return "it is not a run: it has no run.json"
    return ""


def _remove_ours(run: RunDirectory) -> None:
    for name in _file_names(run):
        if name.startswith(_OURS) and not (run.path / name).is_dir():
            os.unlink(run.path / name)
    cache = run.path / HOME / "traces"
    if not cache.parent.is_symlink() and not cache.is_symlink() and cache.is_dir():
        shutil.rmtree(cache)
    for folder in (cache.parent, run.path):
        with contextlib.suppress(OSError):  # not empty: what is left is the user's
            os.rmdir(folder)


def _at_home(run: RunDirectory) -> bool:
    parent = run.path.absolute().parent
    return (parent.parent.name, parent.name) == (HOME, "runs")


def _file_names(run: RunDirectory) -> list[str]:
    try:
        return os.listdir(run.path)
    except OSError:
        return []
