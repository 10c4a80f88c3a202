"""Making a run's directory: for its user alone, and never through a link."""

import contextlib
import os
import re
import stat
from datetime import datetime
from pathlib import Path

from ridgeline.errors import RidgelineError
from ridgeline.records.run import TargetKind

HOME = ".ridgeline"
MAX_PROGRAM_NAME_LENGTH = 40


def make_directory(root: Path, name: str, shared: bool) -> Path:
    """See RunDirectory.make."""
    _refuse_name(name)
    try:
        _make_root(root)
        for number in range(1, 1000):
            path = root / (name if number == 1 else f"{name}-{number}")
            if _made(path) or shared:
                return path
    except OSError as error:
        raise RidgelineError(
            f"a run directory cannot be made in {root}: {error.strerror or error}",
            "choose another place with --runs-dir",
        ) from error
    raise RidgelineError(f"there are a thousand runs called {name} in {root}")


def runs_root(directory: Path | None = None) -> Path:
    """Where the runs of programs started in `directory` are kept."""
    return (Path.cwd() if directory is None else directory) / HOME / "runs"


def run_name(kind: TargetKind, program: str, at: datetime) -> str:
    """Return the name of a run that begins at `at`, such as 1115-120301-train."""
    stem = {"script": Path(program).stem, "module": program, "code": "code"}.get(kind)
    if stem in ("__main__", ""):
        stem = Path(program).absolute().parent.name
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", stem or "program").strip("-.")
    return f"{at:%m%d-%H%M%S}-{word[:MAX_PROGRAM_NAME_LENGTH] or 'program'}"


def restarted_name(name: str, restarts: int) -> str:
    """Return the name of a job's run after this number of restarts; `name` is the first run's."""
    return f"{name}-restart{restarts}" if restarts else name


def _refuse_name(name: str) -> None:
    if not name or name.startswith(".") or len(name) > 120 or not name.isprintable():
        raise RidgelineError(f"{name!r} cannot be the name of a run")
    if "/" in name or "\\" in name:
        raise RidgelineError(f"{name!r} cannot be the name of a run: it is a path")


def _make_root(root: Path) -> None:
    home = root.parent
    if (home.name, root.name) != (HOME, "runs"):
        root.mkdir(mode=0o700, parents=True, exist_ok=True)
        return
    if _made(home):
        with contextlib.suppress(OSError), open(home / ".gitignore", "x") as file:
            file.write("*\n")
    _made(root)


def _made(path: Path) -> bool:
    """Whether `path` had to be made. What is there already must be a directory of this user, not a
    link: a folder that others can write to, or a repository, may hold one that leads elsewhere."""
    try:
        os.mkdir(path, 0o700)
        return True
    except FileExistsError:
        found = os.lstat(path)
    if stat.S_ISLNK(found.st_mode):
        raise RidgelineError(f"{path} is a link, and links are not followed", "remove it")
    if not stat.S_ISDIR(found.st_mode):
        raise RidgelineError(f"{path} is in the way: it is not a directory")
    # Who owns the folder around it can put anything there anyway; and some shared file systems
    # show one owner for everything.
    trusted = {0, os.geteuid(), os.lstat(path.absolute().parent).st_uid}
    if os.geteuid() != 0 and found.st_uid not in trusted:
        hint = "choose another place with --runs-dir"
        raise RidgelineError(f"{path} belongs to another user", hint)
    return False
