"""Profiles a model written in NumPy: watches which inner layers a forward pass runs, on which
shapes.

Watching sees what attributes do not tell: reshapes, skip connections, and heads outside `.layers`.
During the pass the class of each inner layer is replaced by a subclass that records calls. This
works for `layer(x)`, for `layer.forward(x)`, and for objects with `__slots__`.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from math import prod
from time import perf_counter
from typing import Any

import numpy as np

from ridgeline.integrations.profiler import layers
from ridgeline.integrations.profiler.layers import (
    NOTHING,
    Array,
    Count,
    array_of,
    attention_flops,
    byte_count,
    element_count,
    layer_count,
    shape_of,
    stack_count,
    total_bytes,
    unique,
)
from ridgeline.integrations.profiler.subject import (
    Backward,
    Footprint,
    MemoryProfiler,
    Roof,
    Shape,
    Work,
    apply_loss,
    batch_of,
    median,
    one_sample,
    rng,
    time_ms,
)


@dataclass(slots=True)
class Call:
    """One call of a layer, and the calls inside it."""

    layer: Any
    inputs: tuple[Any, ...]
    output: Any = None
    inner: "list[Call]" = field(default_factory=list)

    @property
    def input_shape(self) -> Shape:
        return next((s for s in map(shape_of, self.inputs) if s is not None), ())

    def leaves(self) -> "Iterator[Call]":
        for call in self.inner:
            yield from call.leaves()
        if not self.inner:
            yield self


def watch(model: Any, run: Callable[[], Any], inputs: tuple[Any, ...]) -> Call:
    """Call `run` and return the call of `model` with every call inside it. The record keeps the
    outputs alive, so that no address is used for two arrays."""
    root = Call(model, inputs)
    with _watching(layers.descendants(model), [root]):
        root.output = run()
    return root


def count(call: Call, ops: Counter[str]) -> Count:
    """Return the FLOPs of a recorded call, and add those of each layer to `ops` under its type."""
    if not call.inner:
        leaf = _leaf_count(call)
        ops[layers.type_name(call.layer)] += leaf.flops
        return leaf
    total = NOTHING
    for inner in call.inner:
        total = total.plus(count(inner, ops))
    if layers.is_attention(call.layer):
        products = _attention_products(call)
        ops["attention"] += products
        total = total.plus(Count(products, products))
    return total


def activation_bytes(call: Call) -> int:
    """Return the bytes of the input and of the output of every innermost layer, which a backward
    pass would need."""
    kept = [value for value in call.inputs if shape_of(value) is not None]
    kept += [leaf.output for leaf in call.leaves() if shape_of(leaf.output) is not None]
    return total_bytes(unique(kept))


def moved_bytes(call: Call) -> int:
    """Return the fewest bytes that the layers can move: each reads inputs and weights and writes
    its output."""
    moved = 0
    for leaf in call.leaves():
        # A lookup reads only the rows it returns: as many bytes as its output.
        read = [leaf.output] if layers.is_lookup(leaf.layer) else layers.own_parameters(leaf.layer)
        values = (*leaf.inputs, leaf.output, *read)
        moved += sum(byte_count(value) for value in values if shape_of(value) is not None)
    return moved


def _leaf_count(call: Call) -> Count:
    stacked = layers.stack(call.layer)
    if stacked:  # its layers could not be watched, or do not run through forward()
        return stack_count(stacked, call.input_shape)
    return layer_count(call.layer, call.input_shape, shape_of(call.output))


def _attention_products(call: Call) -> int:
    """Return the FLOPs of attention from the outputs of the projections, because queries and keys
    may differ in length (cross-attention)."""
    names = {id(child): name for name, child in layers.children(call.layer)}
    roles: dict[str, Shape] = {}
    for inner in call.inner:
        shape = shape_of(inner.output)
        if shape is not None and len(shape) > 1:
            roles.setdefault(_role(names.get(id(inner.layer), "")), shape)
    query = roles.get("q", call.input_shape)
    if len(query) < 2:
        return 0
    keys = roles.get("k", query)
    return attention_flops(prod(query[:-2]), query[-2], keys[-2], query[-1])


def _role(name: str) -> str:
    """Return q, k or v for a name such as q_proj, wq, W_query or to_q; "" for any other projection,
    also for a fused one."""
    bare = name.lower().lstrip("_").removeprefix("to_").removeprefix("w_")
    bare = bare[1:] if bare[:2] in ("wq", "wk", "wv") else bare
    fused = bare.startswith(("qkv", "kv"))
    return bare[0] if bare[:1] in ("q", "k", "v") and not fused else ""


@contextmanager
def _watching(watched: list[Any], stack: list[Call]) -> Iterator[None]:
    undo: list[Callable[[], None]] = []
    try:
        for layer in watched:
            # A forward that was set on the object (as a KV cache does) hides that of the class.
            patched = getattr(layer, "__dict__", {}).get("forward")
            try:
                undo.append(partial(setattr, layer, "__class__", type(layer)))
                layer.__class__ = _watched(type(layer), stack)
            except (
                TypeError
            ):  # the class of a layer written in C cannot be replaced; it counts with its parent
                undo.pop()
                continue
            if callable(patched):
                undo.append(partial(setattr, layer, "forward", patched))
                layer.forward = partial(_note, stack, layer, patched)
        yield
    finally:
        for step in reversed(undo):
            step()


def _watched(original: type, stack: list[Call]) -> type:
    def noted(method: Callable[..., Any]) -> Callable[..., Any]:
        def run(self: Any, *args: Any, **kwargs: Any) -> Any:
            return _note(stack, self, partial(method, self), *args, **kwargs)

        return run

    # Only the bodies of the classes tell: `hasattr(cls, "__call__")` is true for every class.
    names = {
        name for cls in original.__mro__ for name in ("forward", "__call__") if name in vars(cls)
    }
    body = {name: noted(getattr(original, name)) for name in names}
    return type(original)(original.__name__, (original,), {"__slots__": (), **body})


def _note(stack: list[Call], layer: Any, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if stack[-1].layer is layer:  # __call__ has called forward: this is one call, not two
        return run(*args, **kwargs)
    call = Call(layer, (*args, *kwargs.values()))
    stack.append(call)
    try:
        call.output = run(*args, **kwargs)
    finally:
        stack.pop()
    # Recorded only if it succeeded: a caller may try an argument that the layer refuses, and retry.
    stack[-1].inner.append(call)
    return call.output


_ABSENT = object()
"""Stands for an attribute that a parameter did not have."""


def time_backward(
    model: Any,
    parameters: list[Any],
    forward: Callable[[], Any],
    loss: Callable[..., Any] | None,
    warmup: int,
    iterations: int,
) -> Backward | None:
    """Time forward and backward passes; return None if there is no backward pass, or if it leaves
    no gradient on any parameter."""
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
        except (
            Exception
        ):  # in a course, frameworks are often half finished: the costs are then estimated
            return None
        own_backward = callable(getattr(model, "backward", None))
        if not own_backward and all(getattr(p, "grad", None) is None for p in parameters):
            return None
    return Backward(median(tuple(forward_ms[warmup:])), median(tuple(backward_ms[warmup:])))


def _backward_of(
    model: Any, output: Any, loss: Callable[..., Any] | None
) -> Callable[[], Any] | None:
    """Return the function that runs the backward pass: that of the loss, or, without a loss, one
    that starts from a gradient of ones."""
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
        inputs = self._inputs(shape)
        if layers.runs(self._model):
            for example in inputs:
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
        """Count from the attributes if they suffice; otherwise run one sample and watch it."""
        model = self._model
        named = layers.is_linear(model) or layers.is_convolution(model)
        if not (named or layers.runs(model) or layers.stack(model)):
            # No layer, but a tensor, say: count one operation for each element, and no batch.
            return _work(Count(prod(shape), 0), model)
        if not any(layers.children(model)) and not layers.stack(model):
            return _work(layer_count(model, self._sample(shape)), model)
        for example in self._inputs(self._sample(shape)) if layers.runs(model) else ():
            try:
                return self.count_input(example)
            except Exception:  # the model refuses this kind of input: try the next
                continue
        return _work(stack_count(layers.stack(model), self._sample(shape)), model)

    def count_input(self, example: Any) -> Work:
        call = watch(self._model, self.forward(example), (example,))
        ops: Counter[str] = Counter()
        total = count(call, ops)
        shape = shape_of(example) or ()
        batch = batch_of(shape, layers.sample_dims(self._model))
        return Work(total.flops, total.products, moved_bytes(call), batch, dict(ops))

    def footprint(self, example: Any) -> Footprint:
        """Run two passes: a watched one for the activations, and another for the peak, because
        watching keeps alive what the pass would free."""
        run = self.forward(example)
        activations = activation_bytes(watch(self._model, run, (example,)))
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
        """Yield inputs to try: random numbers, then zeros as token ids, each as a tensor of the
        framework and as an array."""
        numbers = rng.standard_normal(shape).astype(self._dtype())
        tokens = np.zeros(shape, dtype=np.int64)
        for array in (numbers, tokens):
            for make in self._tensor_types():
                try:
                    yield make(array)
                except TypeError:  # this type is not constructed from an array
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


def _work(total: Count, model: Any) -> Work:
    ops = {layers.type_name(model): total.flops}
    return Work(total.flops, total.products, bytes=0, batch=1, ops=ops)


def _succeeds(run: Callable[[], Any]) -> bool:
    try:
        run()
    except Exception:  # whatever the user's model raises, it does not take this input
        return False
    return True


@cache
def numpy_roof(dtype: str) -> Roof:
    """Measure the ceilings of NumPy: the best of five 512 × 512 products and of five 32 MiB copies.
    It takes about 0.1 s, once for each process and dtype."""
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
