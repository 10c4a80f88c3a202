"""Times the backward pass of an object over arrays, where it has one.

Two styles are known: a layer with its own `backward(gradient)`, and tensors that carry a graph and
have `backward()`. Gradients and `requires_grad` flags are put back as they were.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np

from ridgeline.integrations.profiler.arrays import Array, array_of, unique
from ridgeline.integrations.profiler.clock import median
from ridgeline.integrations.profiler.loss import apply_loss
from ridgeline.integrations.profiler.subject import Backward

_ABSENT = object()


def time_backward(
    model: Any,
    parameters: list[Any],
    forward: Callable[[], Any],
    loss: Callable[..., Any] | None,
    warmup: int,
    iterations: int,
) -> Backward | None:
    """None where nothing can be timed: no backward, or one that left no gradient anywhere."""
    forward_ms, backward_ms = [], []
    with _gradients_restored(parameters):
        try:
            for _ in range(warmup + iterations):
                start = perf_counter()
                output = forward()
                middle = perf_counter()
                run = _backward_of(model, output, loss)
                if run is None:
                    return None
                begin = perf_counter()
                run()
                backward_ms.append((perf_counter() - begin) * 1e3)
                forward_ms.append((middle - start) * 1e3)
        except Exception:  # half-built frameworks are the rule in a course: fall back to a rule
            return None
        own_backward = callable(getattr(model, "backward", None))
        if not own_backward and all(getattr(p, "grad", None) is None for p in parameters):
            return None
    return Backward(median(tuple(forward_ms[warmup:])), median(tuple(backward_ms[warmup:])))


def _backward_of(
    model: Any, output: Any, loss: Callable[..., Any] | None
) -> Callable[[], Any] | None:
    """The loss's own backward where there is a loss; else a gradient of ones on the output."""
    if loss is not None:
        result = apply_loss(loss, output, _zeros)
        return result.backward if callable(getattr(result, "backward", None)) else None
    array = array_of(output)
    if array is None:
        return None
    ones = np.ones_like(array)
    if callable(getattr(model, "backward", None)):
        gradient = _alike(output, ones)
        return lambda: model.backward(gradient)
    if callable(getattr(output, "backward", None)):
        return lambda: output.backward(ones)
    return None


def _zeros(output: Any) -> Any:
    return _alike(output, np.zeros_like(array_of(output)))


def _alike(output: Any, array: Array) -> Any:
    return array if isinstance(output, np.ndarray) else type(output)(array)


@contextmanager
def _gradients_restored(parameters: list[Any]) -> Iterator[None]:
    held = [p for p in unique(parameters) if hasattr(p, "__dict__")]
    before = [
        (p, name, vars(p).get(name, _ABSENT)) for p in held for name in ("requires_grad", "grad")
    ]
    try:
        for parameter in held:
            if hasattr(parameter, "requires_grad"):
                parameter.requires_grad = True
                parameter.grad = None
        yield
    finally:
        for parameter, name, value in before:
            if value is not _ABSENT:
                setattr(parameter, name, value)
            elif name in vars(parameter):
                delattr(parameter, name)
