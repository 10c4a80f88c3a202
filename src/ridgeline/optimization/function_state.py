"""What a step function can reach and change (parameters, buffers, gradients, moments, counters,
generators, lists), noted once and put back as often as is asked.

The objects themselves are used, not copies: a scheduler, an average or a helper function that the
step closes over works on the optimizer and the model it was made for. Followed are torch's own
kinds, what has `state_dict`, and classes of the user's; a library's other objects are left alone.
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

from ridgeline.fixes.program import OPTIMIZERS
from ridgeline.harness.capture.places import own
from ridgeline.harness.trials.random_draws import RECURRENT

MOST = 200_000
"""Objects followed: a model of 10,000 modules has some 100,000 attributes worth following."""
LARGEST = 2**28
"""Bytes of a tensor that the step function names and that is no part of model or optimizer: larger
ones are data."""
ROOM = 2**30
"""Bytes of all of these."""
WIDEST = 4_096
"""Members of a list that are followed; all of them are put back in their places."""
_PLAIN = (bool, int, float, complex, str, bytes, type(None), type, ModuleType, range)
_CONTAINERS = (list, dict, set, deque)


class Kept:
    """Of `whole` all is kept; tensors the step function merely names, and batches in a list, up to
    `LARGEST` bytes; of a dataset none: they are large, and read only."""

    def __init__(self, torch: Any, whole: tuple[Any, ...], step: Any, data: Any) -> None:
        self._torch = torch
        self._step = step
        self._seen: dict[int, Any] = {}
        self._room = ROOM
        self._back: list[Callable[[], None]] = []
        self._owners: list[tuple[str, dict[str, Any]]] = []
        self._cells: list[tuple[str, CellType]] = []
        self._globals: list[tuple[dict[str, Any], str]] = []
        for value in whole:
            self._follow(value, math.inf)
        self._follow(step, LARGEST)
        self._follow(vars(type(step)).get("__call__"), LARGEST)
        # Batches in a list are handed out again and again, and a step may write into them.
        self._follow(data, LARGEST if isinstance(data, list | tuple) else 0)

    def restore(self) -> None:
        """Whatever fails, the rest is put back; then it is raised."""
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
        """What each name stands for: numbers by value, the rest by identity and length."""
        found: dict[str, Any] = {}
        for number, (name, held) in enumerate(self._owners):
            for key, value in list(held.items()):
                found[f"{name}.{key} ({number})"] = _small(value)
        for name, cell in self._cells:
            found[name] = _small(_inside(cell))
        for names, name in self._globals:
            found[name] = _small(names.get(name))
        return found

    def _follow(self, value: Any, largest: float) -> None:
        waiting = [(value, largest)]
        while waiting:
            one, limit = waiting.pop()
            if isinstance(one, _PLAIN) or id(one) in self._seen or len(self._seen) >= MOST:
                continue
            self._seen[id(one)] = one  # kept alive: an id is used again
            limit = math.inf if _trains(self._torch, one) else limit
            waiting += [(inner, limit) for inner in self._note(one, limit)]

    def _note(self, value: Any, largest: float) -> list[Any]:
        """How it is put back; what is to be followed from it."""
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return self._tensor(value) if self._fits(value, largest) else []
        back = _generator(torch, value)
        if back is not None:
            self._back.append(back)
            return []
        if isinstance(value, tuple):
            return list(value[:WIDEST])
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
            self._array(value, largest)
            return []
        if _followed(torch, value):
            return self._object(value)
        return []

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
                # Only where they differ: what compiled a model sees each assignment.
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
        return list(copy.values() if isinstance(copy, dict) else copy)[:WIDEST]

    def _object(self, value: Any) -> list[Any]:
        held = value.__dict__
        copy = dict(held)
        self._owners.append((type(value).__name__, held))

        def back() -> None:
            for name in [name for name in held if name not in copy]:
                del held[name]
            held.update(copy)

        self._back.append(back)
        return list(copy.values())

    def _function(self, function: FunctionType) -> list[Any]:
        # What is typed at a prompt has no file, and is the user's.
        theirs = function is self._step or function.__module__ == "__main__"
        if not theirs and not own(function.__code__.co_filename):
            return [getattr(function, "__wrapped__", None)]  # torch.no_grad() around a step
        found: list[Any] = [
            *(function.__defaults__ or ()),
            *(function.__kwdefaults__ or {}).values(),
        ]
        code = function.__code__
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            self._cells.append((name, cell))
            value = _inside(cell)
            found.append(value)
            self._back.append(lambda cell=cell, value=value: _fill(cell, value))  # type: ignore[misc]
        names = function.__globals__
        for name in _named(code):
            if name in names:
                value = names[name]
                self._globals.append((names, name))
                found.append(value)
                self._back.append(
                    lambda name=name, value=value: names.__setitem__(name, value)  # type: ignore[misc]
                )
        return found

    def _array(self, value: Any, largest: float) -> None:
        if value.nbytes <= largest and value.flags.writeable:
            copy = value.copy()
            self._back.append(lambda: value.__setitem__(..., copy))


_EMPTY = object()


def _inside(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _fill(cell: CellType, value: Any) -> None:
    if _inside(cell) is not value:
        if value is _EMPTY:
            del cell.cell_contents
        else:
            cell.cell_contents = value


def _named(code: Any) -> Iterator[str]:
    """Global names in its code, and in that of functions inside it."""
    yield from code.co_names
    for one in code.co_consts:
        if hasattr(one, "co_names"):
            yield from _named(one)


def _where(tensor: Any) -> tuple[Any, ...]:
    return tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype


def _small(value: Any) -> Any:
    if isinstance(value, bool | int | float | complex | str):
        return value if value == value else "nan"
    return id(value), len(value) if type(value) in (list, dict, set, deque) else 0


def _generator(torch: Any, value: Any) -> Callable[[], None] | None:
    if isinstance(value, torch.Generator):
        state = value.get_state()
        return lambda: value.set_state(state) and None
    if isinstance(value, random.Random):
        told = value.getstate()
        return lambda: value.setstate(told)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.random.Generator):
        bits = value.bit_generator
        known = bits.state
        return lambda: setattr(bits, "state", known)
    if numpy is not None and isinstance(value, numpy.random.RandomState):
        drawn = value.get_state()
        return lambda: value.set_state(drawn)
    return None


def _followed(torch: Any, value: Any) -> bool:
    if not isinstance(getattr(value, "__dict__", None), dict):
        return False
    loader = importlib.import_module("torch.utils.data")
    kinds = (torch.nn.Module, torch.optim.Optimizer, loader.DataLoader, loader.Sampler)
    if isinstance(value, kinds) or _stateful(value):
        return True
    if isinstance(value, torch.optim.lr_scheduler.LRScheduler | loader.Dataset):
        return True
    module = sys.modules.get(type(value).__module__)
    file = getattr(module, "__file__", None)
    return type(value).__module__ == "__main__" or (file is not None and own(file))


def _trains(torch: Any, value: Any) -> bool:
    """A second model or optimizer that the step names is as much a part of it as the first."""
    if isinstance(value, torch.nn.Module):
        return any(parameter.requires_grad for parameter in value.parameters())
    return isinstance(value, torch.optim.Optimizer)


def _stateful(value: Any) -> bool:
    kind = type(value)
    return all(callable(getattr(kind, name, None)) for name in ("state_dict", "load_state_dict"))


_OWNERS = (
    ("torch.nn", "Module"), ("torch.nn.functional", ""), ("torch", "Tensor"),
    ("torch.autograd", ""), ("torch.utils.data", "DataLoader"),
    ("torch.utils.data.dataloader", "_BaseDataLoaderIter"),
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter"),
    ("torch.utils.data._utils.fetch", "_MapDatasetFetcher"),
    ("torch.utils.data._utils.fetch", "_IterableDatasetFetcher"),
    ("torch.optim.optimizer", "Optimizer"), ("torch.amp.grad_scaler", "GradScaler"),
    ("torch.autograd.profiler", "profile"), ("os", ""),
    *(("torch.optim", name) for name in OPTIMIZERS),
    *(("torch.nn", name) for name in RECURRENT),
)  # fmt: skip
"""Whose functions a change or a seam may replace."""
_HOOKS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
_CONFIGS = (
    ("torch._dynamo.config", "compiled_autograd"), ("torch._inductor.config", "fallback_random"),
)  # fmt: skip


class Process:
    def __init__(self, torch: Any) -> None:
        self._torch = torch
        self._back: list[Callable[[], None]] = []
        self._random()
        self._settings()
        for module, name in _OWNERS:
            home = importlib.import_module(module)
            owner = getattr(home, name, None) if name else home
            if owner is not None:
                self._names(owner)
        optimizer = importlib.import_module("torch.optim.optimizer")
        for name in _HOOKS:
            self._contents(getattr(optimizer, name))
        self._contents(os.environ)

    def code(self, functions: Iterator[FunctionType]) -> None:
        """Of functions whose code a change will replace."""
        for function in list(functions):
            code = function.__code__
            self._back.append(lambda f=function, c=code: setattr(f, "__code__", c))  # type: ignore[misc]

    def restore(self) -> None:
        for back in reversed(self._back):
            back()

    def _keep(self, ask: Callable[[], Any], tell: Callable[[Any], Any]) -> None:
        """Told again only where it is another: settings that were never touched stay untouched."""
        try:
            was = ask()
        except (RuntimeError, AttributeError):  # older and newer ways to set TF32, mixed
            return

        def back() -> None:
            if ask() != was:
                tell(was)

        self._back.append(back)

    def _random(self) -> None:
        torch = self._torch
        state = torch.get_rng_state()
        self._back.append(lambda: torch.set_rng_state(state))
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            states = torch.cuda.get_rng_state_all()
            self._back.append(lambda: torch.cuda.set_rng_state_all(states))
        own = random.getstate()
        self._back.append(lambda: random.setstate(own))
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            drawn = numpy.random.get_state()
            self._back.append(lambda: numpy.random.set_state(drawn))

    def _settings(self) -> None:
        torch = self._torch
        cudnn = torch.backends.cudnn
        self._keep(torch.get_num_threads, torch.set_num_threads)
        self._keep(torch.get_float32_matmul_precision, torch.set_float32_matmul_precision)
        for name in ("benchmark", "deterministic", "allow_tf32", "enabled"):
            self._attribute(cudnn, name)
        self._keep(torch.get_default_dtype, torch.set_default_dtype)
        self._keep(torch.is_grad_enabled, torch._C._set_grad_enabled)
        self._keep(torch.is_anomaly_enabled, torch.set_anomaly_enabled)
        self._keep(
            lambda: (
                torch.are_deterministic_algorithms_enabled(),
                torch.is_deterministic_algorithms_warn_only_enabled(),
            ),
            lambda was: torch.use_deterministic_algorithms(was[0], warn_only=was[1]),
        )
        for kind in ("cpu", *(["cuda"] if torch.cuda.is_available() else [])):
            self._autocast(kind)
        self._keep(torch.is_autocast_cache_enabled, torch.set_autocast_cache_enabled)
        for module, name in _CONFIGS:
            if module in sys.modules:
                self._attribute(sys.modules[module], name)

    def _autocast(self, kind: str) -> None:
        torch = self._torch
        self._keep(
            lambda: torch.is_autocast_enabled(kind),
            lambda was: torch.set_autocast_enabled(kind, was),
        )
        self._keep(
            lambda: torch.get_autocast_dtype(kind), lambda was: torch.set_autocast_dtype(kind, was)
        )

    def _attribute(self, owner: Any, name: str) -> None:
        self._keep(lambda: getattr(owner, name), lambda was: setattr(owner, name, was))

    def _names(self, owner: Any) -> None:
        was = dict(vars(owner))
        of_class = isinstance(owner, type)

        def back() -> None:
            for name, value in list(vars(owner).items()):
                if name in was and was[name] is not value:
                    setattr(owner, name, was[name])
                elif (
                    of_class and name not in was and not name.startswith("__")
                ):  # of a module it is something imported late
                    delattr(owner, name)

        self._back.append(back)

    def _contents(self, held: Any) -> None:
        was = dict(held)

        def back() -> None:
            if dict(held) != was:
                held.clear()
                held.update(was)

        self._back.append(back)


class Interrupts:
    """From `wait` to `over` Ctrl-C is noted, not obeyed: what is put back is put back as a whole.
    Then it is."""

    def __init__(self) -> None:
        self._theirs: Any = None
        self._pressed: list[tuple[Any, Any]] = []

    def wait(self) -> None:
        if threading.current_thread() is threading.main_thread():
            self._theirs = signal.signal(signal.SIGINT, lambda *given: self._pressed.append(given))

    def over(self) -> None:
        if self._theirs is not None:
            signal.signal(signal.SIGINT, self._theirs)
        if self._pressed and callable(self._theirs):
            self._theirs(*self._pressed[0])


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TimeoutError after that time, in a step or between two. 0: never. Not in another
    thread than the main one, and not where the program has set the alarm itself."""
    alarm = getattr(signal, "setitimer", None)
    main = threading.current_thread() is threading.main_thread()
    if not seconds or alarm is None or not main or signal.getitimer(signal.ITIMER_REAL)[0]:
        yield
        return

    def rang(*given: Any) -> None:
        raise TimeoutError(f"it had not ended after {seconds:.0f} s")

    theirs = signal.signal(signal.SIGALRM, rang)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, theirs)


class AsItWas:
    """Whatever happens inside, and however it ends."""

    def __init__(self, torch: Any, kept: Kept) -> None:
        self._torch = torch
        self._kept = kept

    def __enter__(self) -> "AsItWas":
        self.process = Process(self._torch)
        return self

    def __exit__(self, *raised: object) -> None:
        interrupts = Interrupts()
        try:
            interrupts.wait()
        finally:
            try:
                if self._torch.cuda.is_initialized():
                    self._torch.cuda.synchronize()
            finally:
                self.process.restore()
                self._kept.restore()
                gc.collect()
                if self._torch.cuda.is_initialized():
                    self._torch.cuda.empty_cache()
                interrupts.over()
