"""The baseline once more, in float64: what both variants would compute if they could.

Everything float that the baseline holds is turned into float64 for the while, tensors it makes
itself too, and the check calls are made again. What comes out is believed only if every float is
float64 and the baseline lies within rounding of it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ridgeline.cost.counting.operands import nested_tensors, operator_name
from ridgeline.cost.counting.passes import silenced
from ridgeline.equality.calls.calling import Caller, as_written
from ridgeline.equality.calls.evidence import Reference
from ridgeline.equality.calls.held_state import Keeping, reach, reachable
from ridgeline.equality.calls.judge import error, numbers
from ridgeline.equality.calls.outputs import Leaf, Outputs, Room, leaf_of

MOST_BYTES = 2**31
"""Of float tensors to turn into float64, which takes two to four times as much again."""
_BELIEVED = {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2, "bfloat16": 5e-2}
"""How far the baseline may lie from its reference. Rounding stays well below; another random number
or a step in another direction lies far above."""
_LOW = (torch.float32, torch.float16, torch.bfloat16)
_PASSED_ON = ("aten::lift_fresh", "aten::lift_fresh_copy", "aten::detach", "aten::alias")
_LOW_COMPLEX = (torch.complex64, torch.complex32)


def reference_of(
    caller: Caller, keeping: Keeping, outputs: Sequence[Outputs], state: Sequence[str]
) -> Reference:
    """Never raises: where there is no reference, why not is kept."""
    returned = [leaf for each in outputs for leaf in each.leaves if _is_float(leaf)]
    if not returned and not state:
        return Reference(why_not="nothing that was returned or changed is float")
    if returned and all(_is_double(leaf) for leaf in returned):
        return Reference(why_not="it computes in float64 as it is")
    floats = [h.tensor for h in reach(caller.workload).held if _is_low(h.tensor.dtype)]
    if sum(t.numel() * t.itemsize for t in floats) > MOST_BYTES:
        return Reference(why_not="what it holds is over 2 GiB")
    if keeping.left_out and state:
        return Reference(why_not="what it changes is too large to be put back")
    try:
        keeping.restore()
        made, double = [], _Double()
        with as_written(), silenced(), _in_double(floats):
            for turn in range(distinct(outputs, state)):
                with double:
                    value, _ = caller(turn)
                made.append(caller.copied(value))  # outside: what came out float32 shows it
            after = dict(reachable(caller.workload))
            changed = [leaf_of(name, after[name].detach(), Room()) for name in state]
    except Exception as problem:
        words = str(problem).strip().splitlines()
        return Reference(why_not=f"{type(problem).__name__}: {words[0][:160] if words else ''}")
    finally:
        keeping.restore()
    doubt = next(filter(None, (_doubt(a, b) for a, b in zip(outputs, made, strict=False))), "")
    if doubt:
        return Reference(why_not=doubt)
    return Reference(outputs=tuple(made), state=tuple(changed), partial=double.widened)


def distinct(outputs: Sequence[Outputs], state: Sequence[object]) -> int:
    """How many of the check calls say something of their own: one, where all return the same
    whatever the seed and change nothing."""
    same = all(each is outputs[0] for each in outputs)
    return 1 if same and not state else len(outputs)


@contextmanager
def _in_double(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """The tensors' data replaced by float64; the very same data comes back."""
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


class _Double(TorchDispatchMode):
    """Below autograd: whatever asks for a float of fewer bits gets float64."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.widened = False
        """Some tensor came from elsewhere: from a loader, exact, or from numpy, rounded."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if operator_name(func) in _PASSED_ON:
            return func(*args, **(kwargs or {}))
        written = _written(func)
        self.widened |= any(_is_low(t.dtype) for t in nested_tensors((args, kwargs)))
        kwargs = {k: v if k in written else _widened(v) for k, v in (kwargs or {}).items()}
        return func(*(a if i in written else _widened(a) for i, a in enumerate(args)), **kwargs)


def _widened(value: Any) -> Any:
    """A dtype, or a tensor that came from where nothing could be turned into float64: a loader."""
    if isinstance(value, torch.dtype):
        if value in _LOW:
            return torch.float64
        return torch.complex128 if value in _LOW_COMPLEX else value
    if isinstance(value, torch.Tensor) and _is_low(value.dtype) and value.layout is torch.strided:
        return value.to(torch.complex128 if value.is_complex() else torch.float64)
    if type(value) in (list, tuple):
        return type(value)(_widened(item) for item in value)
    return value


def _written(func: Any) -> set[int | str]:
    """Places and names of the arguments that an operator writes to: those must stay themselves."""
    schema = getattr(func, "_schema", None)
    found: set[int | str] = set()
    for place, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.alias_info is not None and argument.alias_info.is_write:
            found |= {place, argument.name}
    return found


def _doubt(baseline: Outputs, made: Outputs) -> str:
    """Why a reference is not to be believed."""
    if len(baseline.leaves) != len(made.leaves):
        return "float64 gives an output of another structure"
    for ours, exact in zip(baseline.leaves, made.leaves, strict=True):
        if ours.values is None or exact.values is None or not _is_float(ours):
            continue
        if ours.shape != exact.shape:
            return f"float64 gives {ours.path or 'the output'} another shape"
        if exact.kind == "tensor" and not _is_double(exact):
            return f"{ours.path or 'the output'} came out as {exact.dtype}, not float64"
        if ours.nans != exact.nans or ours.infinities != exact.infinities:
            return f"float64 gives {ours.path or 'the output'} other NaN or infinite values"
        off = error(numbers(ours.values), numbers(exact.values)).norm
        if off > _BELIEVED.get(ours.dtype, 1e-3):
            return f"float64 lies {off:.1g} from the baseline: more than rounding"
    return ""


def _is_float(leaf: Leaf) -> bool:
    values = leaf.values
    return values is not None and (values.is_floating_point() or values.is_complex())


def _is_double(leaf: Leaf) -> bool:
    return leaf.dtype in ("float64", "complex128")


def _is_low(dtype: torch.dtype) -> bool:
    return dtype in _LOW or dtype in _LOW_COMPLEX
