"""A target on the command line, `file.py:name` or `package.module:name`: a module and inputs."""

import difflib
import importlib
import importlib.util
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from msgspec import Struct

from ridgeline.errors import OutOfMemoryError, RidgelineError, TargetError, UsageError
from ridgeline.model.foresight import weight_bytes
from ridgeline.model.meta_build import build_on_meta

EXAMPLE = "ridgeline model net.py:build --input 32x3x224x224"


class Subject(Struct, frozen=True):
    """A model and the inputs it came with (none, if the target returned only a module)."""

    target: str
    model: torch.nn.Module
    args: tuple[Any, ...] | None
    kwargs: dict[str, Any]


def load(target: str) -> Callable[[], Any]:
    """The callable a target names."""
    where, colon, name = target.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(
            f"{target!r} does not name a model",
            f"write file.py:callable or package.module:callable, as in `{EXAMPLE}`",
        )
    module = _from_file(where) if where.endswith(".py") or "/" in where else _from_package(where)
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{where} has nothing called {name!r}", _similar(module, name))
        found = getattr(found, part)
    if isinstance(found, torch.nn.Module):
        return lambda: found
    if not callable(found):
        raise TargetError(
            f"{target} is a {type(found).__name__}, not a function or class that returns a module"
        )
    return found  # type: ignore[no-any-return]


def build(target: str, *, meta: bool = False, room_bytes: int | None = None) -> Subject:
    """Call the target; what it returns is a module, or a module with its inputs. A model whose
    weights exceed `room_bytes` is refused before it is built."""
    make = load(target)
    if not meta and room_bytes is not None:
        _refuse_what_cannot_fit(target, make, room_bytes)
    try:
        built = build_on_meta(make) if meta else make()
    except (Exception, SystemExit) as error:
        raise explain(error, f"building {target}", "if it does not fit, try --meta") from error
    model, inputs = built if _is_pair(built) else (built, None)
    if not isinstance(model, torch.nn.Module):
        raise TargetError(
            f"{target} returned a {type(built).__name__}, not a torch.nn.Module",
            "return the module, or the pair (module, inputs)",
        )
    if inputs is None:
        return Subject(target, model, None, {})
    if isinstance(inputs, dict):
        return Subject(target, model, (), inputs)
    args = tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,)
    return Subject(target, model, args, {})


def _refuse_what_cannot_fit(target: str, make: Callable[[], Any], room_bytes: int) -> None:
    needed = weight_bytes(make)
    if needed is not None and needed > room_bytes:
        raise OutOfMemoryError(
            f"the weights of {target} take {needed / 2**30:.1f} GiB, and {room_bytes / 2**30:.1f} "
            "GiB are free on this machine",
            "add --meta to count it without weights",
        )


def _is_pair(built: Any) -> bool:
    return isinstance(built, tuple) and len(built) == 2 and isinstance(built[0], torch.nn.Module)


def _from_file(where: str) -> ModuleType:
    path = Path(where).expanduser()
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
"""By import folder: the modules that came in with a target from there."""


def _import_name(path: Path) -> tuple[Path, str]:
    """The folder to import from and the name to import: a file in a package is imported as part of
    it, so that its relative imports work."""
    parts, folder = [path.stem], path.parent
    while (folder / "__init__.py").is_file():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _forget_neighbours(root: Path) -> None:
    """Two targets from different folders may each have a neighbour called `layers`: without this
    the second would get the first one's."""
    for folder, names in list(_neighbours.items()):
        if folder == root:
            continue
        if str(folder) in sys.path:
            sys.path.remove(str(folder))
        for name in names:
            found = getattr(sys.modules.get(name), "__file__", None)
            if found and Path(found).is_relative_to(folder):
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
    own = [
        n
        for n, v in vars(module).items()
        if callable(v) and not n.startswith("_") and getattr(v, "__module__", "") == module.__name__
    ]
    close = difflib.get_close_matches(name, own, n=3)
    if close:
        return f"did you mean {' or '.join(close)}?"
    return f"it has: {', '.join(own[:8])}" if own else ""


def explain(error: BaseException, doing: str, memory_hint: str = "") -> RidgelineError:
    """Somebody else's exception as one sentence, with the line of their code it came from."""
    if isinstance(error, RidgelineError):
        return error
    words = str(error).strip().splitlines()[0] if str(error).strip() else ""
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
    words = str(error)
    return (
        isinstance(error, MemoryError | torch.OutOfMemoryError)
        or "can't allocate memory" in words
        or "not enough memory" in words
    )


def user_line(error: BaseException) -> str:
    """file:line of the innermost frame that is neither ours nor torch's."""
    ours = str(Path(__file__).parents[1])
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = frame.filename
        foreign = "site-packages" in path or path.startswith(("<", ours))
        if not foreign and "importlib" not in path and not path.startswith(sys.prefix):
            return f"{Path(path).name}:{frame.lineno}"
    return ""
