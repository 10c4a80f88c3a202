"""Reads once what a run directory holds. Parts that cannot be read are left out and named."""

import re
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from ridgeline.errors import RidgelineError
from ridgeline.records.run import Capture, RunFile, Step, Target, Telemetry
from ridgeline.records.run_directory import Lines, NewerSchema, RunDirectory

T = TypeVar("T")


class Attempts:
    """Tries the parts of a conclusion one by one. A part that fails costs itself, and leaves a
    sentence."""

    def __init__(self) -> None:
        self.failures: list[str] = []

    def part(self, what: str, do: Callable[[], T]) -> T | None:
        """Return what `do` gives; None if it fails for whatever reason. Files of a killed program
        can be damaged in ways nobody has seen, and the rest of the run must still be concluded."""
        try:
            return do()
        except RidgelineError as error:
            self.failures.append(f"{what} could not be read: {error.message}")
        except Exception as error:
            why = " ".join(str(error).split())[:200]
            text = f"{type(error).__name__}: {why}" if why else type(error).__name__
            self.failures.append(f"{what} failed ({text})")
        return None


MAX_COMPARED_RANKS = 16
"""How many ranks are compared by their steps and traces: 16 traces of 5 MB take seconds."""


class RunRead(Struct, frozen=True, kw_only=True):
    run: RunFile
    capture: Capture | None = None
    """The capture of the lowest rank that imported torch, else of the lowest rank that has one."""
    steps: tuple[Step, ...] = ()
    """The steps of that rank, by index."""
    telemetry: tuple[Telemetry, ...] = ()
    all_telemetry: tuple[Telemetry, ...] = ()
    """The telemetry of every rank: each watches its own GPU."""
    ranks: int = 1
    trace_files: tuple[Path, ...] = ()
    """The traces of all ranks that left one, by rank."""
    captures: tuple[Capture, ...] = ()
    """The captures of all ranks that have one, in order of rank."""
    last_seen_ns: dict[int, int] = {}
    """When the watcher of each rank last saw it alive."""
    rank_steps: dict[int, tuple[Step, ...]] = {}
    """The steps of the first ranks, by rank; empty for a job of one rank."""

    @property
    def on_gpu(self) -> bool:
        return self.capture is not None and self.capture.device.kind == "cuda"


def read_run(directory: RunDirectory, attempts: Attempts) -> RunRead:
    """Read a run. Raise NewerSchema if a newer version wrote it: nothing in such a run can be
    trusted to mean what it did. Nothing else is raised."""
    run = read_run_file(directory, attempts)
    captures = _captures(directory, attempts)
    capture = next((c for c in captures if c.torch_imported), captures[0] if captures else None)
    rank = capture.rank if capture is not None else 0
    telemetry = readable_lines("telemetry", directory.telemetry, rank, attempts)
    others: list[Telemetry] = []
    last_seen = {rank: telemetry[-1].at_ns} if telemetry else {}
    ranks = [rank, *(c.rank for c in captures if c.rank != rank)]
    for other in ranks[1:]:
        found = readable_lines("telemetry", directory.telemetry, other, attempts)
        others += found
        if found:
            last_seen[other] = found[-1].at_ns
    steps = {
        one: ordered_steps(readable_lines("steps", directory.steps, one, attempts))
        for one in ranks[:MAX_COMPARED_RANKS]
    }
    return RunRead(
        run=run,
        capture=capture,
        steps=steps[rank],
        telemetry=tuple(telemetry),
        all_telemetry=(*telemetry, *others),
        ranks=max([1, run.ranks, *(c.world for c in captures)]),
        trace_files=tuple(
            path for c in captures if (path := directory.trace_file(c.rank)).is_file()
        ),
        captures=captures,
        last_seen_ns=last_seen,
        rank_steps=steps if len(steps) > 1 else {},
    )


def read_run_file(directory: RunDirectory, attempts: Attempts) -> RunFile:
    """Read run.json. If it is damaged, return a record that says so, and note why in `attempts`."""
    try:
        return directory.run()
    except NewerSchema:
        raise
    except RidgelineError as error:
        attempts.failures.append(error.message)
    target = Target(kind="script", name="")
    return RunFile(name=directory.path.name, target=target, status="damaged")


def _captures(directory: RunDirectory, attempts: Attempts) -> tuple[Capture, ...]:
    try:
        found, damage = directory.read_captures()
        attempts.failures += damage
    except NewerSchema:
        raise
    except RidgelineError as error:
        attempts.failures.append(error.message)
        return ()
    return tuple(sorted(found, key=lambda capture: capture.rank))


def readable_lines(
    what: str, read: Callable[[int], Lines[T]], rank: int, attempts: Attempts
) -> Lines[T]:
    """Return the lines that can be read, and note in `attempts` that others could not."""
    found = attempts.part(what, lambda: read(rank))
    if found is None:
        return Lines()
    if found.damaged:
        noun = "line" if found.damaged == 1 else "lines"
        attempts.failures.append(f"{found.damaged} {noun} of {what} could not be read: left out")
    if found.unread_bytes:
        attempts.failures.append(f"the end of {what} was not read: the file is too large")
    return found


def ordered_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    """Return the steps by index. Of a step that was written twice the later one counts."""
    return tuple(step for _, step in sorted({step.index: step for step in steps}.items()))


_PLACE = re.compile(r"(.+?\.py)(:\d+.*)", re.DOTALL)


class FileNames:
    """Gives each file of the program one name in a report: as it was typed, or where it lies,
    without the run's own folder.

    Kineto strips the search path from file names, the hooks in the program give whole paths, and
    the command names the script as somebody typed it. One of them can be found from the others."""

    def __init__(self, run: RunFile, capture: Capture | None) -> None:
        self._folder = run.environment.folder.rstrip("/")
        script = run.target.name if run.target.kind == "script" else ""
        self._roots = [Path(self._folder)] if self._folder else []
        self._known = []
        if script:
            whole = Path(self._folder) / script
            self._roots.append(whole.parent)
            self._known.append(str(whole))
        self._known += _places(capture)
        self._found: dict[str, str] = {}

    def shown(self, file: str) -> str:
        if file not in self._found:
            whole = self._whole(file)
            self._found[file] = whole.removeprefix(f"{self._folder}/") if self._folder else whole
        return self._found[file]

    def place(self, text: str) -> str:
        """Return `train.py:12`, and whatever follows it, with the name of the file that is
        shown."""
        parts = _PLACE.fullmatch(text)
        return self.shown(parts[1]) + parts[2] if parts is not None else self.shown(text)

    def short(self, text: str) -> str:
        """Return a text without the folder that the program ran in, wherever a path has it."""
        if not self._folder:
            return text
        return re.sub(rf"(?<![\w./-]){re.escape(self._folder)}/", "", text)

    def _whole(self, file: str) -> str:
        """Return the path of a bare name, found among the known files, else on the disk."""
        if not file or Path(file).is_absolute():
            return file
        ends = {one for one in self._known if one.endswith(f"/{file.removeprefix('./')}")}
        if len(ends) == 1:
            return ends.pop()
        there = (str(root / file) for root in self._roots if _is_file(root / file))
        return next(there, file)


def _places(capture: Capture | None) -> list[str]:
    if capture is None:
        return []
    seen: Iterable[str] = (
        one.place for part in (capture.loaders, capture.modules, capture.optimizers) for one in part
    )
    return [place.rpartition(":")[0] for place in seen if place.startswith("/")]


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False
