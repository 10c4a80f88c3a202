"""What a pass needs around it: the user's model as it was afterwards, compiled code run as written,
and torch's own noise kept off the terminal."""

import logging
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch.nn.parameter import is_lazy

from ridgeline.cost.counting.snapshot import Snapshot

KEPT_PARAMETER_BYTES = 2**30
"""Above this a copy of the parameters costs more than a forward that writes to them is likely."""


@contextmanager
def preserved(model: torch.nn.Module, *, training: bool, values: bool = True) -> Iterator[None]:
    """Puts the model in a mode with gradients unset; mode, attributes, gradients, values of buffers
    and small parameters (unless nothing can write to them) and random numbers come back."""
    modes = [(m, m.training) for m in model.modules()]
    gradients = [(p, p.grad) for p in model.parameters()]
    attributes = Snapshot(model)
    kept = [(t, t.detach().clone()) for t in _writable(model)] if values else []
    try:
        model.train(training)
        for parameter, _ in gradients:
            parameter.grad = None
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        attributes.restore()
        for module, mode in modes:
            module.training = mode
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for tensor, value in kept:
                if not torch.equal(tensor, value):  # batch norm leaves no trace in the version
                    tensor.copy_(value)


def _writable(model: torch.nn.Module) -> Iterator[torch.Tensor]:
    """Buffers, and parameters up to a size (an embedding with max_norm writes to its own). FSDP
    frees the memory of its parameters and fills it again: those are left to it."""
    yield from (b for b in model.buffers() if not is_lazy(b) and b.layout is torch.strided)
    if any(type(m).__name__.startswith("FSDP") for m in model.modules()):
        return
    parameters = [p for p in model.parameters() if not is_lazy(p) and p.layout is torch.strided]
    if sum(p.numel() * p.itemsize for p in parameters) <= KEPT_PARAMETER_BYTES:
        yield from parameters


@contextmanager
def eager() -> Iterator[None]:
    """A compiled module is counted as the program it was compiled from."""
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def without_fast_path() -> Iterator[None]:
    """nn.MultiheadAttention's fused inference operators have no rule for tensors without data, and
    with a padding mask they turn to nested tensors, which have no shape to count by."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


@contextmanager
def threads_noticed() -> Iterator[list[str]]:
    """Names of threads that Python starts meanwhile: a dispatch mode sees its own thread only."""
    started: list[str] = []
    original = threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if not thread.name.startswith("ridgeline"):
            started.append(thread.name)
        original(thread)

    threading.Thread.start = start  # type: ignore[method-assign, assignment]
    try:
        yield started
    finally:
        threading.Thread.start = original  # type: ignore[method-assign]


@contextmanager
def autocast_noticed() -> Iterator[list[str]]:
    """Devices it was switched on for meanwhile: inside a dispatch mode torch says it never is."""
    seen = [d for d in ("cuda", "cpu") if torch.is_autocast_enabled(d)]
    original: Callable[[torch.autocast], object] = torch.autocast.__enter__

    def enter(self: torch.autocast) -> object:
        if self._enabled:
            seen.append(self.device)
        return original(self)

    torch.autocast.__enter__ = enter  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        torch.autocast.__enter__ = original  # type: ignore[method-assign]


@contextmanager
def silenced() -> Iterator[None]:
    """A model that does not fit its inputs makes the fake tensors' logger print pages; warnings
    come again where the model really runs."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    before = log.disabled
    log.disabled = True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = before
