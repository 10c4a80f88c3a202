"""Looks from outside at what a loader's dataset and its functions hold: nothing of theirs is
called, hashed or compared."""

import dis
import io
import multiprocessing
import pickle
import random
import sys
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, GeneratorType, ModuleType
from typing import Any

from ridgeline.fixes.program import MAX_ERROR_CHARS
from ridgeline.records.facts import Reason, because
from ridgeline.records.reason_codes import Skip

MAX_DEPTH = 4
"""Attributes are followed so deep: dataset → subset → transforms → their list → one of them."""
MAX_MEMBERS = 32
"""Members of one list or dict that are looked at: samples of one dataset are alike."""
MAX_OBJECTS = 4_000
_FILE_PACKAGES = ("h5py", "lmdb", "sqlite3", "tables", "netCDF4")
"""Files of these packages must not be used on both sides of a fork."""
_LIBRARY_PACKAGES = ("abc", "builtins", "torch", "typing")
_ITERATORS = {GeneratorType, *(type(iter(kind())) for kind in (tuple, list, dict, set, str))}
_PLAIN_TYPES = (bool, int, float, str, bytes, complex, type(None))


def is_stream(torch: Any, dataset: Any) -> bool:
    return isinstance(dataset, torch.utils.data.IterableDataset)


def position_attribute(dataset: Any) -> str:
    """Return where a stream keeps how far it was read: an attribute that reading it sets, or the
    type of an iterator that it holds; "" if each pass begins anew."""
    own = [
        kind
        for kind in type(dataset).__mro__
        if kind.__module__.split(".")[0] not in _LIBRARY_PACKAGES
    ]
    for code in (code for kind in own for code in _codes(kind)):
        for one in dis.get_instructions(code):
            if one.opname == "STORE_ATTR":
                return str(one.argval)
    held = (type(one) for one in _held(dataset) if type(one) in _ITERATORS)
    return next((kind.__name__ for kind in held), "")


def on_gpu(torch: Any, dataset: Any) -> bool:
    return any(isinstance(one, torch.Tensor) and one.is_cuda for one in _held(dataset))


def own_generator(torch: Any, dataset: Any) -> str:
    """Return the type of a random generator that the dataset keeps; "" if it keeps none."""
    numpy = sys.modules.get("numpy")
    kinds: tuple[Any, ...] = (torch.Generator, random.Random)
    if numpy is not None:
        kinds += (numpy.random.Generator, numpy.random.RandomState)
    found = (one for one in _held(dataset) if isinstance(one, kinds))
    return next((f"{type(one).__module__}.{type(one).__name__}" for one in found), "")


def open_file(dataset: Any) -> str:
    """Return the kind of an open file that the dataset keeps; "" if it keeps none."""
    for one in _held(dataset):
        kind = type(one)
        in_memory = isinstance(one, io.BytesIO | io.StringIO)
        if isinstance(one, io.IOBase) and not in_memory and not one.closed:
            return "file"
        if kind.__module__.split(".")[0] in _FILE_PACKAGES:
            return f"{kind.__module__.split('.')[0]} file"
    return ""


def start_method(context: Any = None) -> str:
    """Return how workers will be started. Asking does not fix it: a program may still set it."""
    if isinstance(context, str):
        return context
    if context is not None:
        return str(context.get_start_method())
    chosen = multiprocessing.get_start_method(allow_none=True)
    return chosen or multiprocessing.get_all_start_methods()[0]


def unpicklable(given: Mapping[str, Any]) -> Reason | None:
    """Return the first argument that cannot be sent to a worker that is not forked, and why."""
    for name in ("dataset", "collate_fn", "worker_init_fn"):
        try:
            pickle.Pickler(_Nowhere(), protocol=5).dump(given.get(name))
        except Exception as error:
            text = f"{type(error).__name__}: {error}"[:MAX_ERROR_CHARS]
            return because(Skip.NOT_PICKLABLE, argument=name, error=text)
    return None


def state(dataset: Any) -> tuple[tuple[str, Any], ...]:
    """Return the dataset's attributes in small: plain ones by value, others by identity and length.
    Those of the dataset behind a subset are included."""
    found: list[tuple[str, Any]] = []
    for deep in range(MAX_DEPTH):
        own = getattr(dataset, "__dict__", None)
        if not isinstance(own, dict):
            break
        found += [(f"{'dataset.' * deep}{name}", _small(value)) for name, value in own.items()]
        dataset = own.get("dataset")
    return tuple(found)


def changed(before: tuple[tuple[str, Any], ...], now: tuple[tuple[str, Any], ...]) -> str:
    """Return the first attribute that has changed; "" if none has."""
    known = dict(before)
    return next((n for n, value in now if n not in known or known[n] != value), "")


class _Nowhere:
    def write(self, data: Any) -> int:
        return len(data)


def _small(value: Any) -> Any:
    if type(value) in _PLAIN_TYPES:
        return value if value == value else "nan"
    size = len(value) if type(value) in (list, dict, set, tuple) else 0
    return (id(value), size)


def _names(code: Any, name: str) -> bool:
    if not isinstance(code, CodeType):
        return False
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return name in code.co_names or any(_names(one, name) for one in inner)


def _held(value: Any) -> Iterator[Any]:
    """Yield the value and all that its attributes and containers hold."""
    seen: set[int] = set()
    waiting = [(value, 0)]
    while waiting and len(seen) < MAX_OBJECTS:
        one, depth = waiting.pop()
        if type(one) in _PLAIN_TYPES or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if depth < MAX_DEPTH:
            waiting += [(inner, depth + 1) for inner in _inside(one)]


def _inside(value: Any) -> list[Any]:
    if isinstance(value, ModuleType | FunctionType | type):
        return []
    if type(value) in (list, tuple):
        return list(value[:MAX_MEMBERS])
    if type(value) is dict:
        return [inner for _, inner in zip(range(MAX_MEMBERS), value.values(), strict=False)]
    own = getattr(value, "__dict__", None)
    if not isinstance(own, dict):
        return []
    codes = _methods(type(value))
    if not codes:
        return list(own.values())
    # A name that only __init__ uses made the samples; it is not used to fetch them.
    return [held for name, held in own.items() if any(_names(code, name) for code in codes)]


def _methods(kind: type) -> list[CodeType]:
    return [code for each in kind.__mro__ for code in _codes(each)]


def _codes(kind: type) -> list[CodeType]:
    """Return the code of the methods that the class defines, except __init__."""
    found = []
    for name, one in vars(kind).items():
        function = getattr(one, "fget", None) or getattr(one, "__func__", one)
        code = getattr(function, "__code__", None)
        if isinstance(code, CodeType) and name != "__init__":
            found.append(code)
    return found
