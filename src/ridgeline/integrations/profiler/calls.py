"""Watches one forward pass of an object over arrays: which inner layers ran, on which shapes.

Shapes seen are better than shapes guessed: reshapes, skips and heads outside `.layers` all show.
Each inner layer gets, for the length of the run, a subclass of its own class that notes the call;
that catches `layer(x)` and `layer.forward(x)` alike, and objects with `__slots__`.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

from ridgeline.integrations.profiler import layers
from ridgeline.integrations.profiler.arrays import byte_count, shape_of, total_bytes, unique
from ridgeline.integrations.profiler.flops import (
    NOTHING,
    Count,
    attention_flops,
    layer_count,
    stack_count,
)
from ridgeline.integrations.profiler.units import Shape


@dataclass(slots=True)
class Call:
    """One layer run once, and what ran inside it."""

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
    """Runs `run` and returns the call of `model` with every call below it. Outputs are held while
    the record lives, so that an address means one array."""
    root = Call(model, inputs)
    with _watching(layers.descendants(model), [root]):
        root.output = run()
    return root


def count(call: Call, ops: Counter[str]) -> Count:
    """FLOPs of a recorded call, each layer's share added to `ops` by its type."""
    if not call.inner:
        found = _leaf_count(call)
        ops[layers.type_name(call.layer)] += found.flops
        return found
    total = NOTHING
    for inner in call.inner:
        total = total.plus(count(inner, ops))
    if layers.is_attention(call.layer):
        products = _attention_products(call)
        ops["attention"] += products
        total = total.plus(Count(products, products))
    return total


def activation_bytes(call: Call) -> int:
    """The input and what every innermost layer made of it: what a backward pass would need."""
    made = [value for value in call.inputs if shape_of(value) is not None]
    made += [leaf.output for leaf in call.leaves() if shape_of(leaf.output) is not None]
    return total_bytes(unique(made))


def moved_bytes(call: Call) -> int:
    """The least the layers must move: each reads its inputs and weights and writes its output."""
    moved = 0
    for leaf in call.leaves():
        # Of a table only the rows that were asked for are read: as much as the output.
        read = [leaf.output] if layers.is_lookup(leaf.layer) else layers.own_parameters(leaf.layer)
        values = (*leaf.inputs, leaf.output, *read)
        moved += sum(byte_count(value) for value in values if shape_of(value) is not None)
    return moved


def _leaf_count(call: Call) -> Count:
    stacked = layers.stack(call.layer)
    if stacked:  # layers that could not be watched, or that are run by means other than forward
        return stack_count(stacked, call.input_shape)
    return layer_count(call.layer, call.input_shape, shape_of(call.output))


def _attention_products(call: Call) -> int:
    """From what the projections left: queries and keys may differ in length (cross-attention)."""
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
    """q, k or v of q_proj, wq, W_query, to_q; fused and other projections have none."""
    bare = name.lower().lstrip("_").removeprefix("to_").removeprefix("w_")
    bare = bare[1:] if bare[:2] in ("wq", "wk", "wv") else bare
    fused = bare.startswith(("qkv", "kv"))
    return bare[0] if bare[:1] in ("q", "k", "v") and not fused else ""


@contextmanager
def _watching(found: list[Any], stack: list[Call]) -> Iterator[None]:
    undo: list[Callable[[], None]] = []
    try:
        for layer in found:
            # A forward put on the object itself (as a KV cache does) would hide the class's own.
            patched = getattr(layer, "__dict__", {}).get("forward")
            try:
                undo.append(partial(setattr, layer, "__class__", type(layer)))
                layer.__class__ = _watched(type(layer), stack)
            except TypeError:  # a layer built in C keeps its class; it counts with its parent
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

    # Looked up in the classes' own bodies: `hasattr(cls, "__call__")` is true of every class.
    names = {
        name for cls in original.__mro__ for name in ("forward", "__call__") if name in vars(cls)
    }
    body = {name: noted(getattr(original, name)) for name in names}
    return type(original)(original.__name__, (original,), {"__slots__": (), **body})


def _note(stack: list[Call], layer: Any, run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    if stack[-1].layer is layer:  # __call__ has come to forward: one call, not two
        return run(*args, **kwargs)
    call = Call(layer, (*args, *kwargs.values()))
    stack.append(call)
    try:
        call.output = run(*args, **kwargs)
    finally:
        stack.pop()
    # Only now: a caller may try a layer with an argument it refuses, and call it again without.
    stack[-1].inner.append(call)
    return call.output
