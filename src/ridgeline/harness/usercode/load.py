"""Loads the user's code by path or name, and words the errors that it raises."""

import importlib
import importlib.util
import os
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from ridgeline.errors import OutOfMemoryError, RidgelineError, TargetError, UsageError


def first_words(error: object) -> str:
    """Return the first line of an error that is not empty. If it only announces the next one, as
    "Error(s) in loading state_dict for Net:" does, return both."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    announces = len(lines) > 1 and lines[0].endswith(":")
    return " ".join(lines[: 2 if announces else 1])


def explain(error: BaseException, doing: str, memory_hint: str = "") -> RidgelineError:
    """Return an exception of the user's code as one sentence, with the line that it came from."""
    if isinstance(error, RidgelineError):
        return error
    words = first_words(error)
    if is_out_of_memory(error):
        return OutOfMemoryError(f"{doing} ran out of memory: {words[:200]}", memory_hint)
    place = user_line(error)
    hint = ""
    if isinstance(error, TypeError) and "required" in words and "argument" in words:
        hint = "name a function without arguments that builds the model"
    return TargetError(
        f"{doing} raised {type(error).__name__}{f' at {place}' if place else ''}"
        f"{f': {words[:300]}' if words else ''}",
        hint if doing.startswith("building") else "",
    )


def is_out_of_memory(error: BaseException) -> bool:
    import torch  # here, because `first_words` is also used where torch must not be imported

    words = str(error)
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "can't allocate memory" in words
        or "not enough memory" in words
    )


def user_line(error: BaseException) -> str:
    """Return file:line of the innermost frame that is neither ours nor torch's."""
    ours = str(Path(__file__).parents[2])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = frame.filename
        foreign = "site-packages" in path or path.startswith(("<", ours))
        if not foreign and "importlib" not in path and not path.startswith(sys.prefix):
            return f"{Path(path).name}:{frame.lineno}"
    return ""


def split(target: str) -> tuple[str, str]:
    """Split `where:name`; the name is "" if the target has none."""
    where, colon, name = target.rpartition(":")
    return (where, name) if colon and where and name else (target, "")


def module_at(where: str) -> ModuleType:
    """Import the module that a path or a dotted name leads to."""
    return _from_file(where) if where.endswith(".py") or "/" in where else _from_package(where)


def named(module: ModuleType, name: str, where: str) -> Any:
    """Return what a module calls `name`; dots lead into attributes."""
    value: Any = module
    for part in name.split("."):
        if not hasattr(value, part):
            raise UsageError(f"{where} has nothing called {name!r}", _similar(module, name))
        value = getattr(value, part)
    return value


def _from_file(where: str) -> ModuleType:
    path = Path(os.path.expanduser(where))  # keeps ~ for a user without a home
    if path.is_dir():
        raise UsageError(f"{where} is a folder", "name the file in it, with .py")
    if not path.is_file():
        raise UsageError(f"there is no file {where}")
    if path.suffix != ".py":
        raise UsageError(f"{where} is not a Python file", "its name must end in .py")
    root, name = _import_name(path.resolve())
    _forget_neighbours(root)
    before = set(sys.modules)
    sys.path.insert(0, str(root))  # as for a script: its neighbours import
    try:
        if "." in name:
            return importlib.import_module(name)
        spec = importlib.util.spec_from_file_location(name, path.resolve())
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        if name not in sys.modules:  # a target may be called like a module that is in use
            sys.modules[name] = module
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise explain(error, f"importing {where}") from error
    finally:
        _neighbours.setdefault(root, set()).update(set(sys.modules) - before)
    return module


_neighbours: dict[Path, set[str]] = {}
"""The modules that were imported with a target, by its import folder."""


def _import_name(path: Path) -> tuple[Path, str]:
    """Return the folder to import from and the name to import. A file in a package is imported as
    part of it, so that its relative imports work."""
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _forget_neighbours(root: Path) -> None:
    """Forget the modules imported from other folders: two targets may each have a neighbour called
    `layers`, and the second would get that of the first."""
    for folder, names in list(_neighbours.items()):
        if folder == root:
            continue
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        for name in names:
            file = getattr(sys.modules.get(name), "__file__", None)
            if file and Path(file).is_relative_to(folder):
                del sys.modules[name]
        del _neighbours[folder]


def _from_package(where: str) -> ModuleType:
    sys.path.insert(0, "")
    try:
        return importlib.import_module(where)
    except ModuleNotFoundError as error:
        if error.name and where.split(".")[0] == error.name.split(".")[0]:
            raise UsageError(
                f"no module called {where!r} can be imported",
                "for a file, write its path with .py",
            ) from error
        raise explain(error, f"importing {where}") from error
    except (Exception, SystemExit) as error:
        raise explain(error, f"importing {where}") from error


def _similar(module: ModuleType, name: str) -> str:
    """Return a hint which names of the module are similar."""
    import difflib

    own = [
        n
        for n, v in vars(module).items()
        if callable(v) and not n.startswith("_") and getattr(v, "__module__", "") == module.__name__
    ]
    close = difflib.get_close_matches(name, own, n=3)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"it has: {', '.join(own[:8])}" if own else ""
