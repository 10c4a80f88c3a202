"""Saves what a step function and its process can change, and restores it after every trial:
parameters, buffers, gradients, moments, counters, generators and lists; random numbers, torch's
settings, the functions that fixes replace, and the environment.

The objects themselves are used, not copies: a scheduler, an average or a helper function that the
step closes over works on the optimizer and the model it was made for. The state of torch's own
classes, of objects with `state_dict` and of the user's classes is saved; other objects of a library
are left alone.
"""

import contextlib
import functools
import gc
import importlib
import math
import os
import random
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from types import CellType, FunctionType, MethodType, ModuleType
from typing import Any

from ridgeline.harness.capture.places import is_user_file
from ridgeline.harness.race.process_state import hook_tables, owners, settings

MAX_OBJECTS = 200_000
"""Objects that are followed: a model of 10,000 modules has some 100,000 attributes worth it."""
MAX_TENSOR_BYTES = 2**28
"""Largest tensor that is saved if the step function names it and it is not part of the model or the
optimizer. Larger ones are data."""
MAX_NAMED_BYTES = 2**30
"""Size of all such tensors together."""
MAX_FOLLOWED_MEMBERS = 4_096
"""Members of a list whose state is saved; all members are put back in their places."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type, ModuleType, range)
_CONTAINERS = (list, dict, set, deque)


class SavedState:
    """The state of what a step function can reach. Of `whole` everything is saved; tensors that the
    step function merely names, and batches in a list, up to `MAX_TENSOR_BYTES`; of a dataset none,
    because its tensors are large and only read."""

    def __init__(self, torch: Any, whole: tuple[Any, ...], step: Any, data: Any) -> None:
        self._torch = torch
        self._step = step
        self._seen: dict[int, Any] = {}
        self._room = MAX_NAMED_BYTES
        self._back: list[Callable[[], Any]] = []
        """What puts each object back."""
        self._bindings: list[Callable[[], dict[str, Any]]] = []
        """What reads the attributes of each object, and the names that each function uses."""
        for value in whole:
            self._follow(value, math.inf)
        self._follow(step, MAX_TENSOR_BYTES)
        self._follow(vars(type(step)).get("__call__"), MAX_TENSOR_BYTES)
        # Batches in a list are handed out again and again, and a step may write into them.
        self._follow(data, MAX_TENSOR_BYTES if isinstance(data, list | tuple) else 0)

    def restore(self) -> None:
        """Put everything back. If something fails, the rest is put back before it is raised."""
        failed: Exception | None = None
        with self._torch.no_grad():
            for back in self._back:
                try:
                    back()
                except Exception as error:
                    failed = failed or error
        if failed is not None:
            raise failed

    def bindings(self) -> dict[str, Any]:
        """Return what each name stands for: numbers by value, the rest by identity and length."""
        return {name: _summary(value) for read in self._bindings for name, value in read().items()}

    def _follow(self, value: Any, largest: float) -> None:
        waiting = [(value, largest)]
        while waiting:
            one, limit = waiting.pop()
            if isinstance(one, _PLAIN) or id(one) in self._seen or len(self._seen) >= MAX_OBJECTS:
                continue
            self._seen[id(one)] = one  # kept alive: the id of a dead object is used again
            limit = math.inf if _trains(self._torch, one) else limit
            waiting += [(inner, limit) for inner in self._note(one, limit)]

    def _note(self, value: Any, largest: float) -> list[Any]:
        """Note how an object is put back. Return what is to be followed from it."""
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return self._tensor(value) if self._fits(value, largest) else []
        put_back = _generator_restorer(torch, value)
        if put_back is not None:
            self._back.append(put_back)
            return []
        if isinstance(value, tuple):
            return list(value[:MAX_FOLLOWED_MEMBERS])
        if isinstance(value, _CONTAINERS) and type(value).__module__ in ("builtins", "collections"):
            return self._container(value)
        if isinstance(value, FunctionType):
            return self._function(value)
        if isinstance(value, MethodType):
            return [value.__self__, value.__func__]
        if isinstance(value, functools.partial):
            return [value.func, *value.args, *value.keywords.values()]
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, numpy.ndarray):
            if value.nbytes <= largest and value.flags.writeable:
                self._back.append(functools.partial(value.__setitem__, ..., value.copy()))
            return []
        return self._object(value) if _has_followed_state(torch, value) else []

    def _fits(self, tensor: Any, largest: float) -> bool:
        size = tensor.numel() * tensor.element_size()
        fits = size <= min(largest, self._room) or largest == math.inf
        self._room -= size if fits and largest != math.inf else 0
        return fits

    def _tensor(self, tensor: Any) -> list[Any]:
        torch = self._torch
        if tensor.is_meta or tensor.is_inference():
            return []
        leaf, needs = tensor.is_leaf, tensor.requires_grad
        grad = tensor.grad if leaf else None
        plain = tensor.layout is torch.strided
        data = tensor.data if leaf else tensor.detach()
        # On the host: a second model on the device would count as the program's memory.
        copy = data.detach().to("cpu", copy=True)
        overlaps = plain and torch._debug_has_internal_overlap(data) == 1  # nothing writes there

        def back() -> None:
            if leaf:
                # Assigned only if they differ: code that compiled a model sees each assignment.
                if plain and _where(tensor) != _where(data):
                    tensor.data = data
                if tensor.requires_grad != needs:
                    tensor.requires_grad_(needs)
                if tensor.grad is not grad:
                    tensor.grad = grad
            if not overlaps:
                data.copy_(copy)

        self._back.append(back)
        return [*getattr(tensor, "__dict__", {}).values(), grad]

    def _container(self, value: Any) -> list[Any]:
        copy = dict(value) if isinstance(value, dict) else list(value)

        def back() -> None:
            if isinstance(value, list):
                value[:] = copy
            else:
                value.clear()
                getattr(value, "extend" if isinstance(value, deque) else "update")(copy)

        self._back.append(back)
        return list(copy.values() if isinstance(copy, dict) else copy)[:MAX_FOLLOWED_MEMBERS]

    def _object(self, value: Any) -> list[Any]:
        held, kind, number = value.__dict__, type(value).__name__, len(self._bindings)
        copy = dict(held)

        def put_back() -> None:
            for name in held.keys() - copy.keys():
                del held[name]
            held.update(copy)

        self._back.append(put_back)
        self._bindings.append(
            lambda: {f"{kind}.{key} ({number})": value for key, value in list(held.items())}
        )
        return list(copy.values())

    def _function(self, function: FunctionType) -> list[Any]:
        # A function typed at a prompt has no file, and is the user's.
        theirs = function is self._step or function.__module__ == "__main__"
        if not theirs and not is_user_file(function.__code__.co_filename):
            return [getattr(function, "__wrapped__", None)]  # torch.no_grad() around a step
        code, names = function.__code__, function.__globals__
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))
        closed_over = {name: _content(cell) for name, cell in cells.items()}
        used = {name: names[name] for name in _global_names(code) if name in names}

        def put_back() -> None:
            for name, cell in cells.items():
                _fill(cell, closed_over[name])
            names.update(used)

        self._back.append(put_back)
        self._bindings.append(
            lambda: (
                {name: _content(cell) for name, cell in cells.items()}
                | {name: names.get(name) for name in used}
            )
        )
        defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
        return [*defaults, *closed_over.values(), *used.values()]


_EMPTY = object()


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _fill(cell: CellType, value: Any) -> None:
    if _content(cell) is not value:
        if value is _EMPTY:
            del cell.cell_contents
        else:
            cell.cell_contents = value


def _global_names(code: Any) -> Iterator[str]:
    """Return the global names in a function's code, and in that of functions inside it."""
    yield from code.co_names
    for one in code.co_consts:
        if hasattr(one, "co_names"):
            yield from _global_names(one)


def _where(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _summary(value: Any) -> Any:
    if isinstance(value, bool | int | float | complex | str):
        return value if value == value else "nan"
    return id(value), len(value) if type(value) in (list, dict, set, deque) else 0


def _generator_restorer(torch: Any, value: Any) -> Callable[[], Any] | None:
    """Return what puts a generator of random numbers back; None if the value is no generator."""
    numpy = sys.modules.get("numpy")
    if isinstance(value, random.Random):
        return functools.partial(value.setstate, value.getstate())
    if numpy is not None and isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        return functools.partial(setattr, bits, "state", bits.state)
    kinds = (torch.Generator, *([numpy.random.RandomState] if numpy is not None else []))
    if isinstance(value, kinds):
        return functools.partial(value.set_state, value.get_state())
    return None


def _has_followed_state(torch: Any, value: Any) -> bool:
    """Return whether the attributes of an object are saved."""
    if not isinstance(getattr(value, "__dict__", None), dict):
        return False
    data, kind = importlib.import_module("torch.utils.data"), type(value)
    kinds = (
        torch.nn.Module, torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler,
        data.DataLoader, data.Sampler, data.Dataset,
    )  # fmt: skip
    methods = ("state_dict", "load_state_dict")
    if isinstance(value, kinds) or all(callable(getattr(kind, name, None)) for name in methods):
        return True
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return kind.__module__ == "__main__" or (file is not None and is_user_file(file))


def _trains(torch: Any, value: Any) -> bool:
    """Return whether an object is a model or an optimizer that trains. A second one that the step
    names is as much a part of it as the first."""
    if isinstance(value, torch.nn.Module):
        return any(parameter.requires_grad for parameter in value.parameters())
    return isinstance(value, torch.optim.Optimizer)


class SavedProcess:
    """The state of the process that a trial may change."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._back: list[Callable[[], Any]] = []
        self._random()
        for setting in settings(torch):
            self._save(setting.read, setting.write)
        for owner in owners():
            self._names(owner)
        for hooks in hook_tables():
            self._contents(hooks)
        self._contents(os.environ)

    def save_code(self, functions: Iterator[FunctionType]) -> None:
        """Save the code of functions that a fix will replace."""
        for function in list(functions):
            code = function.__code__
            self._back.append(lambda f=function, c=code: setattr(f, "__code__", c))  # type: ignore[misc]

    def restore(self) -> None:
        for back in reversed(self._back):
            back()

    def _save(self, get: Callable[[], Any], put: Callable[[Any], Any]) -> None:
        """Save a setting. It is set again only if it changed, so that others stay untouched."""
        try:
            was = get()
        except (RuntimeError, AttributeError):  # older and newer ways to set TF32, mixed
            return

        def back() -> None:
            if get() != was:
                put(was)

        self._back.append(back)

    def _random(self) -> None:
        torch, numpy = self._torch, sys.modules.get("numpy")
        states = [
            (torch.get_rng_state, torch.set_rng_state), (random.getstate, random.setstate)
        ]  # fmt: skip
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states.append((torch.cuda.get_rng_state_all, torch.cuda.set_rng_state_all))
        if numpy is not None:
            states.append((numpy.random.get_state, numpy.random.set_state))
        self._back += [functools.partial(put, get()) for get, put in states]

    def _names(self, owner: Any) -> None:
        was = dict(vars(owner))
        is_class = isinstance(owner, type)

        def back() -> None:
            for name, value in list(vars(owner).items()):
                if name in was and was[name] is not value:
                    setattr(owner, name, was[name])
                elif is_class and name not in was and not name.startswith("__"):
                    delattr(owner, name)  # a new name in a module is something imported late

        self._back.append(back)

    def _contents(self, held: Any) -> None:
        was = dict(held)

        def back() -> None:
            if dict(held) != was:
                held.clear()
                held.update(was)

        self._back.append(back)


class HeldInterrupts:
    """From `begin` to `end` Ctrl-C is noted, and obeyed at the end, so that what is put back
    between them is put back as a whole."""

    def __init__(self) -> None:
        self._handler: Any = None
        self._pressed: list[tuple[Any, Any]] = []

    def begin(self) -> None:
        if threading.current_thread() is threading.main_thread():
            note = self._pressed.append
            self._handler = signal.signal(signal.SIGINT, lambda *given: note(given))

    def end(self) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
        if self._pressed and callable(self._handler):
            self._handler(*self._pressed[0])


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError after that time, in a step or between two; 0 means no limit. There is no
    limit in another thread than the main one, or if the program has set the alarm itself."""
    alarm = getattr(signal, "setitimer", None)
    main = threading.current_thread() is threading.main_thread()
    if not seconds or alarm is None or not main or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def ring(*given: Any) -> None:
        raise TimeoutError(f"it had not ended after {seconds:.0f} s")

    handler = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)


@contextlib.contextmanager
def everything_restored(torch: Any, state: SavedState) -> Iterator[SavedProcess]:
    """Put process and state back at the end, whatever happens inside."""
    process = SavedProcess(torch)
    try:
        yield process
    finally:
        interrupts = HeldInterrupts()
        try:
            interrupts.begin()
        finally:  # also if Ctrl-C comes just before it is held
            try:
                if torch.cuda.is_initialized():
                    torch.cuda.synchronize()
            finally:
                process.restore()
                state.restore()
                gc.collect()
                if torch.cuda.is_initialized():
                    torch.cuda.empty_cache()
                interrupts.end()
