"""DataLoader workers that sample themselves.

A DataLoader looks up `torch.utils.data._utils.worker._worker_loop` each time it starts a worker: a
callable of ours stands there, begins a Sampler in the worker and calls torch's own. A worker that
the loader kills loses at most the second it had not written yet.
"""

import os
import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType

from ridgeline.harness.capture.sampling.sampler import Sampler

_MODULE = "torch.utils.data._utils.worker"
_NAME = "_worker_loop"
_OVER = ".python-over"
"""In the run's folder: the window is past, workers stop sampling within a second."""
MOST_FILES = 256
"""Processes that leave a file; a loader without persistent workers starts new ones each epoch."""
UNASKED_FILES = 64

Loop = Callable[..., object]


class WorkerLoop:
    """Torch's worker loop with a Sampler beside it."""

    def __init__(self, original: Loop, directory: str, asked: bool = True) -> None:
        self.original = original
        self.asked = asked
        self.directory = directory
        """Empty: it does nothing of its own any more."""
        self.__module__ = _MODULE  # where pickle looks for it by name

    def __call__(self, *args: object, **options: object) -> object:
        sampler = _begun(self, args, options)
        try:
            return self.original(*args, **options)
        finally:
            if sampler is not None:
                sampler.stop()

    def __reduce__(self) -> str | tuple[object, ...]:
        """A spawned worker gets the folder and finds torch's loop by its name. Where it could not
        import us it must run all the same: it gets that name alone, or the loop itself."""
        if self.directory and _worker_can_import_us():
            loop = None if _is_torchs(self.original) else self.original
            return restored, (self.directory, loop, self.asked)
        if getattr(sys.modules.get(_MODULE), _NAME, None) is self:
            return _NAME
        return partial, (self.original,)


def restored(directory: str, original: Loop | None, asked: bool = True) -> Loop:
    """The loop in a spawned worker's process, where torch's own is in its place."""
    loop: Loop = getattr(import_module(_MODULE), _NAME) if original is None else original
    return WorkerLoop(loop.original if isinstance(loop, WorkerLoop) else loop, directory, asked)


_installed: list[tuple[ModuleType, WorkerLoop]] = []
"""The one that stands there, or nothing."""


def install(directory: Path, asked: bool = True) -> None:
    """Workers started from now on write python-<pid>.jsonl in `directory`, an existing folder;
    fewer and shorter ones where nobody asked for them."""
    if _installed:
        return
    (directory / _OVER).unlink(missing_ok=True)
    module = import_module(_MODULE)
    ours = WorkerLoop(getattr(module, _NAME), str(directory.absolute()), asked)
    setattr(module, _NAME, ours)
    _installed.append((module, ours))


def uninstall() -> None:
    """Ends the sampling of running workers too. What the program put in our place stays."""
    while _installed:
        module, ours = _installed.pop()
        directory, ours.directory = Path(ours.directory), ""
        if getattr(module, _NAME, None) is ours:
            setattr(module, _NAME, ours.original)
        try:
            (directory / _OVER).touch()
        except OSError:
            continue  # they end by themselves, after ten minutes at the latest


def _begun(
    loop: WorkerLoop, args: tuple[object, ...], options: dict[str, object]
) -> Sampler | None:
    """None where it cannot be: the worker goes on without."""
    try:
        over = os.path.join(loop.directory, _OVER)
        most = MOST_FILES if loop.asked else UNASKED_FILES
        if not loop.directory or os.path.exists(over) or _files(loop.directory) >= most:
            return None
        sampler = Sampler(
            Path(loop.directory),
            "worker",
            _number(loop.original, args, options),
            beneath=WorkerLoop.__call__.__code__,
            over=partial(os.path.exists, over),
            asked=loop.asked,
        )
        sampler.start()
    except Exception:  # the worker goes on, unseen
        return None
    return sampler


def _files(directory: str) -> int:
    return sum(name.startswith("python-") for name in os.listdir(directory))


def _number(loop: Loop, args: tuple[object, ...], options: dict[str, object]) -> int:
    """The worker's, among its arguments: which one it is depends on torch's version."""
    found = options.get("worker_id")
    names = loop.__code__.co_varnames if hasattr(loop, "__code__") else ()
    if found is None and "worker_id" in names:
        place = names.index("worker_id")
        found = args[place] if place < len(args) else None
    return found if isinstance(found, int) else -1


def _is_torchs(loop: Loop) -> bool:
    where = (getattr(loop, "__module__", ""), getattr(loop, "__qualname__", ""))
    return where == (_MODULE, _NAME)


def _worker_can_import_us() -> bool:
    """A spawned process gets this one's search path, and nothing else of it."""
    package = __name__.partition(".")[0]
    try:
        found = PathFinder.find_spec(package, sys.path)
        ours = sys.modules[package].__file__
        return found is not None and ours is not None and found.origin == ours
    except Exception:  # a finder of somebody's own: then the worker is left alone
        return False
