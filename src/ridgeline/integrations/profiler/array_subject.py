"""An object with `.forward` over NumPy arrays (TinyTorch's layers, or anything like them).

Never imports the framework it profiles: tensors are made in the type that the object's own
parameters have, or that its module calls `Tensor`.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from math import prod
from typing import Any

import numpy as np

from ridgeline.integrations.profiler import calls, layers
from ridgeline.integrations.profiler.array_backward import time_backward
from ridgeline.integrations.profiler.arrays import (
    Array,
    array_of,
    byte_count,
    element_count,
    shape_of,
)
from ridgeline.integrations.profiler.clock import time_ms
from ridgeline.integrations.profiler.flops import Count, layer_count, stack_count
from ridgeline.integrations.profiler.memory import MemoryProfiler
from ridgeline.integrations.profiler.subject import Backward, Footprint, Roof, Work
from ridgeline.integrations.profiler.units import Shape, batch_of, one_sample, rng


class ArraySubject:
    def __init__(self, model: Any) -> None:
        self._model = model

    def parameter_count(self) -> int:
        return sum(map(element_count, layers.parameters(self._model)))

    def parameter_bytes(self) -> int:
        return sum(map(byte_count, layers.parameters(self._model)))

    def gradient_bytes(self) -> int:
        return self.parameter_bytes()

    def example(self, shape: Shape) -> Any:
        wanted = self._inputs(shape)
        if layers.runs(self._model):
            for example in wanted:
                if _succeeds(self.forward(example)):
                    return example
        return next(self._inputs(shape))

    def forward(self, example: Any) -> Callable[[], Any]:
        run = getattr(self._model, "forward", self._model)
        if not callable(run):
            name = layers.type_name(self._model)
            raise TypeError(f"{name} has no forward() and cannot be called, so it cannot be run")
        return run if example is None else lambda: run(example)

    def time_forward(self, example: Any, warmup: int, iterations: int) -> tuple[float, ...]:
        return time_ms(self.forward(example), warmup, iterations)

    def count_shape(self, shape: Shape) -> Work:
        """Without running it where its attributes say all; else on one sample, watched."""
        model = self._model
        named = layers.is_linear(model) or layers.is_convolution(model)
        if not (named or layers.runs(model) or layers.stack(model)):
            # Not a layer but a tensor, say: one operation on each of its elements, no batch.
            return _work(Count(prod(shape), 0), model)
        if not any(layers.children(model)) and not layers.stack(model):
            return _work(layer_count(model, self._sample(shape)), model)
        for example in self._inputs(self._sample(shape)) if layers.runs(model) else ():
            try:
                return self.count_input(example)
            except Exception:  # the model's own complaint: another kind of input may suit it
                continue
        return _work(stack_count(layers.stack(model), self._sample(shape)), model)

    def count_input(self, example: Any) -> Work:
        call = calls.watch(self._model, self.forward(example), (example,))
        ops: Counter[str] = Counter()
        found = calls.count(call, ops)
        shape = shape_of(example) or ()
        batch = batch_of(shape, layers.sample_dims(self._model))
        return Work(found.flops, found.products, calls.moved_bytes(call), batch, dict(ops))

    def footprint(self, example: Any) -> Footprint:
        """Two passes: one watched, for the activations; one alone, for the peak, because watching
        holds what the pass would have let go."""
        run = self.forward(example)
        activations = calls.activation_bytes(calls.watch(self._model, run, (example,)))
        with MemoryProfiler() as memory:
            run()
        parameters = self.parameter_bytes()
        peak = parameters + byte_count(example) + memory.peak_memory
        return Footprint(parameters, activations, peak, "measured")

    def time_backward(
        self, example: Any, loss: Callable[..., Any] | None, warmup: int, iterations: int
    ) -> Backward | None:
        parameters = layers.parameters(self._model)
        return time_backward(
            self._model, parameters, self.forward(example), loss, warmup, iterations
        )

    def roof(self, example: Any) -> Roof:
        return numpy_roof(np.dtype(self._dtype()).name)

    def _sample(self, shape: Shape) -> Shape:
        return one_sample(shape, layers.sample_dims(self._model))

    def _inputs(self, shape: Shape) -> Iterator[Any]:
        """Numbers first, then zeros as token ids, each in the framework's tensor, then bare."""
        numbers = rng.standard_normal(shape).astype(self._dtype())
        tokens = np.zeros(shape, dtype=np.int64)
        for array in (numbers, tokens):
            for make in self._tensor_types():
                try:
                    yield make(array)
                except TypeError:  # a type that is built some other way
                    continue
            yield array

    def _tensor_types(self) -> Iterator[Callable[[Array], Any]]:
        for parameter in layers.parameters(self._model)[:1]:
            if not isinstance(parameter, np.ndarray):
                yield type(parameter)
        for layer in (self._model, *layers.descendants(self._model)):
            home = sys.modules.get(type(layer).__module__)
            if isinstance(getattr(home, "Tensor", None), type):
                yield home.Tensor  # type: ignore[union-attr]
                return

    def _dtype(self) -> np.dtype[Any]:
        arrays = map(array_of, layers.parameters(self._model))
        kinds = (a.dtype for a in arrays if a is not None and a.dtype.kind == "f")
        return next(kinds, np.dtype(np.float32))


def _work(found: Count, model: Any) -> Work:
    ops = {layers.type_name(model): found.flops}
    return Work(found.flops, found.products, bytes=0, batch=1, ops=ops)


def _succeeds(run: Callable[[], Any]) -> bool:
    try:
        run()
    except Exception:  # the user's own call: whatever it raises, it does not take this
        return False
    return True


@cache
def numpy_roof(dtype: str) -> Roof:
    """Best of five 512 × 512 products and 32 MiB copies: some 0.1 s, once a process and dtype."""
    square = np.ones((512, 512), dtype)
    source = np.ones(32 * 1024 * 1024, np.uint8)
    target = np.empty_like(source)
    product_ms = min(time_ms(lambda: square @ square, 1, 5))
    copy_ms = min(time_ms(lambda: np.copyto(target, source), 1, 5))
    return Roof(
        flops_per_s=2 * 512**3 / (product_ms / 1e3),
        bytes_per_s=2 * source.nbytes / (copy_ms / 1e3),
        source=f"measured: NumPy {dtype} product and copy",
    )
