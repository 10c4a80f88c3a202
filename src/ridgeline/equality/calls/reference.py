"""Runs the baseline in float64, as a reference for both variants.

All float tensors that the baseline holds or makes are float64 meanwhile, and the check calls are
made again. The reference is only used if every float that it returns is float64 and the baseline
agrees with it within rounding.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.cost.counting.operands import nested_tensors, operator_name
from ridgeline.cost.counting.passes import silenced
from ridgeline.equality.calls.calling import Caller, uncompiled
from ridgeline.equality.calls.evidence import Reference
from ridgeline.equality.calls.held_state import SavedState, reach, reachable
from ridgeline.equality.calls.judge import error, numbers
from ridgeline.equality.calls.outputs import ElementBudget, Leaf, Outputs, leaf_of

MAX_FLOAT_BYTES = 2**31
"""Largest size of the float tensors to convert; float64 takes two to four times as much again."""
MAX_BASELINE_ERROR = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
"""Largest relative distance of the baseline from a plausible reference. Rounding stays well below;
another random number or a step in another direction is far above."""
_LOW_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_PASSED_THROUGH = ("aten::lift_fresh", "aten::lift_fresh_copy", "aten::detach", "aten::alias")
_LOW_COMPLEX = (torch.complex64, torch.complex32)


def reference_of(
    caller: Caller, saved: SavedState, outputs: Sequence[Outputs], state: Sequence[str]
) -> Reference:
    """Return the reference, or why there is none. Never raises."""
    returned = [leaf for each in outputs for leaf in each.leaves if _is_float(leaf)]
    if not returned and not state:
        return Reference(why_not="nothing that was returned or changed is float")
    if returned and all(_is_double(leaf) for leaf in returned):
        return Reference(why_not="it already computes in float64")
    floats = [h.tensor for h in reach(caller.workload).held if _is_below_float64(h.tensor.dtype)]
    if sum(t.numel() * t.itemsize for t in floats) > MAX_FLOAT_BYTES:
        return Reference(why_not="its tensors are over 2 GiB")
    if saved.too_large and state:
        return Reference(why_not="the tensors it changes are too large to restore")
    try:
        saved.restore()
        results, mode = [], _Float64Mode()
        with uncompiled(), silenced(), _held_in_float64(floats):
            for turn in range(count_distinct_calls(outputs, state)):
                with mode:
                    value, _ = caller(turn)
                # Outside the mode: a result that is still float32 must show.
                results.append(caller.copy_outputs(value))
            after = dict(reachable(caller.workload))
            changed = [leaf_of(name, after[name].detach(), ElementBudget()) for name in state]
    except Exception as problem:
        words = str(problem).strip().splitlines()
        return Reference(why_not=f"{type(problem).__name__}: {words[0][:160] if words else ''}")
    finally:
        saved.restore()
    for ours, exact in zip(outputs, results, strict=False):
        if implausible := _why_implausible(ours, exact):
            return Reference(why_not=implausible)
    return Reference(outputs=tuple(results), state=tuple(changed), partial=mode.widened)


def count_distinct_calls(outputs: Sequence[Outputs], state: Sequence[object]) -> int:
    """Return how many of the check calls differ: one if all return the same whatever the seed and
    change nothing, else all."""
    same = all(each is outputs[0] for each in outputs)
    return 1 if same and not state else len(outputs)


@contextmanager
def _held_in_float64(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Replace the tensors' data by float64, and put the original data back afterwards."""
    kept = [(t, t.data, t.grad if t.is_leaf else None) for t in tensors]
    default = torch.get_default_dtype()
    try:
        for tensor, data, gradient in kept:
            if gradient is not None:
                tensor.grad = None
            tensor.data = data.to(torch.complex128 if data.is_complex() else torch.float64)
            if gradient is not None:
                tensor.grad = gradient.to(torch.float64)
        torch.set_default_dtype(torch.float64)
        yield
    finally:
        torch.set_default_dtype(default)
        for tensor, data, gradient in kept:
            if tensor.is_leaf:
                tensor.grad = None
            tensor.data = data
            if gradient is not None:
                tensor.grad = gradient


class _Float64Mode(TorchDispatchMode):
    """Gives float64, below autograd, to whatever asks for a float of fewer bits."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.widened = False
        """Whether a tensor had to be converted: from a loader, exact, or from numpy, rounded."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if operator_name(func) in _PASSED_THROUGH:
            return func(*args, **(kwargs or {}))
        written = _written_arguments(func)
        self.widened |= any(_is_below_float64(t.dtype) for t in nested_tensors((args, kwargs)))
        kwargs = {k: v if k in written else _widen(v) for k, v in (kwargs or {}).items()}
        return func(*(a if i in written else _widen(a) for i, a in enumerate(args)), **kwargs)


def _widen(value: Any) -> Any:
    """Return the float64 counterpart of a dtype, or of a tensor that could not be converted before,
    such as one from a loader."""
    if isinstance(value, torch.dtype):
        if value in _LOW_FLOATS:
            return torch.float64
        return torch.complex128 if value in _LOW_COMPLEX else value
    if (
        isinstance(value, torch.Tensor)
        and _is_below_float64(value.dtype)
        and value.layout is torch.strided
    ):
        return value.to(torch.complex128 if value.is_complex() else torch.float64)
    if type(value) in (list, tuple):
        return type(value)(_widen(item) for item in value)
    return value


def _written_arguments(func: Any) -> set[int | str]:
    """Return position and name of the arguments that an operator writes to, which must not be
    replaced by a copy."""
    schema = getattr(func, "_schema", None)
    written: set[int | str] = set()
    for place, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            written |= {place, argument.name}
    return written


def _why_implausible(baseline: Outputs, reference: Outputs) -> str:
    """Return why a reference cannot be right; "" if it can."""
    if len(baseline.leaves) != len(reference.leaves):
        return "float64 gives an output of another structure"
    for ours, exact in zip(baseline.leaves, reference.leaves, strict=True):
        if ours.values is None or exact.values is None or not _is_float(ours):
            continue
        if ours.shape != exact.shape:
            return f"float64 gives {ours.path or 'the output'} another shape"
        if exact.kind == "tensor" and not _is_double(exact):
            return f"{ours.path or 'the output'} came out as {exact.dtype}, not float64"
        if ours.nans != exact.nans or ours.infinities != exact.infinities:
            return f"float64 gives {ours.path or 'the output'} other NaN or infinite values"
        off = error(numbers(ours.values), numbers(exact.values)).norm
        if off > MAX_BASELINE_ERROR.get(ours.dtype, 1e-3):
            return f"float64 lies {off:.1g} from the baseline: more than rounding"
    return ""


def _is_float(leaf: Leaf) -> bool:
    values = leaf.values
    return values is not None and (values.is_floating_point() or values.is_complex())


def _is_double(leaf: Leaf) -> bool:
    return leaf.dtype in ("float64", "complex128")


def _is_below_float64(dtype: torch.dtype) -> bool:
    return dtype in _LOW_FLOATS or dtype in _LOW_COMPLEX
