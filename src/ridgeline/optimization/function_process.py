"""The process around a trial: random numbers, torch's settings, its functions that changes and
seams replace, the environment. Noted when a trial begins, put back when it is over."""

import contextlib
import importlib
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FunctionType
from typing import Any

from ridgeline.fixes.program import OPTIMIZERS
from ridgeline.harness.trials.undropped import RECURRENT

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
