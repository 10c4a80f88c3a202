"""The frames of a sampled Python stack: whose code each is, and what a library's is called."""

import os
import re
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from importlib.machinery import PathFinder
from typing import NamedTuple

from ridgeline.harness.capture import places

_PACKAGED = re.compile(r"^.*[/\\](?:site-packages|dist-packages|lib[/\\]python3\.\d+)[/\\]")
_COMPREHENSION = re.compile(r"(?:(?:\.<locals>)?\.<(?:listcomp|dictcomp|setcomp|genexpr)>)+$")
_WAITING = re.compile(
    r"[/\\](?:threading|queue|selectors|multiprocessing[/\\](?:queues|connection|synchronize))\.py$"
)
_PLUMBING = re.compile(
    r"(?:^|\.)(?:_wrapped_call_impl|_call_impl|wrapper|wrapped|_wrapped|inner|_fn|_use_grad|"
    r"decorate_context|decorate_autocast|__torch_function__|contextmanager|call_wrapped)$"
)
"""Functions that only hand on: what they call is what the user called."""
_OURS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_HOOKS = os.path.join(_OURS, "harness", "capture", "")
_HANDS_ON = re.compile(r"(?:[.]zero_grad|WorkerLoop[.]__call__)$")
"""Of our own frames: beneath these runs what the program asked for."""
LOADER_WAIT = "DataLoader, waiting for a batch"
_TYPED = ("<string>", "<stdin>")


class Frame(NamedTuple):
    file: str
    line: int
    function: str


HOOK = Frame("<ridgeline>", 0, "")
"""Stands for our own hooks where they are at work."""


def frames_of(stack: Iterable[str]) -> list[Frame]:
    """Those that can be read; a comprehension is its function's line."""
    found = []
    for text in stack:
        file, _, rest = text.rpartition(":")
        file, _, line = file.rpartition(":")
        if file and line.isdecimal() and len(line) < 10 and not file.startswith(_OURS):
            # the dot: at the top of a module a comprehension's name has none before it
            function = _COMPREHENSION.sub("", f".{rest}")[1:] or "<module>"
            found.append(Frame(file, int(line), function))
        elif file.startswith(_HOOKS) and not _HANDS_ON.search(rest):
            found.append(HOOK)
    return found


def is_not_the_programs(beneath: Sequence[Frame]) -> bool:
    """Whether what the user's line called is our own hook, or the import system: start-up."""
    importing = any(frame.file.startswith("<frozen importlib.") for frame in beneath[:2])
    return importing or HOOK in beneath


@cache
def is_users(file: str) -> bool:
    """Whether a file is in no library, torch's own sources and what it generates included."""
    return places.own(file) and "torchinductor_" not in file and not file.startswith(_torchs())


@cache
def is_not_core(file: str) -> bool:
    """Whether it is neither torch's nor the standard library's: a library run as a program is its
    user's own."""
    if "torchinductor_" in file or file.startswith(("<", *_torchs())):
        return False
    packaged = "site-packages" in file or "dist-packages" in file
    return packaged or not os.path.realpath(file).startswith(_standard())


def owner(stacks: Iterable[Sequence[Frame]]) -> Callable[[str], bool]:
    """Who the user is, as far as the stacks show it."""
    typed = known = False
    for frames in stacks:
        # Code given by -c has no file; a dataclass's made functions bear that name elsewhere too.
        typed |= bool(frames) and frames[0].file in _TYPED and frames[0].function == "<module>"
        known |= any(is_users(frame.file) for frame in frames)
    if typed:
        return lambda file: file in _TYPED or is_users(file)
    return is_users if known else is_not_core


def called(frames: Sequence[Frame]) -> str:
    """What the user's line called, from the library frames beneath it: PIL.Image.Image.resize."""
    if not frames:
        return ""
    if is_loader_wait(frames):
        return LOADER_WAIT
    telling = next((f for f in frames if not _PLUMBING.search(f.function)), frames[-1])
    return named(telling)


def is_loader_wait(frames: Sequence[Frame]) -> bool:
    """The program wants the next batch, and no worker has one."""
    asked = any(
        f.function.endswith("DataLoaderIter.__next__") and f.file.endswith("dataloader.py")
        for f in frames
    )
    return asked and _WAITING.search(frames[-1].file) is not None


def is_idle_worker(frames: Sequence[Frame]) -> bool:
    """A worker without an index to fetch: straight from its loop into the queue."""
    return len(frames) > 1 and is_worker_loop(frames[0]) and bool(_WAITING.search(frames[1].file))


def is_worker_loop(frame: Frame) -> bool:
    return frame.function == "_worker_loop" and frame.file.endswith("worker.py")


def is_fetching(frame: Frame) -> bool:
    """The loader's own way from the worker's loop to the dataset."""
    return is_worker_loop(frame) or bool(re.search(r"[/\\]_utils[/\\]fetch\.py$", frame.file))


def named(frame: Frame) -> str:
    """module.function, as one would import it."""
    file = frame.file
    if file.startswith("<"):
        module = file.strip("<>").removeprefix("frozen ")
    elif _PACKAGED.match(file):
        module = re.sub(r"[/\\]", ".", _PACKAGED.sub("", file))
    else:
        module = re.split(r"[/\\]", file)[-1]
    module = module.removesuffix(".py").removesuffix(".__init__")
    return f"{module}.{frame.function.replace('<locals>.', '')}"


@cache
def _torchs() -> tuple[str, ...]:
    """Torch's folder, which may be a checkout; found without importing it."""
    try:
        spec = PathFinder.find_spec("torch")
    except Exception:  # a path entry that cannot be read: torch's frames count as a library's
        return ()
    return tuple(f"{path}{os.sep}" for path in (spec and spec.submodule_search_locations) or ())


@cache
def _standard() -> tuple[str, ...]:
    found = {sysconfig.get_path(key) for key in ("stdlib", "platstdlib")}
    return tuple(f"{os.path.realpath(path)}{os.sep}" for path in found if path)
