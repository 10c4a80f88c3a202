"""Calls the program's model once more without the program noticing, and compares it with float64.

Before the first step the model is evaluated in float64 as the program made it, and then with the
fixes applied. How far the second lies from the first is an error, which the unchanged program has
as well. The program stays as it was: only parameters, buffers and inputs are copied; its random
numbers, modes and buffers are put back; and whatever could notice a call (hooks of its own, other
ranks) is not called.
"""

import random
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from importlib import import_module
from time import perf_counter
from typing import Any

from ridgeline.harness.trials import tensor_prints as prints
from ridgeline.harness.usercode.forked_work import DirectWork, SharedStore, error_text

MAX_HOST_BYTES = 2**30
"""Largest size of parameters and buffers in float64 on a host. On a device the limit is a quarter
of what is free."""
NAMESPACES = ("aten", "prims", "prim", "torchvision", "torchaudio")
"""Operators that may run in float64. A kernel written for float32 may read outside its memory."""
MAX_CALL_S = 1.0
"""A model whose call takes longer on a CPU gets no reference: in float64 it takes three times that.
"""
NO_REFERENCE = "no float64 reference"
_MAX_DEPTH = 4
_UNCHANGEABLE = (
    bool, int, float, complex, str, bytes, type, types.NoneType, types.FunctionType,
    types.BuiltinFunctionType, types.MethodType, types.ModuleType, slice, range,
)  # fmt: skip
"""Inputs that a call cannot change, or that nobody expects it to."""


class Float64Reference:
    """The outputs of the first model that a trial trains, and their error against float64."""

    def __init__(self, torch: Any, work: DirectWork | None = None) -> None:
        self._torch = torch
        self._work = work or DirectWork()
        self._reference = SharedStore()
        self.error: float | None = None
        self.outputs: tuple[float, ...] = ()
        self.missing = ""
        """Why there is no float64 reference."""
        self.problem = ""
        """Why there are no outputs with the fixes applied."""

    def begin(self, module: Any, args: Any, kwargs: Any) -> None:
        """Evaluate the model before a fix is applied to it."""
        torch = self._torch
        self.missing = _why_not(torch, module)
        if self.missing:
            return
        try:
            self.outputs, self.missing = self._work.run(
                lambda: self._unchanged(module, args, kwargs)
            )
        except Exception as error:
            self.missing = f"{NO_REFERENCE}: {error_text(error)}"[:200]
        finally:
            if torch.cuda.is_initialized():
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()

    def _unchanged(self, module: Any, args: Any, kwargs: Any) -> tuple[tuple[float, ...], str]:
        """Store the outputs in float64 for later. Return the outputs as they are, and why there is
        no reference."""
        torch = self._torch
        with undisturbed(torch, module):
            inputs = [renewed_inputs(torch, one, module) for one in (args, kwargs)]
            began = perf_counter()
            outputs = prints.of_outputs(torch, module(*inputs[0], **inputs[1]))
            if not torch.cuda.is_initialized() and perf_counter() - began > MAX_CALL_S:
                return (), f"{NO_REFERENCE}: a call of the model takes too long"
            try:
                wide = prints.floating(torch, _in_float64(torch, module, args, kwargs))
                self._reference.put([one.double() for one in wide])
            except Exception as error:
                return outputs, f"{NO_REFERENCE}: {error_text(error)}"[:200]
        return outputs, ""

    def changed(self, module: Any, args: Any, kwargs: Any) -> None:
        """Evaluate the model with the fixes applied, before the first step."""
        if not self.outputs:
            return
        try:
            self.outputs, self.error = self._work.run(
                lambda: self._with_fixes(module, args, kwargs)
            )
        except Exception as error:
            self.outputs = ()
            self.problem = f"not evaluated at first: {error_text(error)}"[:200]
        finally:
            self._reference.clear()

    def _with_fixes(
        self, module: Any, args: Any, kwargs: Any
    ) -> tuple[tuple[float, ...], float | None]:
        torch = self._torch
        with undisturbed(torch, module):
            inputs = [renewed_inputs(torch, one, module) for one in (args, kwargs)]
            returned = module(*inputs[0], **inputs[1])
        outputs = prints.floating(torch, returned)
        reference = [one for stored in self._reference.all() for one in stored]
        error = None
        if reference and [one.shape for one in outputs] == [one.shape for one in reference]:
            pairs = zip(outputs, reference, strict=True)
            error = max(
                float((out.double() - exact).norm()) / (float(exact.norm()) or 1.0)
                for out, exact in pairs
            )
        return prints.of_outputs(torch, returned), error


@contextmanager
def undisturbed(torch: Any, module: Any) -> Iterator[None]:
    """Set evaluation mode without gradients, let compiled code run as it was written, and put
    everything back at the end."""
    modes = [(one, one.training) for one in module.modules()]
    buffers = [(one, one.detach().clone()) for one in module.buffers()]
    held = [(store, dict(store)) for one in module.modules() for store in (vars(one), one._buffers)]
    numpy = sys.modules.get("numpy")
    drawn = numpy.random.get_state() if numpy is not None else None
    python = random.getstate()
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with ExitStack() as stack:
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stance = getattr(torch.compiler, "set_stance", None)
        if stance is not None and "torch._dynamo" in sys.modules:  # importing it takes 1 s
            stack.enter_context(stance("force_eager"))
        try:
            module.eval()
            yield
        finally:
            for store, before in held:  # a forward may count its calls, or keep a state
                for name in store.keys() - before.keys():
                    del store[name]
                store.update(before)
            for one, mode in modes:
                one.training = mode
            for buffer, before in buffers:
                if not torch.equal(buffer, before):
                    buffer.copy_(before)
            random.setstate(python)
            if numpy is not None:
                numpy.random.set_state(drawn)


def copied_inputs(torch: Any, value: Any, module: Any) -> Any:
    """Return a copy of what `module` was given, as it is now, so that the model can be called with
    it later. A cache that a call appends to, or any object of the program's own, would change
    meanwhile. An object that holds the module, or a part of it, goes on holding it. This raises
    whatever copying an object raises that cannot be copied."""
    return _InputCopier(torch, module).copy(value, lambda tensor: tensor.detach().clone())


def renewed_inputs(torch: Any, value: Any, module: Any) -> Any:
    """Return inputs for one call of ours: objects copied again, tensors as they are."""
    return _InputCopier(torch, module).copy(value, lambda tensor: tensor)


class _InputCopier:
    def __init__(self, torch: Any, module: Any) -> None:
        self._torch = torch
        own = (torch.dtype, torch.device, torch.Size, torch.Generator, torch.nn.Module)
        self._unchangeable = (*_UNCHANGEABLE, *own)
        # A second model on the device would be seen in the program's peak, or not fit.
        held = (*module.modules(), *module.parameters(), *module.buffers())
        self._memo = {id(one): one for one in held}

    def copy(self, value: Any, of_tensor: Callable[[Any], Any]) -> Any:
        def other(value: Any) -> Any:
            plain = isinstance(value, self._unchangeable)
            return value if plain else deepcopy(value, dict(self._memo))

        return _mapped(self._torch, value, of_tensor, other)


def _mapped(
    torch: Any,
    value: Any,
    of_tensor: Callable[[Any], Any],
    of_other: Callable[[Any], Any],
    depth: int = 0,
) -> Any:
    """Return `value` with every tensor and every other object in it replaced, inside of tuples,
    lists and dictionaries down to a limited depth."""

    def inside(one: Any) -> Any:
        return _mapped(torch, one, of_tensor, of_other, depth + 1)

    if isinstance(value, torch.Tensor):
        return of_tensor(value)
    if depth < _MAX_DEPTH and isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*map(inside, value))
    if depth < _MAX_DEPTH and type(value) in (tuple, list):
        return type(value)(map(inside, value))
    if depth < _MAX_DEPTH and type(value) is dict:
        return {key: inside(one) for key, one in value.items()}
    return of_other(value)


def _why_not(torch: Any, module: Any) -> str:
    """Return why the model is not called apart from the program; "" if it may be."""
    spread = torch.distributed.is_available() and torch.distributed.is_initialized()
    if spread and torch.distributed.get_world_size() > 1:
        return f"{NO_REFERENCE}: the model is spread over processes"
    if isinstance(module, torch.jit.ScriptModule):
        return f"{NO_REFERENCE}: the model is TorchScript"
    if any(one._forward_hooks or one._forward_pre_hooks for one in module.modules()):
        return f"{NO_REFERENCE}: the program has hooks on its model"
    tensors = [one for _, one in prints.named(module)]
    limit = MAX_HOST_BYTES
    if any(one.is_cuda for one in tensors):
        limit = max(torch.cuda.mem_get_info()[0] // 4, 1)
    too_large = 8 * sum(one.numel() for one in tensors) > limit
    return f"{NO_REFERENCE}: the model is too large" if too_large else ""


def _in_float64(torch: Any, module: Any, args: Any, kwargs: Any) -> Any:
    """Return what the model returns in float64: parameters, buffers and inputs are replaced for
    this call alone."""

    def wide(tensor: Any) -> Any:
        return tensor.double() if tensor.is_floating_point() else tensor

    state = {
        name: one.detach().double() if one.is_floating_point() else one.detach().clone()
        for name, one in (
            *module.named_parameters(remove_duplicate=True),
            *module.named_buffers(remove_duplicate=True),
        )
    }
    positional, named = (
        _mapped(torch, renewed_inputs(torch, one, module), wide, lambda other: other)
        for one in (args, kwargs)
    )
    cudnn = torch.backends.cudnn
    tunes, cudnn.benchmark = cudnn.benchmark, False
    try:
        with _known_operators_only():
            return torch.func.functional_call(
                module, state, tuple(positional), named, tie_weights=True
            )
    finally:
        cudnn.benchmark = tunes


def _known_operators_only() -> Any:
    """Return a context in which an operator that is not torch's own raises."""
    modes = import_module("torch.utils._python_dispatch")

    class KnownOperators(modes.TorchDispatchMode):  # type: ignore[misc, name-defined]
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            if func.namespace not in NAMESPACES:
                raise TypeError(f"{func} is not torch's own")
            return func(*args, **(kwargs or {}))

    return KnownOperators()
